"""Offer, poll, acknowledge: the operations of the queue, each one statement on Django's connection.

Times go in as aware datetimes or durations and out as milliseconds; payloads are bytes. DelayedQueue and the workers
stand on this manager, and put values for the bytes and memory for the poller on top.
"""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter, itemgetter, methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections, models, router

from delayed_queue import batches, sessions
from delayed_queue.arrays import integers, texts
from delayed_queue.clocks import LARGEST_BIGINT, Clock, Duration, duration_ms, from_ms, positive_ms, to_ms
from delayed_queue.conf import settings
from delayed_queue.errors import InvalidInput, error_text
from delayed_queue.heads import Start
from delayed_queue.messages import (
    BatchEnvelope,
    DropOutcome,
    Envelope,
    Lease,
    OfferOutcome,
    Polled,
    QueueStats,
    ReadEnvelope,
    ScheduledMessage,
)
from delayed_queue.polling import Poller
from delayed_queue.retry import RetryConfig, in_transaction, retry_after
from delayed_queue.serializers import BytesSerializer
from delayed_queue.sql import statements
from delayed_queue.twins import async_twin
from delayed_queue.validation import check_key, check_kind, check_max_attempts, check_payload, check_priority

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from delayed_queue.models import DelayedMessage  # noqa: F401  # for the manager's type


as_it_is = BytesSerializer()

R = TypeVar("R")
T = TypeVar("T")

DEFAULT_LEASE = 300.0
DROP_ALL_CONFIRMATION = "Yes, please, I know what I'm doing!"


class DelayedMessageManager(models.Manager["DelayedMessage"]):
    clock: Clock | None = None
    retry = RetryConfig()
    _poll_period: float | None = None
    _of_thread: threading.local | None = None

    def configured(
        self,
        *,
        using: str | None = None,
        clock: Clock | None = None,
        retry: RetryConfig | None = None,
        poll_period: float | None = None,
    ) -> DelayedMessageManager:
        """This manager on another database, with another clock, other retries, or another time between two polls."""
        manager = copy.copy(self)
        manager._db = using or self._db
        manager.clock = clock or self.clock
        manager.retry = retry or self.retry
        manager._poll_period = poll_period or self._poll_period
        manager._of_thread = threading.local() if manager._db else None
        return manager

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """Django's connection of this thread; looked up once where the alias is given, which is 4 % of an offer."""
        if self._db is None or self._of_thread is None:
            return connections[self._db or router.db_for_write(self.model)]
        found: BaseDatabaseWrapper | None = getattr(self._of_thread, "connection", None)
        if found is None or found.alias != self._db:
            found = self._of_thread.connection = connections[self._db]
        return found

    @property
    def poll_period(self) -> float:
        return self._poll_period or settings.POLL_PERIOD

    # Offering

    def offer_or_update(
        self,
        *,
        kind: str,
        key: str,
        payload: bytes,
        schedule_at: datetime,
        priority: int = 0,
        max_attempts: int | None = None,
        expires_at: datetime | None = None,
        max_wait: Duration | None = None,
    ) -> OfferOutcome:
        outcome, _ = self.offer(True, kind, key, payload, schedule_at, priority, max_attempts, expires_at, max_wait)
        return outcome

    def offer_if_not_exists(
        self,
        *,
        kind: str,
        key: str,
        payload: bytes,
        schedule_at: datetime,
        priority: int = 0,
        max_attempts: int | None = None,
        expires_at: datetime | None = None,
        max_wait: Duration | None = None,
    ) -> OfferOutcome:
        outcome, _ = self.offer(False, kind, key, payload, schedule_at, priority, max_attempts, expires_at, max_wait)
        return outcome

    def offer(
        self,
        can_update: bool,
        kind: str,
        key: str,
        payload: bytes,
        schedule_at: datetime | None,
        priority: int = 0,
        max_attempts: int | None = None,
        expires_at: datetime | None = None,
        max_wait: Duration | None = None,
        delay: Duration | None = None,
        expires_after: Duration | None = None,
    ) -> tuple[OfferOutcome, int]:
        """The outcome, and when the message is due in milliseconds: earlier than asked if max_wait says so.

        With a delay, which counts from the queue's clock, schedule_at is None. expires_after counts from the time that
        is asked for. Of an offer that was ignored the time is the one asked for.
        """
        parameters: tuple[Any, ...] = (
            check_kind(kind),
            check_key(key),
            check_payload(payload),
            to_ms(schedule_at) if delay is None else None,  # type: ignore[arg-type]  # to_ms refuses None
            can_update,
            self._horizon,
            None if self.clock is None else self._now,
        )
        statement = statements.OFFER
        connection = self.connection
        joined = in_transaction(connection)
        options = (priority, max_attempts, expires_at, max_wait, delay, expires_after)
        if joined or options != (0, None, None, None, None, None):
            statement = statements.OFFER_WITH_OPTIONS
            parameters += (
                check_priority(priority),
                check_max_attempts(max_attempts),
                None if expires_at is None else to_ms(expires_at, "expires_at"),
                None if max_wait is None else positive_ms(max_wait, "max_wait"),
                joined,
                None if delay is None else _delay_ms(delay),
                None if expires_after is None else _expires_after_ms(expires_after, delay or 0),
            )
        outcome, _, scheduled_at = self._run(_fetchone, statement, parameters, connection)[0].partition(" ")
        return OfferOutcome[outcome], int(scheduled_at) if scheduled_at else parameters[3]

    def offer_batch(
        self,
        messages: Iterable[ScheduledMessage[T]],
        *,
        kind: str,
        dumps: Callable[[T], bytes] = as_it_is.dumps,  # type: ignore[assignment]  # T is bytes then
    ) -> list[OfferOutcome]:
        return batches.offer(self, check_kind(kind), messages, dumps)

    # Polling

    def try_poll(self, *, kind: str, lease: Duration = DEFAULT_LEASE) -> Envelope[bytes] | None:
        return self._poller(kind, lease).try_poll()

    def try_poll_many(self, *, kind: str, limit: int, lease: Duration = DEFAULT_LEASE) -> BatchEnvelope[bytes]:
        return self._poller(kind, lease).try_poll_many(limit)

    def poll(
        self, *, kind: str, lease: Duration = DEFAULT_LEASE, timeout: Duration | None = None
    ) -> Envelope[bytes] | None:
        return self._poller(kind, lease).poll(timeout)

    async def apoll(
        self, *, kind: str, lease: Duration = DEFAULT_LEASE, timeout: Duration | None = None
    ) -> Envelope[bytes] | None:
        return await self._poller(kind, lease).apoll(timeout)

    def _poller(self, kind: str, lease: Duration) -> Poller[bytes]:
        return Poller(self, check_kind(kind), as_it_is, positive_ms(lease, "lease"), source=f"delayed_queue:{kind}")

    def lease(self, kind: str, limit: int, lease_ms: int, start: Start) -> Polled:
        """The poll as the database does it; see sql/poll.sql. Poller makes envelopes of it."""
        lock_uuid = str(uuid.uuid4())
        rows = self._run(
            _fetchall,
            statements.POLL,
            (kind, limit, lease_ms, lock_uuid, self._now, None, start.bounded, start.heads),
            run=sessions.run_for_many,
        )
        now_us, next_due_at, buried, *heads = rows.pop()[-1]
        rows.sort(key=_time_and_id)
        if len(heads) > 3:
            rows.sort(key=_priority, reverse=True)  # which keeps the order of equal ones
        return Polled(rows, lock_uuid, now_us, next_due_at, buried, heads)

    # Settling: each is guarded by the fence, (id, lockUuid)

    def acknowledge(self, envelopes: Sequence[Envelope[Any]]) -> list[int]:
        """Delete what is still leased to its envelope, and return the ids of that."""
        held = sorted(
            (envelope for envelope in envelopes if envelope._lease.lock_uuid is not None),
            key=attrgetter("_lease.kind", "key"),
        )
        if not held:
            return []
        parameters = (
            integers(envelope.id for envelope in held),
            texts(str(envelope._lease.lock_uuid) for envelope in held),
        )
        return self._value(statements.ACK, parameters) or []

    def acknowledge_read(self, envelope: Envelope[Any]) -> bool:
        parameters = {
            "id": envelope.id,
            "created_at": envelope._created_at,
            "scheduled_at_initially": envelope._scheduled_at_initially,
            "now": self._now,
        }
        return bool(self._run(_rowcount, statements.ACK_READ, parameters))

    def release(
        self,
        envelope: Envelope[Any],
        *,
        delay: Duration | None = None,
        error: object = None,
        refund: bool = False,
    ) -> bool:
        """With ``refund`` the attempt is not counted."""
        parameters = {
            "id": envelope.id,
            "lock_uuid": envelope.lock_uuid,
            "delay": 0 if delay is None else _delay_ms(delay),
            "refund": int(refund),
            "in_transaction": self._in_transaction,
            "error": None if error is None else error_text(error),
            "horizon": self._horizon,
            "now": self._now,
        }
        return self._moved(envelope, self._run(_fetchone, statements.RELEASE, parameters))

    def extend(self, envelope: Envelope[Any], *, lease: Duration | None = None) -> bool:
        parameters = {
            "id": envelope.id,
            "lock_uuid": envelope.lock_uuid,
            "lease": envelope._lease.ms if lease is None else positive_ms(lease, "lease"),
            "now": self._now,
        }
        return self._moved(envelope, self._run(_fetchone, statements.EXTEND, parameters))

    def _moved(self, envelope: Envelope[Any], row: tuple[Any, ...] | None) -> bool:
        """Its poller must not look for the message after where it is now."""
        if row is None:
            return False
        priority, scheduled_at, *_ = row
        heads = envelope._lease.heads
        if heads is not None:
            self.now_and_at_commit(lambda: heads.lower(priority, scheduled_at))
        return True

    def bury(self, *, id: int, lock_uuid: str, reason: str, error: object) -> bool:
        """Move a leased message to the dead ones."""
        parameters = {
            "id": id,
            "lock_uuid": lock_uuid,
            "reason": reason,
            "error": error_text(error),
            "now": self._now,
        }
        return bool(self._run(_rowcount, statements.BURY, parameters))

    # Looking and dropping

    def drop(self, *, kind: str, key: str) -> DropOutcome:
        parameters = {"kind": check_kind(kind), "key": check_key(key), "now": self._now}
        row = self._run(_fetchone, statements.DROP, parameters)
        if row is None:
            return DropOutcome.ABSENT
        return DropOutcome.DROPPED_WHILE_LEASED if row[0] else DropOutcome.DROPPED

    def drop_all(self, confirm: str, *, kind: str) -> int:
        if confirm != DROP_ALL_CONFIRMATION:
            raise InvalidInput(
                f"drop_all deletes every message of the kind. If that is meant, pass {DROP_ALL_CONFIRMATION!r}."
            )
        return int(self._run(_rowcount, statements.DROP_ALL, {"kind": check_kind(kind)}))

    def snapshot(self, *, kind: str, key: str) -> tuple[Any, ...] | None:
        """The row of statements.SNAPSHOT: the message with its state, be it dead."""
        parameters = {"kind": check_kind(kind), "key": check_key(key), "now": self._now}
        return self._run(_fetchone, statements.SNAPSHOT, parameters)  # type: ignore[no-any-return]

    def contains(self, *, kind: str, key: str) -> bool:  # type: ignore[override]  # by key, as all operations here
        return bool(self._value(statements.CONTAINS, (check_key(key), check_kind(kind))))

    def read(
        self,
        *,
        kind: str,
        key: str,
        loads: Callable[[bytes], T] = as_it_is.loads,  # type: ignore[assignment]  # T is bytes then
        source: str | None = None,
    ) -> ReadEnvelope[T] | None:
        parameters = {"kind": check_kind(kind), "key": check_key(key), "now": self._now}
        row = self._run(_fetchone, statements.READ, parameters)
        if row is None:
            return None
        id, payload, attempts, scheduled_at, scheduled_at_initially, created_at, now = row
        lease = Lease(self, kind, source or f"delayed_queue:{kind}", now * 1000, 0, lock_uuid=None, heads=None)
        return ReadEnvelope(lease, loads(payload), id, key, attempts, scheduled_at, scheduled_at_initially, created_at)

    def stats(self, *, kind: str) -> QueueStats:
        parameters = {"kind": check_kind(kind), "now": self._now}
        scheduled, due, leased, stalled, dead, oldest, soonest = self._run(_fetchone, statements.STATS, parameters)
        return QueueStats(
            scheduled=scheduled,
            due=due,
            leased=leased,
            stalled=stalled,
            dead=dead,
            oldest_due_at=None if oldest is None else from_ms(oldest),
            next_due_at=None if soonest is None else from_ms(soonest),
        )

    def now_ms(self) -> int:
        """The queue's clock."""
        now = self._now
        return int(self._value(statements.CLOCK, {"now": None})) if now is None else now

    aoffer_or_update = async_twin(offer_or_update)
    aoffer_if_not_exists = async_twin(offer_if_not_exists)
    aoffer_batch = async_twin(offer_batch)
    atry_poll = async_twin(try_poll)
    atry_poll_many = async_twin(try_poll_many)
    aacknowledge = async_twin(acknowledge)
    arelease = async_twin(release)
    aextend = async_twin(extend)
    adrop = async_twin(drop)
    adrop_all = async_twin(drop_all)
    acontains = async_twin(contains)  # type: ignore[arg-type]
    aread = async_twin(read)
    astats = async_twin(stats)

    # The way to the database

    def now_and_at_commit(self, lower_heads: Callable[[], None]) -> None:
        """A poller's heads must not stand past what was just put in, nor past what the caller's commit will show."""
        lower_heads()
        if self.connection.in_atomic_block:
            self.connection.on_commit(lower_heads)

    @property
    def _in_transaction(self) -> bool:
        return in_transaction(self.connection)

    @property
    def _now(self) -> int | None:
        """The injected clock; None stands for the database's."""
        return None if self.clock is None else to_ms(self.clock(), "The clock's time")

    @property
    def _horizon(self) -> int | None:
        """How soon a message must be due to be announced: before the next poll would see it."""
        if not settings.NOTIFY:
            return None
        return int((self._poll_period or settings.POLL_PERIOD) * 1000)

    def _value(self, statement: str, parameters: Any) -> Any:
        return self._run(_fetchone, statement, parameters)[0]

    def _run(
        self,
        fetch: Callable[[Any], R],
        statement: str,
        parameters: Any,
        connection: BaseDatabaseWrapper | None = None,
        run: Callable[..., R] = sessions.run,
    ) -> R:
        connection = connection or self.connection
        started = time.monotonic()
        try:
            return run(connection, fetch, statement, parameters)
        except Exception as error:
            again = partial(run, connection, fetch, statement, parameters)
            return retry_after(error, started, connection, self.retry, again)


def _delay_ms(delay: Duration) -> int:
    ms = duration_ms(delay, "delay")
    if ms < 0:
        raise InvalidInput(f"delay must not be negative, not {delay}.")
    return ms


def _expires_after_ms(expires_after: Duration, delay: Duration) -> int:
    ms = positive_ms(expires_after, "expires")
    if ms + _delay_ms(delay) > LARGEST_BIGINT // 2:
        raise InvalidInput(f"expires of {expires_after} after a delay of {delay} leaves the range of a bigint.")
    return ms


# Of a row of sql/poll.sql
_priority = itemgetter(3)
_time_and_id = itemgetter(5, 0)

_fetchone = methodcaller("fetchone")
_fetchall = methodcaller("fetchall")
_rowcount = attrgetter("rowcount")
