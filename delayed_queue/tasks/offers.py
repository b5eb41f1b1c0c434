"""Offering the calls of a task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec

from delayed_queue.clocks import Duration, duration_ms, from_ms, positive_ms, to_ms
from delayed_queue.errors import InvalidInput
from delayed_queue.messages import OfferOutcome, ScheduledMessage
from delayed_queue.tasks.calls import as_call, check_time, dump_call
from delayed_queue.tasks.databases import messages_in
from delayed_queue.tasks.keys import fresh_key
from delayed_queue.twins import in_thread
from delayed_queue.validation import check_key, check_max_attempts, check_payload, check_priority

if TYPE_CHECKING:
    from delayed_queue.tasks.task import Task

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Offered:
    """What became of an offer.

    ``scheduled_at`` is when the message is due. Of an offer that was ignored, and of one with ``max_wait`` in
    ``offer_many``, it is the time that was asked for.
    """

    key: str
    kind: str
    outcome: OfferOutcome
    scheduled_at: datetime


class _Draft(NamedTuple):
    """A message of ``offer_many`` that was checked, and waits for the clock if it has a delay."""

    key: str
    payload: bytes
    at: datetime | None
    delay_ms: int | None


class Offering(Generic[P]):
    """How messages of a task are offered. Made by ``task.using(...)``; it can be kept and used again."""

    def __init__(
        self,
        task: Task[P, Any],
        *,
        key: str | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        can_update: bool = True,
        expires: Duration | datetime | None = None,
        max_attempts: int | None = None,
        max_wait: Duration | None = None,
        database: str | None = None,
    ) -> None:
        self._task = task
        self._key = None if key is None else check_key(key)
        self._at, self._delay = check_time(at, delay)
        self._priority = task.priority if priority is None else check_priority(priority)
        self._can_update = bool(can_update)
        self._expires_at, self._expires_after = _expiry(task.expires_after if expires is None else expires)
        self._max_attempts = check_max_attempts(max_attempts)
        self._max_wait = max_wait
        if max_wait is not None:
            positive_ms(max_wait, "max_wait")
        self._database = database

    def offer(self, /, *args: P.args, **kwargs: P.kwargs) -> Offered:
        """Have the task called with these arguments."""
        task = self._task
        key = fresh_key() if self._key is None else self._key
        outcome, scheduled_at = messages_in(self._database).offer(
            self._can_update, task.kind, key, dump_call(task.kind, task.signature, args, kwargs), self._at,
            self._priority, self._max_attempts, self._expires_at, self._max_wait,
            delay=0 if self._at is None and self._delay is None else self._delay,
            expires_after=self._expires_after,
        )  # fmt: skip
        return Offered(key, task.kind, outcome, from_ms(scheduled_at))

    async def aoffer(self, /, *args: P.args, **kwargs: P.kwargs) -> Offered:
        # Not async_twin, in which an argument of the task that is called "self" or "function" would have no place.
        return await in_thread(partial(self.offer, *args, **kwargs))

    def offer_many(self, items: Iterable[Any]) -> list[Offered]:
        """Offer any number of calls in one transaction; the answers are in the order of the items.

        An item is a tuple or list of positional arguments, a dict of keyword arguments, or a TaskCall, which can have a
        key and a time of its own. All delays are counted from one look at the clock.
        """
        if self._key is not None:
            raise InvalidInput(
                f"using(key={self._key!r}) names one message, and offer_many offers many. "
                "Give each its own: TaskCall(args=..., key=...)."
            )
        drafts = [self._draft(place, item) for place, item in enumerate(items)]
        messages = messages_in(self._database)
        now = messages.now_ms() if any(draft.delay_ms is not None for draft in drafts) else 0
        scheduled = [self._scheduled(draft, now) for draft in drafts]
        kind = self._task.kind
        outcomes = messages.offer_batch(scheduled, kind=kind)
        return [
            Offered(message.key, kind, outcome, message.schedule_at)
            for message, outcome in zip(scheduled, outcomes, strict=True)
        ]

    async def aoffer_many(self, items: Iterable[Any]) -> list[Offered]:
        return await in_thread(self.offer_many, items)

    def _draft(self, place: int, item: Any) -> _Draft:
        task = self._task
        try:
            call = as_call(item)
            key = fresh_key() if call.key is None else check_key(call.key)
            payload = check_payload(dump_call(task.kind, task.signature, call.args, call.kwargs))
        except InvalidInput as error:
            raise InvalidInput(f"Item {place} of offer_many: {error}") from error
        at, delay = (self._at, self._delay) if call.at is None and call.delay is None else (call.at, call.delay)
        return _Draft(key, payload, at, None if at is not None else duration_ms(delay or 0, "delay"))

    def _scheduled(self, draft: _Draft, now: int) -> ScheduledMessage[bytes]:
        at = to_ms(draft.at) if draft.at is not None else now + (draft.delay_ms or 0)
        expires_at = self._expires_at
        if self._expires_after is not None:
            expires_at = from_ms(at + positive_ms(self._expires_after, "expires"))
        return ScheduledMessage(
            draft.key,
            draft.payload,
            from_ms(at),
            can_update=self._can_update,
            priority=self._priority,
            max_attempts=self._max_attempts,
            expires_at=expires_at,
            max_wait=self._max_wait,
        )

    def __repr__(self) -> str:
        return f"<Offering of {self._task.kind!r}>"


def _expiry(expires: Duration | datetime | None) -> tuple[datetime | None, Duration | None]:
    """A moment, or the time after the due time."""
    if isinstance(expires, datetime):
        to_ms(expires, "expires")
        return expires, None
    if expires is not None:
        positive_ms(expires, "expires")
    return None, expires
