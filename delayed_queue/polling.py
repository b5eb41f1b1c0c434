"""A poller: one kind, with the memory of where it stopped and the patience to wait for what is next."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from asgiref.sync import sync_to_async

from delayed_queue.bells import AsyncBell, Bell
from delayed_queue.clocks import Duration, duration_ms
from delayed_queue.errors import InvalidInput, error_text
from delayed_queue.heads import Heads
from delayed_queue.messages import BatchEnvelope, Envelope, Lease, Polled
from delayed_queue.retry import in_transaction
from delayed_queue.serializers import Serializer
from delayed_queue.twins import in_thread

if TYPE_CHECKING:
    from delayed_queue.managers import DelayedMessageManager

T = TypeVar("T")
LARGEST_LIMIT = 2**31 - 1
SHORTEST_WAIT_FOR_AN_INJECTED_CLOCK = 0.02
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
                await in_thread(envelope.give_back)
            raise

    def _take(self, limit: int) -> tuple[list[Envelope[T]], float]:
        """Up to ``limit`` envelopes, and the monotonic time at which to look again."""
        if type(limit) is not int:
            raise InvalidInput(f"limit must be a whole number, not {limit!r}.")
        envelopes: list[Envelope[T]] = []
        wake_at = 0.0
        while len(envelopes) < limit:
            asked = min(limit - len(envelopes), LARGEST_LIMIT)
            started = time.monotonic()
            try:
                polled = self._lease(asked)
            except Exception:
                if not envelopes:
                    raise
                logger.exception("A poll of %s failed; what it has leased so far is delivered", self.kind)
                break
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

    def _lease(self, limit: int) -> Polled:
        start = self.heads.start_poll(self.messages.poll_period)
        heads = None
        try:
            polled = self.messages.lease(self.kind, limit, self.lease_ms, start)
            if not in_transaction(self.messages.connection):  # else it may be rolled back, and all is where it was
                heads = polled.heads
            return polled
        finally:
            self.heads.end_poll(start, heads)

    def _seconds_to_next(self, polled: Polled) -> float:
        period = self.messages.poll_period
        if polled.next_due_at is None:
            return period
        # An injected clock need not move while we wait for it; the database's does.
        shortest = 0.0 if self.messages.clock is None else SHORTEST_WAIT_FOR_AN_INJECTED_CLOCK
        return min(period, max(shortest, (polled.next_due_at * 1000 - polled.now_us) / 1_000_000))

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
        reason = error_text(error)
        told = {"key": key, "kind": self.kind}
        try:
            self.messages.bury(id=id, lock_uuid=lock_uuid, reason="undecodable", error=reason)
        except Exception:  # those around it are delivered all the same
            logger.exception("%s cannot be decoded, and could not be moved to the dead messages", key, extra=told)
        else:
            logger.error(
                "The payload of %s cannot be decoded; it is among the dead messages now: %s", key, reason, extra=told
            )


def _deadline(timeout: Duration | None) -> float:
    if timeout is None or timeout == float("inf"):
        return float("inf")
    return time.monotonic() + duration_ms(timeout, "timeout") / 1000
