"""A crontab expression in a time zone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from delayed_queue.cron.reading import fields_of
from delayed_queue.cron.rules import Rule, hash_of
from delayed_queue.cron.zones import check_zone, instants_after, zone_named
from delayed_queue.errors import InvalidInput


@dataclass(frozen=True, init=False)
class Crontab(Rule):
    """Ticks when the local clock of the zone shows what the expression says.

    Five fields (minute, hour, day of month, month, day of week) or six, of which the sixth is seconds; or `@hourly`,
    `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly`, `@annually`.

    Where both days are restricted, either will do. All days named, as the 0-6 in `0 0 */5 * 0-6`, are no restriction
    beside a field with a star.
    """

    expression: str
    zone: str

    def __init__(self, expression: str, zone: str | ZoneInfo = "UTC") -> None:
        if not isinstance(expression, str):
            raise InvalidInput(f"A crontab expression must be text such as '0 2 * * *', not {expression!r}.")
        object.__setattr__(self, "expression", " ".join(expression.split()))
        object.__setattr__(self, "zone", check_zone(zone))
        fields_of(self.expression)  # refuses a bad one here, where it is written

    @property
    def config_hash(self) -> str:
        return hash_of("crontab", zone=self.zone, expression=self.expression)

    def _ticks_after(self, moment: datetime) -> Iterator[datetime]:
        return instants_after(moment, zone_named(self.zone), fields_of(self.expression).times_from)
