"""A period of real time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count

from delayed_queue.clocks import EPOCH, MILLISECOND, Duration, positive_ms, to_ms
from delayed_queue.cron.rules import Rule, hash_of
from delayed_queue.errors import InvalidInput

LONGEST_PERIOD = timedelta(days=36525)  # a century


@dataclass(frozen=True, init=False)
class Every(Rule):
    """Ticks at the whole multiples of its period since 1970 UTC; clocks that are changed do not touch it.

    The period is a timedelta or a number of seconds, floored to whole milliseconds like all durations here.
    """

    period: timedelta

    def __init__(self, period: Duration) -> None:
        ms = positive_ms(period, "The period")
        if ms > LONGEST_PERIOD // MILLISECOND:
            raise InvalidInput(f"The period must be at most {LONGEST_PERIOD.days} days, a century, not {period}.")
        if not isinstance(period, timedelta):
            # A float that is a hair below its millisecond, as 1.001 * 1000 is, must not lose it.
            ms = positive_ms(timedelta(seconds=period), "The period")
        object.__setattr__(self, "period", ms * MILLISECOND)

    @property
    def config_hash(self) -> str:
        return hash_of("periodic-tick", period_ms=self.period // MILLISECOND)

    def _ticks_after(self, moment: datetime) -> Iterator[datetime]:
        ms = self.period // MILLISECOND
        with suppress(OverflowError):
            for number in count(to_ms(moment) // ms + 1):
                yield EPOCH + number * self.period
