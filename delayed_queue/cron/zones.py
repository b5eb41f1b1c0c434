"""Local times and the instants they stand for: time zones, and the policy for clocks that are changed.

A local time that is skipped stands for the instant the gap ends. One that is repeated stands for the first time.
So every local time has exactly one instant, and later local times never have earlier ones: the ticks of a rule are the
instants of its local times, without duplicates. Reading the local clock of "now" instead makes a tick again in every
repeated hour and loses those that are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

from delayed_queue.errors import InvalidInput

# Local times of a rule at or after the given one, in order, all of them naive.
LocalTimes = Callable[[datetime], Iterator[datetime]]

SECOND = timedelta(seconds=1)
# These depend on the host, or count leap seconds, which the clocks of hosts and databases do not.
NO_ZONES = ("localtime", "posixrules", "posix/", "right/")


def check_zone(zone: str | ZoneInfo) -> str:
    """The IANA name of a zone that this host knows."""
    name = zone.key if isinstance(zone, ZoneInfo) else zone
    if not isinstance(name, str):
        raise InvalidInput(f"The time zone must be an IANA name such as 'Europe/Bucharest', not {zone!r}.")
    zone_named(name)
    return name


# ZoneInfo keeps only the 8 last used ones itself, and reads the others from disk again.
@lru_cache(maxsize=1024)
def zone_named(name: str) -> ZoneInfo:
    try:
        if not name.startswith(NO_ZONES):
            return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        pass
    similar = get_close_matches(name, sorted(available_timezones()), n=1)
    hint = f" Did you mean {similar[0]!r}?" if similar else " Use an IANA name such as 'Europe/Bucharest'."
    raise InvalidInput(f"The time zone {name!r} is not known here.{hint}")


def instants_after(moment: datetime, zone: tzinfo, times_from: LocalTimes) -> Iterator[datetime]:
    """The instants that local times of the zone stand for, strictly after the moment and strictly increasing."""
    with suppress(OverflowError):  # the end of the year 9999
        latest = moment
        times = times_from(_wall_time(moment, zone))
        while (local := next(times, None)) is not None:
            offset, later_offset = _offsets(local, zone)
            if offset < later_offset:  # skipped
                instant = _change_between(local - later_offset, local - offset, zone)
                # Minutely rules have 60 times in a gap of an hour, secondly ones 3,600; all are this one tick.
                times = times_from(instant.astimezone(zone).replace(tzinfo=None))
            else:
                instant = (local - offset).replace(tzinfo=UTC)
            if instant > latest:
                latest = instant
                yield instant


def _wall_time(moment: datetime, zone: tzinfo) -> datetime:
    """All local times that stand for an instant after the moment are at or after this one."""
    local = moment.astimezone(zone)
    wall = local.replace(tzinfo=None, fold=0)
    if not local.fold:
        return wall
    # Nothing ticks while local times are repeated, that is until the clock shows again what it showed at the change.
    offset, later_offset = _offsets(wall, zone)
    change = _change_between(wall - offset, wall - later_offset, zone)
    return change.replace(tzinfo=None) + offset


def _offsets(local: datetime, zone: tzinfo) -> tuple[timedelta, timedelta]:
    """They differ only near a change: the offsets from before and after it."""
    before = local.replace(tzinfo=zone).utcoffset()
    after = local.replace(tzinfo=zone, fold=1).utcoffset()
    return cast("timedelta", before), cast("timedelta", after)


def _change_between(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """The instant, of those after `before` and up to `after` (naive, UTC), at which the clock is changed.

    A ZoneInfo does not tell its changes. Bisecting takes 12 steps for an hour and 17 for a day; changes are at whole
    seconds.
    """
    start = before.replace(microsecond=0, tzinfo=UTC)
    offset = after.replace(tzinfo=UTC).astimezone(zone).utcoffset()
    low, high = 0, (after.replace(microsecond=0, tzinfo=UTC) - start) // SECOND
    while high - low > 1:
        middle = (low + high) // 2
        if (start + middle * SECOND).astimezone(zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return start + high * SECOND
