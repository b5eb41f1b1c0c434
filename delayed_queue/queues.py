"""DelayedQueue: values instead of bytes, on one kind of messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from delayed_queue.clocks import Clock, Duration, positive_ms
from delayed_queue.conf import settings
from delayed_queue.heads import Heads
from delayed_queue.kinds import queue_kind
from delayed_queue.messages import (
    BatchEnvelope,
    DropOutcome,
    Envelope,
    OfferOutcome,
    QueueStats,
    ScheduledMessage,
)
from delayed_queue.polling import Poller
from delayed_queue.retry import RetryConfig
from delayed_queue.serializers import Serializer, TextSerializer
from delayed_queue.twins import async_twin
from delayed_queue.validation import check_kind, check_queue_name

if TYPE_CHECKING:
    from delayed_queue.managers import DelayedMessageManager

T = TypeVar("T")


class DelayedQueue(Generic[T]):
    """A queue whose messages are delivered at their time, at least once.

    Making one touches neither the database nor Django's models, so that it may stand at the head of a module. It can be
    shared by threads.
    """

    def __init__(
        self,
        name: str,
        serializer: Serializer[T] | None = None,
        using: str | None = None,
        acquire_timeout: Duration = timedelta(minutes=5),
        poll_period: Duration | None = None,
        retry: RetryConfig | None = None,
        clock: Clock | None = None,
        source: str | None = None,
    ) -> None:
        self.name = check_queue_name(name)
        self.serializer: Serializer[Any] = TextSerializer() if serializer is None else serializer
        self.kind = queue_kind(name, self.serializer.type_name)
        self._using = using
        self._lease_ms = positive_ms(acquire_timeout, "lease")
        self._poll_period = None if poll_period is None else positive_ms(poll_period, "poll_period") / 1000
        self._retry = retry
        self._clock = clock
        self._heads = Heads()
        self._manager: Any = None  # not before the models are ready
        self.source = source or f"delayed_queue:{name}"

    @classmethod
    def for_kind(cls, kind: str, serializer: Serializer[T] | None = None, **options: Any) -> DelayedQueue[T]:
        """The queue of a kind that is named directly, for example ``namespace|name``."""
        queue = cls(check_kind(kind).replace("|", "/"), serializer, **options)
        queue.name = queue.kind = kind
        queue.source = options.get("source") or f"delayed_queue:{kind}"
        return queue

    def offer_or_update(
        self,
        key: str,
        payload: T,
        schedule_at: datetime,
        *,
        priority: int = 0,
        max_attempts: int | None = None,
        expires_at: datetime | None = None,
        max_wait: Duration | None = None,
    ) -> OfferOutcome:
        """Schedule the message, or change what is scheduled under its key.

        A change takes the message away from whoever holds it leased. With ``max_wait`` the time moves back with every
        offer, but never further than that after the first one.
        """
        outcome, scheduled_at = self._messages().offer(
            True, self.kind, key, self.serializer.dumps(payload), schedule_at,
            priority, max_attempts, expires_at, max_wait,
        )  # fmt: skip
        if self._heads.in_use:
            self._messages().now_and_at_commit(lambda: self._heads.lower(priority, scheduled_at))
        return outcome

    def offer_if_not_exists(
        self,
        key: str,
        payload: T,
        schedule_at: datetime,
        *,
        priority: int = 0,
        max_attempts: int | None = None,
        expires_at: datetime | None = None,
        max_wait: Duration | None = None,
    ) -> OfferOutcome:
        """Schedule the message, unless one is scheduled under its key."""
        outcome, scheduled_at = self._messages().offer(
            False, self.kind, key, self.serializer.dumps(payload), schedule_at,
            priority, max_attempts, expires_at, max_wait,
        )  # fmt: skip
        if self._heads.in_use:
            self._messages().now_and_at_commit(lambda: self._heads.lower(priority, scheduled_at))
        return outcome

    def offer_batch(self, messages: Iterable[ScheduledMessage[T]]) -> list[OfferOutcome]:
        """Schedule any number of messages in one transaction; the outcomes are in the order of the messages."""
        outcomes = self._messages().offer_batch(messages, kind=self.kind, dumps=self.serializer.dumps)
        if self._heads.in_use:
            self._messages().now_and_at_commit(self._heads.forget)
        return outcomes

    def try_poll(self) -> Envelope[T] | None:
        """The next message that is due, leased for ``acquire_timeout``; None if there is none."""
        return self._poller.try_poll()

    def try_poll_many(self, limit: int) -> BatchEnvelope[T]:
        """Up to ``limit`` messages that are due, in the order of their delivery."""
        return self._poller.try_poll_many(limit)

    def poll(self, timeout: Duration | None = None) -> Envelope[T] | None:
        """Wait for the next message, for the timeout at the most (None: for ever)."""
        return self._poller.poll(timeout)

    async def apoll(self, timeout: Duration | None = None) -> Envelope[T] | None:
        return await self._poller.apoll(timeout)

    def read(self, key: str) -> Envelope[T] | None:
        """The message as it stands, without a lease."""
        return self._messages().read(kind=self.kind, key=key, loads=self.serializer.loads, source=self.source)

    def contains(self, key: str) -> bool:
        return self._messages().contains(kind=self.kind, key=key)

    def drop(self, key: str) -> DropOutcome:
        """Take the message out, also from whoever holds it leased. True unless there was none."""
        return self._messages().drop(kind=self.kind, key=key)

    def drop_all(self, confirm: str) -> int:
        return self._messages().drop_all(confirm, kind=self.kind)

    def stats(self) -> QueueStats:
        return self._messages().stats(kind=self.kind)

    aoffer_or_update = async_twin(offer_or_update)
    aoffer_if_not_exists = async_twin(offer_if_not_exists)
    aoffer_batch = async_twin(offer_batch)
    atry_poll = async_twin(try_poll)
    atry_poll_many = async_twin(try_poll_many)
    aread = async_twin(read)
    acontains = async_twin(contains)
    adrop = async_twin(drop)
    adrop_all = async_twin(drop_all)
    astats = async_twin(stats)

    def __repr__(self) -> str:
        return f"<DelayedQueue {self.name!r}, kind {self.kind!r}>"

    def _messages(self) -> DelayedMessageManager:
        if self._manager is None:
            from delayed_queue.models import DelayedMessage

            self._manager = DelayedMessage.objects.configured(
                using=self._using or settings.DATABASE,
                clock=self._clock,
                retry=self._retry,
                poll_period=self._poll_period,
            )
        return self._manager  # type: ignore[no-any-return]

    @cached_property
    def _poller(self) -> Poller[T]:
        return Poller(self._messages(), self.kind, self.serializer, self._lease_ms, self.source, self._heads)
