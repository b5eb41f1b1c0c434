"""What the fields of a crontab expression allow, and the local times that follow from it."""

from __future__ import annotations

from bisect import bisect_left
from calendar import SATURDAY, SUNDAY, monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, date, datetime, time

YEARS_OF_ALL_CALENDARS = range(2000, 2400)  # the Gregorian calendar begins again after 400 years
LAST = 0  # in place of the n of an nth weekday


@dataclass(frozen=True)
class CrontabFields:
    """croniter reads the text; the times are counted here.

    A croniter object may not be shared between threads, building one and asking it for three ticks costs 100 to 250 us
    (this: 12 to 35), and its policy for changed clocks is another: it runs `30 3 * * *` twice when 03:30 is repeated.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    days: frozenset[int] | None  # None: any
    last_day: bool
    nearest_weekday: int | None  # of 15W, the 15
    weekdays: frozenset[int] | None  # Sunday is 0; None: any
    nth_weekdays: frozenset[tuple[int, int]]  # of fri#2, (5, 2)

    def times_from(self, wall: datetime) -> Iterator[datetime]:
        """All local times at or after this one, in order."""
        first, since = wall.date(), wall.time()
        for day in self._dates_from(first):
            for moment in self._times_of_day(since if day == first else time.min):
                yield datetime.combine(day, moment)

    def ever(self) -> bool:
        """Whether there is a day at all: the 30th of February never comes."""
        return any(self._days_of(year, month) for year in YEARS_OF_ALL_CALENDARS for month in self.months)

    def _dates_from(self, first: date) -> Iterator[date]:
        for year in range(first.year, MAXYEAR + 1):
            for month in self.months:
                if (year, month) < (first.year, first.month):
                    continue
                for day in self._days_of(year, month):
                    if (candidate := date(year, month, day)) >= first:
                        yield candidate

    def _times_of_day(self, since: time) -> Iterator[time]:
        for hour in self.hours[bisect_left(self.hours, since.hour) :]:
            first = bisect_left(self.minutes, since.minute) if hour == since.hour else 0
            for minute in self.minutes[first:]:
                for second in self.seconds:
                    if (candidate := time(hour, minute, second)) >= since:
                        yield candidate

    def _days_of(self, year: int, month: int) -> list[int]:
        weekday, length = monthrange(year, month)
        every_day = range(1, length + 1)
        if self.days is None and self.weekdays is None:
            return list(every_day)
        chosen: set[int] = set()
        if self.days is not None:
            chosen.update(day for day in self.days if day <= length)
            if self.last_day:
                chosen.add(length)
            if self.nearest_weekday is not None:
                chosen.add(_nearest_weekday(self.nearest_weekday, weekday, length))
        if self.weekdays is not None:
            # Added to the days of the month: where both are restricted, either will do, as crontab has it.
            # `weekday` counts from Monday, those of crontab from Sunday: the day before the first is `weekday` there.
            if self.weekdays:
                chosen.update(day for day in every_day if (weekday + day) % 7 in self.weekdays)
            for number, nth in self.nth_weekdays:
                same = range((number - weekday - 1) % 7 + 1, length + 1, 7)
                chosen.update(same[nth - 1 : nth] if nth != LAST else same[-1:])
        return sorted(chosen)


def _nearest_weekday(day: int, weekday_of_first: int, length: int) -> int:
    """Monday to Friday, and never in another month."""
    day = min(day, length)
    weekday = (weekday_of_first + day - 1) % 7
    if weekday == SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday == SUNDAY:
        return day + 1 if day < length else day - 2
    return day
