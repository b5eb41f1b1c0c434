"""The keys of ticks: which schedule, which configuration of it, and when. Shared with the JVM library."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from delayed_queue.clocks import to_ms
from delayed_queue.errors import InvalidInput
from delayed_queue.validation import check_key, check_name

# What is left of the 200 characters of a key after "/", an MD5, "/" and a time of 25 characters.
LONGEST_KEY_PREFIX = 141
# After the prefix. Written for PostgreSQL and Python alike: [0-9], as \d is any digit of Unicode to one of them.
AFTER_PREFIX = r"/([^/]+)/([0-9]{8}-[0-9]{6}\.[0-9]{9})"

check_key_prefix = partial(check_name, what="key prefix", longest=LONGEST_KEY_PREFIX)


class TickKey(NamedTuple):
    config_hash: str
    moment: datetime


def tick_key(prefix: str, config_hash: str, moment: datetime) -> str:
    check_key_prefix(prefix)
    check_name(config_hash, what="config hash", longest=LONGEST_KEY_PREFIX)
    if "/" in config_hash:
        raise InvalidInput(
            f"The config hash {config_hash!r} contains '/', which ends it in the key of a tick. Use another character."
        )
    to_ms(moment, "moment")  # refuses what is naive or no datetime
    utc = moment.astimezone(UTC)
    # strftime writes the year 999 with three digits.
    day = f"{utc.year:04}{utc.month:02}{utc.day:02}"
    return check_key(f"{prefix}/{config_hash}/{day}-{utc:%H%M%S}.{utc.microsecond:06}000")


def key_range(prefix: str) -> tuple[str, str]:
    """All keys that start with the prefix and a slash: from the first text on, and before the second, by collation "C".

    An index serves this, and it needs no escapes, unlike LIKE: "0" is what follows "/" in ASCII. Keys of longer
    prefixes and users' own are among them; `tick_pattern` tells these apart.
    """
    check_key_prefix(prefix)
    return f"{prefix}/", f"{prefix}0"


def tick_pattern(prefix: str) -> str:
    """A regular expression, for PostgreSQL's ~ and for Python's fullmatch, of the prefix's own ticks.

    Its first group is the config hash, its second the time: `substring("pKey" from pattern)` gives the hash.
    """
    check_key_prefix(prefix)
    # A backslash makes punctuation ordinary. Before letters, those beyond ASCII too, PostgreSQL looks for an escape.
    return "^" + re.sub(r"([^\w\x80-\U0010ffff])", r"\\\1", prefix, flags=re.ASCII) + AFTER_PREFIX + "$"


def parse_tick_key(prefix: str, key: str) -> TickKey | None:
    """None if the key is not a tick of this very prefix. Nanoseconds, which only the JVM has, are cut off."""
    match = re.fullmatch(tick_pattern(prefix), key)
    if match is None:
        return None
    try:
        moment = datetime.strptime(match[2][:-3], "%Y%m%d-%H%M%S.%f").replace(tzinfo=UTC)
    except ValueError:
        return None
    return TickKey(match[1], moment)
