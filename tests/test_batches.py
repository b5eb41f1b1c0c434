"""R4: batches of any size, with one reply per message, as if they had been offered one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayed_queue import DelayedQueue, InvalidInput, OfferOutcome, ScheduledMessage
from delayed_queue.arrays import binaries, integers, texts
from delayed_queue.batches import CHUNK
from delayed_queue.models import DelayedMessage
from tests.conftest import NOON, FrozenClock

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


def rows() -> list[dict[str, Any]]:
    """Everything but the ids, which may have gaps."""
    return [
        {name: bytes(value) if name == "payload" else value for name, value in row.items() if name != "id"}
        for row in DelayedMessage.objects.order_by("key").values()
    ]


def test_the_replies_are_in_the_order_of_the_messages(queue: DelayedQueue[str]) -> None:
    queue.offer_or_update("same", "x", NOON)
    queue.offer_or_update("changed", "x", NOON)
    messages = [ScheduledMessage(key, "x", NOON) for key in ("z", "same", "a", "m")]
    messages.insert(2, ScheduledMessage("changed", "y", NOON))
    assert queue.offer_batch(messages) == [CREATED, IGNORED, UPDATED, CREATED, CREATED]


def test_an_empty_batch_asks_nothing(queue: DelayedQueue[str], django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert queue.offer_batch([]) == []


def test_a_generator_will_do(queue: DelayedQueue[str]) -> None:
    assert queue.offer_batch(ScheduledMessage(f"k{n}", "x", NOON) for n in range(3)) == [CREATED] * 3


def test_messages_that_may_not_update_leave_what_is_there(queue: DelayedQueue[str]) -> None:
    queue.offer_or_update("k", "x", NOON)
    messages = [ScheduledMessage("k", "y", NOON, can_update=False), ScheduledMessage("n", "y", NOON, can_update=False)]
    assert queue.offer_batch(messages) == [IGNORED, CREATED]
    envelope = queue.read("k")
    assert envelope is not None
    assert envelope.payload == "x"


def test_a_key_twice_is_as_if_offered_one_by_one(queue: DelayedQueue[str]) -> None:
    messages = [
        ScheduledMessage("k", "1", NOON),
        ScheduledMessage("k", "1", NOON),
        ScheduledMessage("k", "2", NOON, can_update=False),
        ScheduledMessage("k", "3", NOON),
    ]
    assert queue.offer_batch(messages) == [CREATED, IGNORED, IGNORED, UPDATED]
    envelope = queue.read("k")
    assert envelope is not None
    assert envelope.payload == "3"


_messages = st.builds(
    ScheduledMessage,
    key=st.sampled_from(["a", "b", "c", 'quote"', "back\\slash", "{,}", "ț", "NULL"]),
    payload=st.sampled_from(["", "x", "y"]),
    schedule_at=st.integers(-3, 3).map(lambda seconds: NOON + timedelta(seconds=seconds)),
    can_update=st.booleans(),
    priority=st.sampled_from([0, 0, 5]),
    max_attempts=st.sampled_from([None, 3]),
    expires_at=st.sampled_from([None, NOON + timedelta(days=1)]),
    max_wait=st.sampled_from([None, None, 1]),
)


@pytest.mark.django_db
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.lists(_messages, max_size=4), batch=st.lists(_messages, max_size=12))
def test_any_batch_is_as_if_offered_one_by_one(
    before: list[ScheduledMessage[str]], batch: list[ScheduledMessage[str]]
) -> None:
    clock = FrozenClock()
    queue: DelayedQueue[str] = DelayedQueue("reminders", clock=clock)

    def one_by_one(messages: list[ScheduledMessage[str]]) -> list[OfferOutcome]:
        outcomes = []
        for message in messages:
            offer = queue.offer_or_update if message.can_update else queue.offer_if_not_exists
            outcomes.append(
                offer(
                    message.key,
                    message.payload,
                    message.schedule_at,
                    priority=message.priority,
                    max_attempts=message.max_attempts,
                    expires_at=message.expires_at,
                    max_wait=message.max_wait,
                )
            )
        return outcomes

    results = []
    for offer in (one_by_one, queue.offer_batch):
        with transaction.atomic():
            one_by_one(before)
            results.append((offer(batch), rows()))
            transaction.set_rollback(True)
    assert results[0] == results[1]


def test_a_batch_of_many_chunks_is_one_transaction_and_keeps_its_order(
    queue: DelayedQueue[str], clock: FrozenClock
) -> None:
    count = 2 * CHUNK + 7
    messages = [ScheduledMessage(f"k{n}", str(n), NOON) for n in range(count)]
    # A key that stands twice across what would be the border of two chunks in the order of the keys.
    ordered = sorted(messages, key=lambda message: message.key)
    messages.append(replace(ordered[CHUNK - 1], payload="again"))
    random.Random(1).shuffle(messages)
    outcomes = queue.offer_batch(messages)
    assert len(outcomes) == count + 1
    assert outcomes.count(CREATED) == count
    assert outcomes.count(UPDATED) == 1
    assert queue.offer_batch(messages[:100]).count(IGNORED) >= 98


def test_a_batch_is_cut_by_its_bytes_too(queue: DelayedQueue[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayed_queue.batches.CHUNK_BYTES", 1000)
    messages = [ScheduledMessage(f"k{n % 7}", str(n) * 400, NOON) for n in range(20)]
    assert queue.offer_batch(messages) == [CREATED] * 7 + [UPDATED] * 13
    assert [envelope.payload[:2] for envelope in queue.try_poll_many(9)] == ["14", "15", "16", "17", "18", "19", "13"]


def test_a_batch_with_one_bad_message_stores_nothing_and_says_which(queue: DelayedQueue[str]) -> None:
    messages = [ScheduledMessage("good", "x", NOON), ScheduledMessage("", "x", NOON)]
    with pytest.raises(InvalidInput, match="key is blank"):
        queue.offer_batch(messages)
    assert not queue.contains("good")


def test_a_batch_that_fails_in_the_database_stores_nothing(transactional_db: None) -> None:
    queue: DelayedQueue[str] = DelayedQueue("reminders")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE delayed_queue ADD CONSTRAINT no_last CHECK (\"pKey\" <> 'z')")
    try:
        messages = [ScheduledMessage(f"k{n}", "x", NOON) for n in range(CHUNK)]
        with pytest.raises(Exception, match="no_last"):
            queue.offer_batch([*messages, ScheduledMessage("z", "x", NOON)])
        assert queue.stats().due == 0
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE delayed_queue DROP CONSTRAINT no_last")


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8), max_size=6))
@settings(max_examples=50, deadline=None)
@pytest.mark.django_db
def test_arrays_of_text_reach_the_database_as_they_are(values: list[str]) -> None:
    assert _round_trip(texts, "text[]", values) == values


@given(st.lists(st.binary(max_size=8), max_size=6))
@settings(max_examples=50, deadline=None)
@pytest.mark.django_db
def test_arrays_of_bytes_reach_the_database_as_they_are(values: list[bytes]) -> None:
    assert [bytes(value) for value in _round_trip(binaries, "bytea[]", values)] == values


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=6))
@settings(max_examples=50, deadline=None)
@pytest.mark.django_db
def test_arrays_of_integers_reach_the_database_as_they_are(values: list[int | None]) -> None:
    assert _round_trip(integers, "bigint[]", values) == values


def _round_trip(dump: Callable[[Any], str], array: str, values: list[Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT %s::{array}", [dump(values)])
        found: list[Any] = cursor.fetchone()[0]
        return found
