"""For the tests of a project that uses the queue: look at what was offered, and deliver it here and now.

Everything happens in the test's own thread and transaction, so that ``TestCase`` works and no worker need run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections
from psycopg.pq import TransactionStatus

from delayed_queue.clocks import Duration
from delayed_queue.conf import settings
from delayed_queue.models import DelayedMessage
from delayed_queue.tasks import Delivery, Task, TaskMessage, Verdict
from delayed_queue.tasks.registry import isolated_registry
from delayed_queue.workers.executor import Executor
from delayed_queue.workers.identity import Identity
from delayed_queue.workers.options import WorkerOptions
from delayed_queue.workers.settler import Settler
from delayed_queue.workers.store import Store

__all__ = ["Drained", "FrozenClock", "HandlerFailed", "drain", "isolated_registry", "offered"]

BATCH = 100


class HandlerFailed(AssertionError):
    """A handler raised; its exception is the cause."""


@dataclass
class Drained:
    """What was delivered, in the order of delivery, and what became of it."""

    deliveries: list[Delivery] = field(default_factory=list)

    def outcomes(self) -> list[tuple[str, str]]:
        """Pairs of a key and ``done``, ``retried``, ``snoozed`` or ``dead``."""
        return [(delivery.key, delivery.outcome) for delivery in self.deliveries]

    def __len__(self) -> int:
        return len(self.deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries)


def drain(
    *tasks: Task[..., Any],
    now: datetime | None = None,
    raise_errors: bool = True,
    limit: int | None = None,
    database: str | None = None,
) -> Drained:
    """Deliver what is due, as a worker would, until nothing is; of these tasks, or of all that are registered.

    ``now`` is the moment that the queue takes it to be: give a later one to deliver what is scheduled until then. The
    first handler that fails makes the test fail, unless ``raise_errors`` is false; then its message is retried or dead,
    as its task says. Messages that handlers offer are delivered, too; ``limit`` stops those that go on for ever.
    """
    kinds = [kind for task in tasks for kind in task.kinds]
    alias = database or settings.DATABASE
    served = WorkerOptions(database=alias, kinds=tuple(kinds)).served_kinds()
    store = Store(alias, Identity(), clock=None if now is None else lambda: now)
    executor, settler, keeper = _Executor(store), Settler(store), _Keeper(store)
    drained = Drained()
    while limit is None or len(drained) < limit:
        room = BATCH if limit is None else min(BATCH, limit - len(drained))
        leased = store.lease(served, [room, room], store.identity.new_lock_uuid(), keeper)
        if not leased.deliveries and not leased.buried:
            return drained
        surplus = leased.deliveries[room:]
        for delivery in surplus:
            delivery.outcome = "released"
        for delivery in leased.deliveries[:room]:
            executor.run(delivery, raise_errors)
            settler.settle([delivery])
            settler.tell([delivery])
            drained.deliveries.append(delivery)
        if surplus:
            settler.settle(surplus)
    return drained


def offered(task: Task[..., Any], database: str | None = None) -> list[TaskMessage]:
    """The messages of the task as they stand, the next one due first."""
    alias = database or settings.DATABASE
    keys = (
        DelayedMessage.objects.using(alias)
        .filter(kind=task.kind)
        .order_by("scheduled_at", "id")
        .values_list("key", flat=True)
    )
    messages = (task.message(key, database=alias) for key in keys)
    return [message for message in messages if message is not None]


class FrozenClock:
    """A clock that moves when it is told to, for ``DelayedQueue(clock=...)`` and ``drain(now=clock())``."""

    def __init__(self, now: datetime | None = None) -> None:
        self.now = datetime.now(UTC) if now is None else now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, duration: Duration) -> None:
        self.now += duration if isinstance(duration, timedelta) else timedelta(seconds=duration)


class _Executor(Executor):
    def run(self, delivery: Delivery, raise_errors: bool) -> None:
        with _usable_after_an_error(self._store.database):
            if delivery.task.is_async:
                copy_context().run(async_to_sync(self.aexecute), delivery)  # which would keep the handler's variables
            else:
                self.execute(delivery)
        error = delivery.exception
        if raise_errors and error is not None and not isinstance(error, Verdict):
            raise HandlerFailed(f"The handler of {delivery.key} ({delivery.kind}) failed: {error!r}") from error


@contextmanager
def _usable_after_an_error(alias: str) -> Iterator[None]:
    """A worker has no transaction open around a handler; a test has, and an error of the database would end it."""
    connection = connections[alias]
    if not connection.in_atomic_block:
        yield
        return
    savepoint = str(connection.savepoint())
    try:
        yield
    finally:
        if connection.connection.info.transaction_status == TransactionStatus.INERROR:
            connection.savepoint_rollback(savepoint)
        else:
            connection.savepoint_commit(savepoint)


class _Keeper:
    def __init__(self, store: Store) -> None:
        self._store = store

    def extend(self, delivery: Delivery, lease_ms: int) -> bool:
        delivery.lease_ms = lease_ms
        delivery.is_lost = bool(self._store.extend([delivery]).lost)
        return not delivery.is_lost
