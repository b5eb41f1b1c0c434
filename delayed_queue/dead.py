"""Dead messages: giving them another chance, or discarding them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, models

from delayed_queue import sessions
from delayed_queue.arrays import integers
from delayed_queue.clocks import LARGEST_BIGINT, Duration, duration_ms
from delayed_queue.conf import settings
from delayed_queue.errors import InvalidInput
from delayed_queue.retry import RetryConfig, with_retries
from delayed_queue.sql import dead as statements
from delayed_queue.twins import async_twin
from delayed_queue.validation import check_key, check_kind

if TYPE_CHECKING:
    from delayed_queue.models import DeadMessage  # noqa: F401  # for the manager's type

CHUNK = 1000


class Counts(NamedTuple):
    redriven: int
    blocked: int


@dataclass(frozen=True)
class RedriveReport:
    """How many went back into the queue, and how many stayed dead because a message with their key is there."""

    redriven: int = 0
    blocked: int = 0
    by_kind: dict[str, Counts] = field(default_factory=dict)

    def __add__(self, other: RedriveReport) -> RedriveReport:
        by_kind = dict(self.by_kind)
        for kind, counts in other.by_kind.items():
            known = by_kind.get(kind, Counts(0, 0))
            by_kind[kind] = Counts(known.redriven + counts.redriven, known.blocked + counts.blocked)
        return RedriveReport(self.redriven + other.redriven, self.blocked + other.blocked, by_kind)

    @classmethod
    def _of_rows(cls, rows: list[tuple[Any, ...]]) -> RedriveReport:
        by_kind = {kind: Counts(redriven, blocked) for kind, redriven, blocked, *_ in rows}
        redriven = sum(counts.redriven for counts in by_kind.values())
        return cls(redriven, sum(counts.blocked for counts in by_kind.values()), by_kind)


class DeadMessageManager(models.Manager["DeadMessage"]):
    """``older_than`` and ``younger_than`` are durations since a message died, by the database's clock.

    Work is done in chunks of 1,000 messages, each a transaction of its own unless the caller has one open. Two may do
    it at once; each message is moved by one of them.
    """

    def redrive(
        self,
        *,
        kind: str | None = None,
        key: str | None = None,
        ids: Iterable[int] | None = None,
        older_than: Duration | None = None,
        younger_than: Duration | None = None,
        reason: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        using: str | None = None,
    ) -> RedriveReport:
        """Put dead messages back into the queue, due now, with all their attempts before them.

        One whose key is in the queue again stays dead, and so does the older of two with the same key. At most
        ``limit`` go back, the newest.
        """
        wanted = self._wanted(kind, key, ids, older_than, younger_than, reason)
        if dry_run:
            rows = self._run(statements.WOULD_REDRIVE, wanted | {"limit": _limit(limit)}, using)
            return RedriveReport._of_rows(rows)
        return sum(self._redrive(wanted, _limit(limit), using), RedriveReport())

    def redrive_in_chunks(
        self,
        *,
        kind: str | None = None,
        key: str | None = None,
        ids: Iterable[int] | None = None,
        older_than: Duration | None = None,
        younger_than: Duration | None = None,
        reason: str | None = None,
        limit: int | None = None,
        using: str | None = None,
    ) -> Iterator[RedriveReport]:
        """As ``redrive()``, with a report after each chunk. What is not asked for is not done."""
        wanted = self._wanted(kind, key, ids, older_than, younger_than, reason)
        return self._redrive(wanted, _limit(limit), using)

    def _redrive(self, wanted: dict[str, Any], limit: int, using: str | None) -> Iterator[RedriveReport]:
        before, left = LARGEST_BIGINT, limit
        while left > 0:
            chunk = {"before": before, "limit": min(left, CHUNK), "notify": settings.NOTIFY}
            rows = self._run(statements.REDRIVE, wanted | chunk, using)
            if not rows:
                return
            report = RedriveReport._of_rows(rows)
            yield report
            before = min(lowest_id for _, _, _, lowest_id, _ in rows)
            left -= report.redriven

    def discard(
        self,
        *,
        kind: str | None = None,
        key: str | None = None,
        ids: Iterable[int] | None = None,
        older_than: Duration | None = None,
        younger_than: Duration | None = None,
        reason: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        using: str | None = None,
    ) -> int:
        """Delete dead messages for good, the oldest first, and return how many."""
        wanted = self._wanted(kind, key, ids, older_than, younger_than, reason)
        if all(value is None for value in wanted.values()):
            raise InvalidInput(
                "discard() without any condition would delete every dead message. If that is meant, pass older_than=0."
            )
        left = _limit(limit)
        if dry_run:
            return self._count(statements.WOULD_DISCARD, wanted | {"limit": left}, using)
        discarded = 0
        while left > 0:
            gone = self._count(statements.DISCARD, wanted | {"limit": min(left, CHUNK)}, using)
            if not gone:
                break
            discarded += gone
            left -= gone
        return discarded

    aredrive = async_twin(redrive)
    adiscard = async_twin(discard)

    def _wanted(
        self,
        kind: str | None,
        key: str | None,
        ids: Iterable[int] | None,
        older_than: Duration | None,
        younger_than: Duration | None,
        reason: str | None,
    ) -> dict[str, Any]:
        if reason is not None and reason not in self.model.Reason.values:
            raise InvalidInput(f"The reason must be one of {', '.join(self.model.Reason.values)}, not {reason!r}.")
        return {
            "kind": None if kind is None else check_kind(kind),
            "key": None if key is None else check_key(key),
            "ids": None if ids is None else integers(map(_id, ids)),
            "older_than": _age(older_than, "older_than"),
            "younger_than": _age(younger_than, "younger_than"),
            "reason": None if reason is None else str(reason),
            "now": None,
        }

    def _count(self, statement: str, parameters: dict[str, Any], using: str | None) -> int:
        ((count,),) = self._run(statement, parameters, using)
        return int(count)

    def _run(self, statement: str, parameters: dict[str, Any], using: str | None) -> list[tuple[Any, ...]]:
        connection = connections[using or self._db or settings.DATABASE]
        return with_retries(
            connection, RetryConfig(), lambda: sessions.run(connection, _fetchall, statement, parameters)
        )


def _limit(limit: int | None) -> int:
    if limit is None:
        return LARGEST_BIGINT
    if type(limit) is not int or not 1 <= limit <= LARGEST_BIGINT:
        raise InvalidInput(f"limit must be a whole number greater than 0, or None for all, not {limit!r}.")
    return limit


def _age(duration: Duration | None, what: str) -> int | None:
    if duration is None:
        return None
    ms = duration_ms(duration, what)
    if ms < 0:
        raise InvalidInput(f"{what} must not be negative, not {duration}.")
    return ms


def _id(id: int) -> int:
    if type(id) is not int:
        raise InvalidInput(f"ids must be whole numbers, not {id!r}.")
    return id


_fetchall: Callable[[Any], list[tuple[Any, ...]]] = methodcaller("fetchall")
