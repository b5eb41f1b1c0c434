"""Hours of every day, by a local clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from delayed_queue.clocks import MILLISECOND, Duration, positive_ms
from delayed_queue.cron.rules import Rule, hash_of
from delayed_queue.cron.zones import check_zone, instants_after, zone_named
from delayed_queue.errors import InvalidInput

DAY = timedelta(days=1)


@dataclass(frozen=True, init=False)
class CronDailySchedule(Rule):
    """Ticks at these hours of every day in the zone.

    `schedule_in_advance` is how far ahead ticks are put in, `schedule_interval` how often that is looked after: neither
    changes the ticks, so neither is part of the hash.
    """

    zone: str
    hours: tuple[time, ...]
    schedule_in_advance: timedelta
    schedule_interval: timedelta

    def __init__(
        self,
        zone: str | ZoneInfo,
        hours: Iterable[time],
        schedule_in_advance: Duration = DAY,
        schedule_interval: Duration = timedelta(hours=1),
    ) -> None:
        object.__setattr__(self, "zone", check_zone(zone))
        object.__setattr__(self, "hours", _check_hours(hours))
        ahead = positive_ms(schedule_in_advance, "schedule_in_advance")
        object.__setattr__(self, "schedule_in_advance", ahead * MILLISECOND)
        interval = positive_ms(schedule_interval, "schedule_interval")
        object.__setattr__(self, "schedule_interval", interval * MILLISECOND)

    @property
    def config_hash(self) -> str:
        # In the given order: the JVM library does not sort them.
        return hash_of("daily-cron", zone=self.zone, hours=", ".join(map(_shortest, self.hours)))

    def _ticks_after(self, moment: datetime) -> Iterator[datetime]:
        return instants_after(moment, zone_named(self.zone), self._times_from)

    def _times_from(self, wall: datetime) -> Iterator[datetime]:
        hours = sorted(self.hours)
        day = wall.date()
        yield from (datetime.combine(day, hour) for hour in hours if hour >= wall.time())
        while True:
            day += DAY
            for hour in hours:
                yield datetime.combine(day, hour)


def _check_hours(hours: Iterable[time]) -> tuple[time, ...]:
    if isinstance(hours, str | time) or not isinstance(hours, Iterable):
        raise InvalidInput(f"hours must be a sequence such as [time(12), time(18, 30)], not {hours!r}.")
    checked: list[time] = []
    for hour in hours:
        if not isinstance(hour, time):
            raise InvalidInput(f"Each of the hours must be a datetime.time such as time(18, 30), not {hour!r}.")
        if hour.tzinfo is not None:
            raise InvalidInput(f"The hour {hour} has a time zone of its own. Leave it out: the schedule has one.")
        if hour in checked:
            raise InvalidInput(f"The hour {_shortest(hour)} is given twice. Leave one out.")
        checked.append(hour.replace(fold=0))
    if not checked:
        raise InvalidInput("hours is empty; a daily schedule needs at least one, such as time(12).")
    return tuple(checked)


def _shortest(hour: time) -> str:
    """As java.time.LocalTime writes itself: seconds only where there are some, fractions in groups of three digits."""
    if hour.microsecond % 1000:
        return hour.isoformat("microseconds")
    if hour.microsecond:
        return hour.isoformat("milliseconds")
    return hour.isoformat("seconds" if hour.second else "minutes")
