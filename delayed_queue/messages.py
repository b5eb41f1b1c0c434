"""The values that go in and come out: what to schedule, how it went, and a message in hand."""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from delayed_queue.clocks import Duration, from_ms
from delayed_queue.retry import Backoff
from delayed_queue.twins import async_twin, in_thread

if TYPE_CHECKING:
    from delayed_queue.heads import Heads
    from delayed_queue.managers import DelayedMessageManager

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
logger = logging.getLogger("delayed_queue")


class OfferOutcome(enum.Enum):
    CREATED = "CREATED"
    UPDATED = "UPDATED"
    IGNORED = "IGNORED"


class DropOutcome(enum.Enum):
    DROPPED = "DROPPED"
    DROPPED_WHILE_LEASED = "DROPPED_WHILE_LEASED"
    ABSENT = "ABSENT"

    def __bool__(self) -> bool:
        return self is not DropOutcome.ABSENT


class DeliveryType(enum.Enum):
    FIRST_DELIVERY = "FIRST_DELIVERY"
    REDELIVERY = "REDELIVERY"


@dataclass(frozen=True, slots=True)
class ScheduledMessage(Generic[T]):
    """One message of a batch."""

    key: str
    payload: T
    schedule_at: datetime
    can_update: bool = True
    priority: int = 0
    max_attempts: int | None = None
    expires_at: datetime | None = None
    max_wait: Duration | None = None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many messages of a kind are in which state; each is counted in one of the first four."""

    scheduled: int
    due: int
    leased: int
    stalled: int
    dead: int
    oldest_due_at: datetime | None
    next_due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Polled:
    """The rows of one poll in the order of delivery, and what it learned on the way."""

    rows: list[tuple[Any, ...]]
    lock_uuid: str
    now_us: int
    next_due_at: int | None
    buried: int
    heads: list[int]


@dataclass(frozen=True, slots=True)
class Lease:
    """What the messages of one poll have in common."""

    messages: DelayedMessageManager
    kind: str
    source: str
    now_us: int
    ms: int
    lock_uuid: str | None
    heads: Heads | None


class Envelope(Generic[T]):
    """A message in hand: what was polled, and the lease that it was polled with.

    As a context manager it acknowledges at the end of the block; on an exception it releases the message, later with
    each attempt, and lets the exception through.
    """

    __slots__ = (
        "_created_at",
        "_due_at",
        "_lease",
        "_scheduled_at_initially",
        "_settled",
        "attempt",
        "id",
        "key",
        "payload",
    )

    def __init__(
        self,
        lease: Lease,
        payload: T,
        id: int,
        key: str,
        attempt: int,
        due_at: int,
        scheduled_at_initially: int,
        created_at: int,
    ) -> None:
        self._lease = lease
        self.payload = payload
        self.id = id
        self.key = key
        self.attempt = attempt
        self._due_at = due_at
        self._scheduled_at_initially = scheduled_at_initially
        self._created_at = created_at
        self._settled = False

    @property
    def kind(self) -> str:
        return self._lease.kind

    @property
    def source(self) -> str:
        return self._lease.source

    @property
    def lock_uuid(self) -> str | None:
        return self._lease.lock_uuid

    @property
    def timestamp(self) -> datetime:
        """The clock at the poll."""
        return from_ms(self._lease.now_us // 1000)

    @property
    def scheduled_for(self) -> datetime:
        """When it was to be delivered at first; leases and retries do not move it."""
        return from_ms(self._scheduled_at_initially)

    @property
    def delivery_type(self) -> DeliveryType:
        if self._due_at > self._scheduled_at_initially:
            return DeliveryType.REDELIVERY
        return DeliveryType.FIRST_DELIVERY

    def acknowledge(self) -> bool:
        """Delete the message. False if the lease is not ours any more, or the message is gone."""
        self._settled = True
        return bool(self._lease.messages.acknowledge([self]))

    def release(self, delay: Duration | None = None, error: object = None) -> bool:
        """Give the message back, to be delivered again after the delay (None: at once)."""
        self._settled = True
        return self._lease.messages.release(self, delay=delay, error=error)

    def give_back(self) -> bool:
        """Release the message at once, as if it had not been polled: no attempt is spent."""
        self._settled = True
        return self._lease.messages.release(self, refund=True)

    def extend(self, lease: Duration | None = None) -> bool:
        """Hold the message for the lease's time from now on (None: as long as it was polled for)."""
        return self._lease.messages.extend(self, lease=lease)

    async def aacknowledge(self) -> bool:
        return await in_thread(self.acknowledge)

    async def arelease(self, delay: Duration | None = None, error: object = None) -> bool:
        return await in_thread(self.release, delay, error)

    async def aextend(self, lease: Duration | None = None) -> bool:
        return await in_thread(self.extend, lease)

    def __enter__(self) -> Envelope[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._release_after(error)
        elif not self._settled and not self.acknowledge():
            logger.warning(
                "The lease of %s was lost before its handling ended; it was or will be delivered again",
                self.key,
                extra={"key": self.key, "kind": self.kind, "attempt": self.attempt},
            )

    def _release_after(self, error: BaseException) -> None:
        """Also if it was settled inside: in a transaction that the error rolled back it was not, else the fence holds.

        What goes wrong here is told, but the caller's error is the one to see.
        """
        try:
            if isinstance(error, Exception):
                self.release(Backoff().seconds(self.attempt), error=error)
            else:  # the process is told to stop; that is not the message's fault
                self.give_back()
        except Exception:
            logger.exception(
                "%s could not be released and will be delivered when its lease is over",
                self.key,
                extra={"key": self.key, "kind": self.kind, "attempt": self.attempt},
            )

    async def __aenter__(self) -> Envelope[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await in_thread(self.__exit__, kind, error, traceback)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} of {self.kind!r}, attempt {self.attempt}>"


class ReadEnvelope(Envelope[T]):
    """A message that was looked at without a lease: it can be deleted while it is the one that was read."""

    __slots__ = ()

    def acknowledge(self) -> bool:
        self._settled = True
        return self._lease.messages.acknowledge_read(self)

    def release(self, delay: Duration | None = None, error: object = None) -> bool:
        return False

    def give_back(self) -> bool:
        return False

    def extend(self, lease: Duration | None = None) -> bool:
        return False


class BatchEnvelope(Sequence[Envelope[T]]):
    """What one poll gave, in the order of delivery."""

    __slots__ = ("_envelopes", "_messages")

    def __init__(self, messages: DelayedMessageManager, envelopes: Sequence[Envelope[T]]) -> None:
        self._messages = messages
        self._envelopes = envelopes

    @property
    def payloads(self) -> list[T]:
        return [envelope.payload for envelope in self._envelopes]

    def acknowledge(self, subset: Iterable[Envelope[T]] | None = None) -> int:
        """Delete the messages, or those of the subset, and say how many were still ours to delete."""
        envelopes = self._envelopes if subset is None else list(subset)
        for envelope in envelopes:
            envelope._settled = True
        return len(self._messages.acknowledge(envelopes))

    aacknowledge = async_twin(acknowledge)

    @overload
    def __getitem__(self, index: int) -> Envelope[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Envelope[T]]: ...
    def __getitem__(self, index: int | slice) -> Envelope[T] | Sequence[Envelope[T]]:
        return self._envelopes[index]

    def __len__(self) -> int:
        return len(self._envelopes)

    def __repr__(self) -> str:
        return f"<BatchEnvelope of {len(self)}>"
