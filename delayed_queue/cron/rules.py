"""What all rules have in common: a set of ticks that depends on nothing but the rule, and a hash that names it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import MINYEAR, UTC, datetime
from itertools import islice

from delayed_queue.clocks import to_ms
from delayed_queue.errors import InvalidInput


class Rule(ABC):
    """Its ticks do not depend on the moment one asks from, so any number of installers agree without talking."""

    @property
    @abstractmethod
    def config_hash(self) -> str:
        """Two rules with the same hash have the same ticks."""

    @abstractmethod
    def _ticks_after(self, moment: datetime) -> Iterator[datetime]:
        """`moment` is in UTC. The ticks end where the calendar does, with the year 9999."""

    def ticks(self, moment: datetime) -> Iterator[datetime]:
        """The ticks strictly after the moment, in UTC, each later than the one before."""
        to_ms(moment, "moment")  # refuses what is naive or no datetime
        if moment.year == MINYEAR:
            # Where the calendar begins, the moment may have no date in UTC or in the zone of the rule.
            raise InvalidInput(f"The moment {moment} is in the year 1; ticks begin with the year 2.")
        try:
            return self._ticks_after(moment.astimezone(UTC))
        except OverflowError:
            return iter(())

    def ticks_after(self, moment: datetime, count: int) -> list[datetime]:
        if type(count) is not int or count < 0:
            raise InvalidInput(f"count must be a whole number of ticks, 0 or more, not {count!r}.")
        return list(islice(self.ticks(moment), count))


def hash_of(name: str, **settings: object) -> str:
    """The text is shared with the JVM library: it starts with a line feed, and every line ends with one."""
    lines = [f"{name}:", *(f"  {setting.replace('_', '-')}: {value}" for setting, value in settings.items())]
    text = "\n" + "".join(f"{line}\n" for line in lines)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
