"""A delivery: one attempt at one message, as its handler sees it and as the worker carries it along."""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from delayed_queue.clocks import Duration, from_ms, positive_ms
from delayed_queue.twins import in_thread

if TYPE_CHECKING:
    from delayed_queue.tasks.task import Task


class Keeper(Protocol):
    """Who renews leases: on a connection of its own, because the handler's may be inside a transaction."""

    def extend(self, delivery: Delivery, lease_ms: int) -> bool: ...


class Delivery:
    """The first block is what was leased, the second what became of it (see workers/executor.py)."""

    __slots__ = (
        "_scheduled_at_initially",
        "attempt",
        "delay_ms",
        "due_at",
        "duration_us",
        "error",
        "exception",
        "held_until",
        "id",
        "is_limited",
        "is_lost",
        "is_settled",
        "keeper",
        "key",
        "kind",
        "lease_ms",
        "lock_uuid",
        "outcome",
        "payload",
        "reason",
        "started",
        "summary",
        "task",
    )

    def __init__(
        self,
        task: Task[..., Any],
        kind: str,
        id: int,
        key: str,
        payload: bytes,
        attempt: int,
        due_at: int,
        scheduled_at_initially: int,
        lock_uuid: str,
        lease_ms: int,
        held_until: float,
        keeper: Keeper,
    ) -> None:
        self.task = task
        self.kind = kind
        self.id = id
        self.key = key
        self.payload = payload
        self.attempt = attempt
        self.due_at = due_at
        self._scheduled_at_initially = scheduled_at_initially
        self.lock_uuid = lock_uuid
        self.lease_ms = lease_ms
        self.held_until = held_until  # on the monotonic clock
        self.keeper = keeper
        self.is_limited = False
        self.is_lost = False

        self.started = 0.0  # on the monotonic clock; 0: not yet
        self.outcome = ""
        self.is_settled = False  # in the database, too
        self.duration_us = 0
        self.delay_ms = 0
        self.exception: BaseException | None = None  # what the handler raised, for receivers of signals
        self.error: str | None = None
        self.summary: str | None = None
        self.reason: str | None = None

    @property
    def scheduled_for(self) -> datetime:
        """When it was to be delivered at first; leases and retries do not move it."""
        return from_ms(self._scheduled_at_initially)

    @property
    def lease_held(self) -> bool:
        """False once the message may be, or is, another worker's. What this handler does then may be done twice."""
        return not self.is_lost and time.monotonic() < self.held_until

    def extend(self, lease: Duration | None = None) -> bool:
        """Hold the message for this long from now on (None: the task's lease). False if it was lost.

        Workers do so by themselves while the handler runs; this is for one that blocks its whole process for longer.
        """
        return self.keeper.extend(self, self.lease_ms if lease is None else positive_ms(lease, "lease"))

    async def aextend(self, lease: Duration | None = None) -> bool:
        return await in_thread(self.extend, lease)

    @property
    def told(self) -> dict[str, object]:
        """For the ``extra`` of a log record."""
        return {"key": self.key, "kind": self.kind, "attempt": self.attempt}

    def __repr__(self) -> str:
        return f"<Delivery {self.key!r} of {self.kind!r}, attempt {self.attempt}>"


_current: ContextVar[Delivery] = ContextVar("delayed_queue_delivery")


def current_delivery() -> Delivery | None:
    """The delivery whose handler is running here; None outside of a handler."""
    return _current.get(None)
