"""R15: a table of bad input, each with the sentence that it gets, before any SQL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from delayed_queue import (
    Backoff,
    BytesSerializer,
    DelayedQueue,
    InvalidInput,
    JsonSerializer,
    ScheduledMessage,
    TextSerializer,
)
from delayed_queue.models import DelayedMessage
from tests.conftest import NOON

queue: DelayedQueue[str] = DelayedQueue("reminders")


def offer(**given: Any) -> None:
    queue.offer_or_update(**({"key": "k", "payload": "x", "schedule_at": NOON} | given))


OFFERS: list[tuple[dict[str, Any], str]] = [
    ({"key": ""}, "The key is blank; it must name something."),
    ({"key": " \t"}, "The key is blank"),
    ({"key": "k" * 201}, "has 201 characters; 200 is the most"),
    ({"key": "a\0b"}, "contains a NUL character"),
    ({"key": "\ud800"}, "is not valid Unicode text"),
    ({"key": None}, "The key must be text, not NoneType."),
    ({"key": 42}, "The key must be text, not int."),
    ({"schedule_at": datetime(2026, 1, 1)}, "schedule_at is a naive datetime, which names no moment"),
    ({"schedule_at": "tomorrow"}, "schedule_at must be an aware datetime, not str."),
    ({"schedule_at": None}, "schedule_at must be an aware datetime, not NoneType."),
    ({"expires_at": datetime(2026, 1, 1)}, "expires_at is a naive datetime"),
    ({"payload": "x" * (1024 * 1024 + 1)}, "The payload has 1048577 bytes; the limit is 1048576"),
    ({"payload": b"x"}, "TextSerializer takes text, not bytes"),
    ({"payload": "\ud800"}, "not valid Unicode text"),
    ({"priority": 101}, "The priority must be a whole number from -100 to 100, not 101."),
    ({"priority": -101}, "from -100 to 100, not -101"),
    ({"priority": 1.5}, "from -100 to 100, not 1.5"),
    ({"priority": True}, "from -100 to 100, not True"),
    ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 32767, or None, not 0."),
    ({"max_attempts": 32768}, "from 1 to 32767, or None, not 32768"),
    ({"max_wait": 0}, "max_wait must be at least one millisecond, not 0."),
    ({"max_wait": timedelta(seconds=-1)}, "max_wait must be at least one millisecond"),
    ({"max_wait": 1e30}, "leaves the range of a bigint"),
    ({"max_wait": 9223372036854775}, "leaves the range of a bigint"),
    ({"max_wait": float("nan")}, "max_wait must be finite, not nan."),
    ({"max_wait": "soon"}, "max_wait must be a timedelta or a number of seconds, not str."),
]


@pytest.mark.parametrize(("given", "sentence"), OFFERS, ids=[sentence for _, sentence in OFFERS])
def test_a_bad_offer_is_refused_with_a_sentence(given: dict[str, Any], sentence: str) -> None:
    """Without the database fixture: a statement would fail the test."""
    with pytest.raises(InvalidInput, match=sentence.replace("(", r"\(")) as refused:
        offer(**given)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize(("given", "sentence"), OFFERS, ids=[sentence for _, sentence in OFFERS])
def test_a_batch_refuses_the_same(given: dict[str, Any], sentence: str) -> None:
    message = ScheduledMessage(**({"key": "k", "payload": "x", "schedule_at": NOON} | given))
    with pytest.raises(InvalidInput, match=sentence.replace("(", r"\(")):
        queue.offer_batch([message])


CALLS: list[tuple[str, Callable[[], Any], str]] = [
    ("blank name", lambda: DelayedQueue(""), "The queue name is blank"),
    ("bar in name", lambda: DelayedQueue("a|b"), r"The queue name 'a\|b' contains '\|'"),
    ("NUL in name", lambda: DelayedQueue("a\0b"), "contains a NUL"),
    ("blank kind", lambda: DelayedQueue.for_kind(" "), "The kind is blank"),
    ("long kind", lambda: DelayedQueue.for_kind("k" * 101), "has 101 characters; 100 is the most"),
    ("no lease", lambda: DelayedQueue("q", acquire_timeout=0), "lease must be at least one millisecond, not 0."),
    ("negative lease", lambda: DelayedQueue("q", acquire_timeout=timedelta(-1)), "lease must be at least one"),
    ("endless lease", lambda: DelayedQueue("q", acquire_timeout=5e15), "leaves the range of a bigint"),
    ("no period", lambda: DelayedQueue("q", poll_period=0), "poll_period must be at least one millisecond"),
    ("blank key to drop", lambda: queue.drop(""), "The key is blank"),
    ("blank key to read", lambda: queue.read(""), "The key is blank"),
    ("NUL to look for", lambda: queue.contains("\0"), "contains a NUL"),
    ("naive clock", lambda: DelayedQueue("q", clock=datetime.now).stats(), "The clock's time is a naive datetime"),
    ("bad jitter", lambda: Backoff(jitter=2), "jitter must be from 0 to 1, not 2."),
    ("shrinking backoff", lambda: Backoff(factor=0.5), "factor must be at least 1"),
    ("no JSON", lambda: JsonSerializer().dumps({1, 2}), "cannot be written as JSON"),
    ("not a number", lambda: JsonSerializer().dumps(float("nan")), "cannot be written as JSON"),
    ("not bytes", lambda: BytesSerializer().dumps("x"), "BytesSerializer takes bytes, not str"),
    ("not text", lambda: TextSerializer().dumps(3), "TextSerializer takes text, not int"),
    (
        "text to the manager",
        lambda: DelayedMessage.objects.offer_or_update(kind="k", key="k", payload="x", schedule_at=NOON),  # type: ignore[arg-type]
        "The payload must be bytes here, not str.",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), [call[1:] for call in CALLS], ids=[call[0] for call in CALLS])
def test_other_bad_input_is_refused_with_a_sentence(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        call()


@pytest.mark.django_db
class TestOfAnEnvelope:
    def poll(self) -> Any:
        queue.offer_or_update("k", "x", NOON)
        return queue.try_poll()

    def test_a_lease_of_nothing(self) -> None:
        with pytest.raises(InvalidInput, match="lease must be at least one millisecond"):
            self.poll().extend(0)

    def test_a_negative_delay(self) -> None:
        with pytest.raises(InvalidInput, match="delay must not be negative"):
            self.poll().release(timedelta(seconds=-1))

    def test_an_endless_delay(self) -> None:
        with pytest.raises(InvalidInput, match="leaves the range of a bigint"):
            self.poll().release(1e17)


@pytest.mark.django_db
def test_what_is_just_allowed_is_taken(settings: Any) -> None:
    offer(key="k" * 200, payload="x" * 1024 * 1024, priority=-100, max_attempts=32767, max_wait=0.001)
    settings.DELAYED_QUEUE = {"MAX_PAYLOAD_BYTES": 3}
    offer(key="ț" * 200, payload="xyz", priority=100)
    with pytest.raises(InvalidInput, match="the limit is 3"):
        offer(payload="xyzz")
