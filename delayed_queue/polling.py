"""A poller: one kind, with the memory of where it stopped and the patience to wait for what is next."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from asgiref.sync import sync_to_async

from delayed_queue.bells import AsyncBell, Bell
from delayed_queue.clocks import Duration, duration_ms
from delayed_queue.errors import UndecodablePayload
from delayed_queue.heads import Heads
from delayed_queue.messages import BatchEnvelope, Envelope, Lease
from delayed_queue.serializers import Serializer

if TYPE_CHECKING:
    from delayed_queue.managers import DelayedMessageManager, Polled

T = TypeVar("T")
logger = logging.getLogger("delayed_queue")


class Poller(Generic[T]):
    def __init__(
        self,
        messages: DelayedMessageManager,
        kind: str,
        serializer: Serializer[T],
        lease_ms: int,
        source: str,
        heads: Heads | None = None,
    ) -> None:
        self.messages = messages
        self.kind = kind
        self.serializer = serializer
        self.lease_ms = lease_ms
        self.source = source
        self.heads = heads or Heads()

    def try_poll(self) -> Envelope[T] | None:
        envelopes, _ = self._take(1)
        return envelopes[0] if envelopes else None

    def try_poll_many(self, limit: int) -> BatchEnvelope[T]:
        envelopes, _ = self._take(limit)
        return BatchEnvelope(self.messages, envelopes)

    def poll(self, timeout: Duration | None = None) -> Envelope[T] | None:
        """Wait for a message, for the timeout at the most. None if there was none."""
        deadline = _deadline(timeout)
        with Bell(self.messages.connection, self.kind) as bell:
            while True:
                envelopes, wake_at = self._take(1)
                if envelopes:
                    return envelopes[0]
                if time.monotonic() >= deadline:
                    return None
                if bell.start_listening():
                    continue  # one may have been offered since the look; from now on it rings
                bell.wait(min(wake_at, deadline) - time.monotonic())

    async def apoll(self, timeout: Duration | None = None) -> Envelope[T] | None:
        """As poll(), without a thread held while it waits."""
        deadline = _deadline(timeout)
        async with AsyncBell(self.messages.connection, self.kind) as bell:
            while True:
                envelopes, wake_at = await self._take_one_or_give_back()
                if envelopes:
                    return envelopes[0]
                if time.monotonic() >= deadline:
                    return None
                if await bell.start_listening():
                    continue
                await bell.wait(min(wake_at, deadline) - time.monotonic())

    async def _take_one_or_give_back(self) -> tuple[list[Envelope[T]], float]:
        """A cancelled wait must not leave a message leased to nobody."""
        taking = asyncio.ensure_future(sync_to_async(self._take, thread_sensitive=True)(1))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            envelopes, _ = await taking
            for envelope in envelopes:
                await envelope.arelease()
            raise

    def _take(self, limit: int) -> tuple[list[Envelope[T]], float]:
        """Up to ``limit`` envelopes, and the monotonic time at which to look again."""
        envelopes: list[Envelope[T]] = []
        wake_at = 0.0
        while len(envelopes) < limit:
            asked = limit - len(envelopes)
            started = time.monotonic()
            start = self.heads.start_poll(self.messages.poll_period)
            polled = self.messages.lease(self.kind, asked, self.lease_ms, start)
            self.heads.end_poll(start, polled.heads)
            envelopes += self._open(polled)
            if polled.buried:
                logger.warning(
                    "%d messages of %s were dead when their time came: expired, or out of attempts",
                    polled.buried,
                    self.kind,
                    extra={"kind": self.kind},
                )
            wake_at = started + self._seconds_to_next(polled)
            # Fewer than asked: that was all, unless burying the dead was all that the call came to.
            if len(polled.rows) < asked and not polled.buried:
                break
        return envelopes, wake_at

    def _seconds_to_next(self, polled: Polled) -> float:
        period = self.messages.poll_period
        if polled.next_due_at is None:
            return period
        return min(period, max(0.0, (polled.next_due_at * 1000 - polled.now_us) / 1_000_000))

    def _open(self, polled: Polled) -> list[Envelope[T]]:
        """The lease is committed by now, so that one payload that cannot be read keeps nobody waiting (R10)."""
        lease = Lease(self.messages, self.kind, self.source, polled.now_us, self.lease_ms, polled.lock_uuid, self.heads)
        loads = self.serializer.loads
        envelopes = []
        for id, key, payload, _, attempt, due_at, scheduled_at_initially, created_at, _ in polled.rows:
            try:
                value = loads(payload)
            except Exception as error:  # whatever a serializer raises, the message is unreadable
                self._bury(id, key, polled.lock_uuid, error)
                continue
            envelopes.append(Envelope(lease, value, id, key, attempt, due_at, scheduled_at_initially, created_at))
        return envelopes

    def _bury(self, id: int, key: str, lock_uuid: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, UndecodablePayload) else f"{type(error).__qualname__}: {error}"
        self.messages.bury(id=id, lock_uuid=lock_uuid, reason="undecodable", error=reason)
        logger.error(
            "The payload of %s cannot be decoded; it is among the dead messages now: %s",
            key,
            reason,
            extra={"key": key, "kind": self.kind},
        )


def _deadline(timeout: Duration | None) -> float:
    if timeout is None:
        return float("inf")
    return time.monotonic() + duration_ms(timeout, "timeout") / 1000
