"""The worker's statements, in batches, on the connection of the thread that calls."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from delayed_queue import __version__, sessions
from delayed_queue.arrays import integers, texts
from delayed_queue.clocks import Clock
from delayed_queue.conf import settings
from delayed_queue.heads import Heads
from delayed_queue.managers import _fetchall, _rowcount
from delayed_queue.models import DelayedMessage
from delayed_queue.retry import RetryConfig
from delayed_queue.sql import statements
from delayed_queue.tasks.deliveries import Delivery, Keeper
from delayed_queue.workers.identity import Identity

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from delayed_queue.tasks import Task

NEVER = float("inf")
COUNTED, PAUSED = 1, 2  # flags of sql/lease.sql
SHORTEST_WAIT = 0.005  # of a kind that is held back

_by_key = attrgetter("key", "kind")


@dataclass(eq=False)
class ServedKind:
    """A kind that this worker serves, and what it knows about it."""

    kind: str
    task: Task[..., Any]
    lease_ms: int
    pool: int = 0
    heads: Heads = field(default_factory=Heads)
    look_at: float = 0.0  # when it is worth a look, on the monotonic clock
    served_at: float = 0.0
    is_paused: bool = False
    is_held_back: bool = False  # by a limit


@dataclass(frozen=True)
class Settled:
    """Of some deliveries: those that were ours to settle, those that are not any more, and those that someone has
    locked just now, of which nothing is known.
    """

    ours: set[Delivery]
    locked: set[Delivery]
    lost: set[Delivery]

    @classmethod
    def at(cls, deliveries: Sequence[Delivery], places: Sequence[int] | None) -> Settled:
        """From the places that the functions in the database return: from 1, negative if locked."""
        ours = {deliveries[place - 1] for place in places or () if place > 0}
        locked = {deliveries[-place - 1] for place in places or () if place < 0}
        return cls(ours, locked, set(deliveries) - ours - locked)


@dataclass(frozen=True)
class Leased:
    deliveries: list[Delivery]
    buried: dict[str, int]


class DatabaseClock:
    """What the database's clock says at a moment of the monotonic one, by its last answer."""

    def __init__(self) -> None:
        self._offset_us = 0

    def set(self, now_us: int, monotonic: float) -> None:
        self._offset_us = now_us - int(monotonic * 1_000_000)

    def ms(self, monotonic: float) -> int:
        return (self._offset_us + int(monotonic * 1_000_000)) // 1000


class Store:
    """Each method is one statement, tried once: who calls knows whether to try again, and for how long."""

    def __init__(
        self, database: str, identity: Identity, clock: Clock | None = None, poll_period: float | None = None
    ) -> None:
        self.database = database
        self.identity = identity
        self.messages = DelayedMessage.objects.configured(
            using=database, clock=clock, retry=RetryConfig(retries=0), poll_period=poll_period
        )
        self.database_clock = DatabaseClock()

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return self.messages.connection

    def lease(self, kinds: Sequence[ServedKind], rooms: Sequence[int], lock_uuid: str, keeper: Keeper) -> Leased:
        """Take what is due of these kinds, the first ones first, and note when to look for each again."""
        period = self.messages.poll_period
        starts = [served.heads.start_poll(period) for served in kinds]
        heads: dict[int, list[int]] = {}
        started = time.monotonic()
        try:
            rows = self.messages._run(
                _fetchall,
                statements.LEASE,
                (
                    texts(served.kind for served in kinds),
                    integers(served.pool + 1 for served in kinds),
                    integers(rooms),
                    integers(served.lease_ms for served in kinds),
                    integers(served.task.max_attempts for served in kinds),
                    lock_uuid,
                    self.messages._now,
                    "{" + ",".join("t" if start.bounded else "f" for start in starts) + "}",
                    texts(integers(start.heads) for start in starts),
                ),
                run=sessions.run_for_many,
            )
            deliveries, buried, held_back = [], Counter[str](), {}
            for served in kinds:
                served.is_paused = served.is_held_back = False
            for place, id, key, payload, _, attempt, due_at, scheduled_at_initially, _, progress in rows:
                if progress is None:
                    served = kinds[place - 1]
                    deliveries.append(
                        Delivery(
                            served.task,
                            served.kind,
                            id,
                            key,
                            payload,
                            attempt,
                            due_at,
                            scheduled_at_initially,
                            lock_uuid,
                            served.lease_ms,
                            started + served.lease_ms / 1000,
                            keeper,
                        )
                    )
                elif place < 0:
                    held_back[-place - 1] = progress
                else:
                    served = kinds[place - 1]
                    now_us, next_due_at, gone, *heads[place - 1] = progress
                    self.database_clock.set(now_us, started)
                    if gone:
                        buried[served.kind] += gone
                    served.look_at = started if gone else self._look_at(started, now_us, next_due_at, period)
            self._note_served(kinds, deliveries, started)
            self._note_limits(kinds, held_back, deliveries, started, period)
        finally:
            for place, (served, start) in enumerate(zip(kinds, starts, strict=True)):
                served.heads.end_poll(start, None if self.connection.in_atomic_block else heads.get(place))
        return Leased(deliveries, dict(buried))

    def _look_at(self, started: float, now_us: int, next_due_at: int | None, period: float) -> float:
        if next_due_at is None:
            return started + period
        return started + min(period, max(0.0, (next_due_at * 1000 - now_us) / 1_000_000))

    def _note_served(self, kinds: Sequence[ServedKind], deliveries: Sequence[Delivery], started: float) -> None:
        counts = Counter(delivery.kind for delivery in deliveries)
        for served in kinds:
            if counts[served.kind]:
                served.served_at = started
                if served.look_at >= started + self.messages.poll_period:  # nothing known to be next: there may be more
                    served.look_at = started

    def _note_limits(
        self,
        kinds: Sequence[ServedKind],
        held_back: dict[int, list[Any]],
        deliveries: Sequence[Delivery],
        started: float,
        period: float,
    ) -> None:
        counted = set()
        for place, (now_us, again_at, flags, granted) in held_back.items():
            served = kinds[place]
            if flags & COUNTED:
                counted.add(served.kind)
            served.is_paused = bool(flags & PAUSED)
            served.is_held_back = granted is not None and granted <= 0 and not served.is_paused
            if served.is_paused or (served.is_held_back and again_at is None):
                served.look_at = started + period  # a change is announced
            elif served.is_held_back:
                served.look_at = max(started + SHORTEST_WAIT, self._look_at(started, now_us, again_at, period))
        if counted:
            for delivery in deliveries:
                delivery.is_limited = delivery.kind in counted

    # Settling: each guarded by the fence

    def finish(self, deliveries: Iterable[Delivery]) -> Settled:
        """Delete what was done, and write the history of it."""
        done = sorted(deliveries, key=_by_key)
        ms = self.database_clock.ms
        parameters = (
            integers(delivery.id for delivery in done),
            texts(delivery.lock_uuid for delivery in done),
            integers(delivery.due_at for delivery in done),
            integers(ms(delivery.started) for delivery in done),
            integers(delivery.duration_us for delivery in done),
            "{" + ",".join(["t" if records(delivery) else "f" for delivery in done]) + "}",
            self.identity.id,
        )
        return Settled.at(done, self.messages._value(statements.FINISH, parameters))

    def settle(self, deliveries: Iterable[Delivery]) -> Settled:
        """Retry, snooze, give back, bury. The outcome of one that has no attempt left becomes "dead"."""
        given = sorted(deliveries, key=_by_key)
        settled = [
            {
                "place": place,
                "id": delivery.id,
                "lock_uuid": delivery.lock_uuid,
                "outcome": delivery.outcome,
                "delay": delivery.delay_ms,
                "error": delivery.error,
                "max_attempts": delivery.task.max_attempts,
                "reason": delivery.reason,
                "summary": delivery.summary,
                "recorded": records(delivery),
                **self._times(delivery),
            }
            for place, delivery in enumerate(given, start=1)
        ]
        parameters = (json.dumps(settled), self.identity.id, self.messages._horizon, self.messages._now)
        became = {int(place): outcome for place, outcome in self.messages._value(statements.SETTLE, parameters).items()}
        for place, outcome in became.items():
            if outcome != "locked":
                given[place - 1].outcome = outcome
        return Settled.at(given, [-place if outcome == "locked" else place for place, outcome in became.items()])

    def record_lost(self, deliveries: Iterable[Delivery]) -> None:
        lost = [
            {"kind": delivery.kind, "key": delivery.key, "attempt": delivery.attempt, **self._times(delivery)}
            for delivery in deliveries
            if journal_of(delivery.task) != "none"
        ]
        if lost:
            parameters = {"lost": json.dumps(lost), "worker": self.identity.id, "now": None}
            self.messages._run(_rowcount, statements.RECORD_LOST, parameters)

    def _times(self, delivery: Delivery) -> dict[str, int | None]:
        if not delivery.started:
            return {"due_at": delivery.due_at, "started_at": None, "duration": None}
        return {
            "due_at": delivery.due_at,
            "started_at": self.database_clock.ms(delivery.started),
            "duration": delivery.duration_us,
        }

    def free_slots(self, deliveries: Iterable[Delivery]) -> None:
        freed = Counter((delivery.lock_uuid, delivery.kind) for delivery in deliveries)
        parameters = {
            "lock_uuids": texts(lock_uuid for lock_uuid, _ in freed),
            "kinds": texts(kind for _, kind in freed),
            "counts": integers(freed.values()),
            "notify": settings.NOTIFY,
        }
        self.messages._run(_rowcount, statements.FREE_SLOTS, parameters)

    # Holding on

    def extend(self, deliveries: Iterable[Delivery]) -> Settled:
        """Renew the leases."""
        held = sorted(deliveries, key=_by_key)
        started = time.monotonic()
        parameters = (
            integers(delivery.id for delivery in held),
            texts(delivery.lock_uuid for delivery in held),
            integers(delivery.lease_ms for delivery in held),
            self.messages._now,
        )
        found = Settled.at(held, self.messages._value(statements.EXTEND_MANY, parameters))
        for delivery in found.ours:
            delivery.held_until = started + delivery.lease_ms / 1000
        return found

    def keep_slots(self, lease_ms: int) -> None:
        parameters = {"lease": lease_ms, "lock_prefix": self.identity.lock_prefix, "now": self.messages._now}
        self.messages._run(_rowcount, statements.KEEP_SLOTS, parameters)

    def reclaim(
        self,
        kinds: Sequence[ServedKind],
        lock_prefix: str,
        started: Sequence[int] = (),
        error: str | None = None,
    ) -> int:
        """Release what was leased with such locks. ``started``: the ids of what was being handled."""
        longest = max((served.lease_ms for served in kinds), default=0)
        parameters = (
            texts(served.kind for served in kinds),
            lock_prefix,
            longest + 1000,
            integers(started),
            error,
            self.identity.id,
            self.messages._now,
        )
        return int(self.messages._value(statements.RECLAIM, parameters))

    # The row of this worker

    def beat(self, kinds: Sequence[ServedKind], threads: int, state: str, counts: dict[str, int]) -> None:
        parameters = {
            "id": self.identity.id,
            "host": self.identity.host,
            "pid": self.identity.pid,
            "kinds": json.dumps(sorted(served.kind for served in kinds)),
            "threads": threads,
            "state": state,
            "version": __version__,
            "now": None,
            **counts,
        }
        self.messages._run(_rowcount, statements.BEAT, parameters)

    def leave(self) -> None:
        self.messages._run(_rowcount, statements.LEAVE, [self.identity.id])


def journal_of(task: Task[..., Any]) -> str:
    return task.journal or settings.JOURNAL


def records(delivery: Delivery) -> bool:
    """Whether this delivery is written to the history. What was only given back was no delivery."""
    journal = journal_of(delivery.task)
    if delivery.outcome == "released" and not delivery.started:
        return False
    return journal == "all" or (journal == "failures" and delivery.outcome not in ("done", "snoozed", "released"))
