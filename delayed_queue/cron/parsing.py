"""Rules as people write them in settings, decorators and forms."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

from delayed_queue.cron.crontab import Crontab
from delayed_queue.cron.every import Every
from delayed_queue.cron.zones import check_zone
from delayed_queue.errors import InvalidInput

UNITS_IN_MICROSECONDS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1000}
PART = r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(d|h|ms|m|s)"


def parse_rule(text: str, zone: str | ZoneInfo = "UTC") -> Crontab | Every:
    """A crontab expression, `@daily` and its like, or `@every 1h30m`, for which the zone is checked and not used."""
    if not isinstance(text, str):
        raise InvalidInput(f"A rule must be text such as '0 2 * * *' or '@every 1h30m', not {text!r}.")
    words = text.split()
    if words and words[0].lower() == "@every":
        check_zone(zone)
        return Every(_duration("".join(words[1:]).lower(), text))
    return Crontab(text, zone)


def _duration(duration: str, text: str) -> timedelta:
    if not re.fullmatch(f"(?:{PART})+", duration):
        raise InvalidInput(
            f"The rule {text!r} has no duration that can be read. "
            "Write days, hours, minutes, seconds or milliseconds, such as '@every 1h30m', '@every 2d' or '@every 1.5s'."
        )
    # Exact: as floats, 0.1s three times would not be 0.3s.
    microseconds = sum(Fraction(number) * UNITS_IN_MICROSECONDS[unit] for number, unit in re.findall(PART, duration))
    try:
        return timedelta(microseconds=int(microseconds))
    except OverflowError:
        raise InvalidInput(f"The duration of the rule {text!r} is too long.") from None
