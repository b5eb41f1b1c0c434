"""From the text of a crontab expression to its fields. croniter reads it; what it would misread is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from croniter import croniter

from delayed_queue.cron.fields import LAST, CrontabFields
from delayed_queue.errors import InvalidInput

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MINUTE, HOUR, DAY, MONTH, WEEKDAY, SECOND = range(6)
# Name, lowest, highest, names of values, what it may be.
FIELDS: tuple[tuple[str, int, int, str, str], ...] = (
    ("minute", 0, 59, "", "0-59"),
    ("hour", 0, 23, "", "0-23"),
    ("day of month", 1, 31, "", "1-31, L for the last, or 15W for the weekday nearest to the 15th"),
    ("month", 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec", "1-12 or jan-dec"),
    ("day of week", 0, 6, "sun mon tue wed thu fri sat", "0-7 or sun-sat, fri#2 for the second, or L5 for the last"),
    ("second", 0, 59, "", "0-59"),
)


@lru_cache(maxsize=4096)
def fields_of(expression: str) -> CrontabFields:
    """Of an expression whose words are separated by single spaces. Refuses one that is bad or never ticks."""
    words = ALIASES.get(expression.lower(), expression).lower().split()
    _refuse_other_notations(expression, words)
    for index, word in enumerate(words):
        _check_field(expression, index, word, six=len(words) > SECOND)
    # The seconds are read as minutes would be, and apart: with six fields croniter takes 7 for no day of the week, and
    # 0 for the first of the month.
    read = _read(words[:SECOND])
    if read is None:
        raise InvalidInput(f"The crontab expression {expression!r} combines fields that exclude each other.")
    minutes, hours, days, months, weekdays = read.expanded
    seconds = _read([words[SECOND], "*", "*", "*", "*"]).expanded[MINUTE] if len(words) > SECOND else [0]
    nearest = next(iter(getattr(read, "nearest_weekday", ())), None)  # croniter 6.0 has none
    nth = {(day, LAST if n == "l" else n) for day, ns in read.nth_weekday_of_month.items() for n in ns}
    fields = CrontabFields(
        seconds=_values(seconds, SECOND),
        minutes=_values(minutes, MINUTE),
        hours=_values(hours, HOUR),
        months=_values(months, MONTH),
        days=None if "*" in days else frozenset(day for day in days if day not in ("l", nearest)),
        last_day="l" in days,
        nearest_weekday=nearest,
        weekdays=frozenset() if nth else None if "*" in weekdays else frozenset(weekdays),
        nth_weekdays=frozenset(nth),
    )
    if not fields.ever():
        raise InvalidInput(f"The crontab expression {expression!r} never ticks: no month it names has such a day.")
    return fields


def _read(words: list[str]) -> Any:
    try:
        return croniter(" ".join(words), 0)
    except (ValueError, LookupError, TypeError, AttributeError):  # not all of its mistakes are CroniterErrors
        return None


def _values(values: Iterable[Any], index: int) -> tuple[int, ...]:
    _, lowest, highest, _, _ = FIELDS[index]
    return tuple(range(lowest, highest + 1)) if "*" in values else tuple(sorted(values))


def _refuse_other_notations(expression: str, words: list[str]) -> None:
    what = f"The crontab expression {expression!r}"
    if not words:
        raise InvalidInput("The crontab expression is blank. Write five fields such as '0 2 * * *', or '@daily'.")
    if words[0] == "@every":
        raise InvalidInput(f"{what} is a period, not a crontab. Use parse_rule({expression!r}), or Every(period).")
    if words[0] == "@reboot":
        raise InvalidInput(f"{what} has no meaning here: a queue is not booted. Use '@daily' or five fields.")
    if words[0].startswith("@"):
        raise InvalidInput(f"{what} is not known. The names are {', '.join(ALIASES)}.")
    if len(words) == SECOND + 2:
        raise InvalidInput(f"{what} has a seventh field, for years, which is not supported. Leave it out.")
    if len(words) not in (SECOND, SECOND + 1):
        raise InvalidInput(
            f"{what} has {len(words)} field{'s' if len(words) > 1 else ''}. It needs five (minute, hour, day of month, "
            "month, day of week), or six, of which the last is seconds."
        )


def _check_field(expression: str, index: int, word: str, six: bool) -> None:
    name, _, highest, _, allowed = FIELDS[index]
    what = f"The {name} field {word!r} of the crontab expression {expression!r}"
    items = word.split(",")
    if any(re.match(r"[hr]($|[(/])", item) for item in items):
        raise InvalidInput(f"{what} is hashed or random, so two installers would not agree on it. Write a number.")
    alone = ["*"] * 5
    alone[MINUTE if index == SECOND else index] = word
    if not word.isascii() or _read(alone) is None:
        order = " With six fields, the seconds come last." if six else ""
        raise InvalidInput(
            f"{what} is not valid. It may be {allowed}; * is any; use lists (1,3), ranges (1-3), steps (*/2).{order}"
        )
    for item in items:
        low, high, step = _bounds(item, index)
        if low is None:
            continue
        # croniter takes 5-5, and 59/5 in minutes, for the whole range from 0 to 59.
        if low == high:
            raise InvalidInput(f"{what} has a range of one value, {item!r}. Write that value alone, or * for any.")
        # croniter continues 22-4/5 in hours, which is 22 and 3, with 4.
        if high is not None and low > high and step:
            raise InvalidInput(f"{what} has a step in a range that runs over {highest}, {item!r}. Write a list.")
    special = [item for item in items if "#" in item or item.startswith("l")]
    if index == WEEKDAY and special and len(special) < len(items):
        raise InvalidInput(f"{what} mixes days of every week with {special[0]!r}, one of a month. Use two schedules.")


def _bounds(item: str, index: int) -> tuple[int | None, int | None, bool]:
    """Of a range such as 1-5, mon-fri/2 or 10/5: both ends as numbers, and whether it has a step."""
    _, lowest, highest, names, _ = FIELDS[index]
    numbers = {name: number for number, name in enumerate(names.split(), lowest)}
    match = re.fullmatch(r"(\w+)(?:-(\w+))?(/\d+)?", item)
    if match is None or not (match[2] or match[3]):
        return None, None, False
    low, high = (
        highest if end is None else numbers[end] if end in numbers else int(end) if end.isdigit() else None
        for end in (match[1], match[2])
    )
    return low, high, match[3] is not None
