"""R1 to R3: what an offer does to a row that is there, or is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection, transaction

from delayed_queue import DelayedQueue, JsonSerializer, OfferOutcome
from delayed_queue.clocks import from_ms, to_ms
from tests.conftest import NOON, FrozenClock

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED
Row = Callable[[str], dict[str, Any]]


@pytest.mark.parametrize(
    ("moment", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 1999, tzinfo=UTC), 1),
        (datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), -1),
        (datetime(1969, 12, 31, 23, 59, 59, 998999, tzinfo=UTC), -2),
        (datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))), to_ms(NOON)),
        (datetime.max.replace(tzinfo=UTC), 253402300799999),
    ],
)
def test_times_are_floored_to_milliseconds_also_before_1970(moment: datetime, ms: int) -> None:
    assert to_ms(moment) == ms


def test_times_that_a_datetime_cannot_express_become_the_last_it_can() -> None:
    assert from_ms(2**63 - 1) == datetime.max.replace(tzinfo=UTC)
    assert from_ms(-(2**63)) == datetime.min.replace(tzinfo=UTC)


def test_a_new_key_is_created(queue: DelayedQueue[str], row: Row) -> None:
    assert queue.offer_or_update("k", "payload", NOON + timedelta(hours=1)) is CREATED
    at = to_ms(NOON) + 3_600_000
    stored = row("k")
    assert stored["pKind"] == queue.kind
    assert bytes(stored["payload"]) == b"payload"
    assert (stored["scheduledAt"], stored["scheduledAtInitially"]) == (at, at)
    assert stored["createdAt"] == to_ms(NOON)
    assert (stored["lockUuid"], stored["attempts"], stored["priority"]) == (None, 0, 0)
    assert (stored["maxAttempts"], stored["expiresAt"], stored["lastError"]) == (None, None, None)


def test_an_identical_offer_is_ignored(queue: DelayedQueue[str]) -> None:
    options: dict[str, Any] = {"priority": 3, "max_attempts": 4, "expires_at": NOON + timedelta(days=1)}
    assert queue.offer_or_update("k", "payload", NOON, **options) is CREATED
    assert queue.offer_or_update("k", "payload", NOON, **options) is IGNORED


def test_an_offer_that_differs_below_the_millisecond_is_identical(queue: DelayedQueue[str]) -> None:
    queue.offer_or_update("k", "payload", NOON)
    assert queue.offer_or_update("k", "payload", NOON + timedelta(microseconds=999)) is IGNORED


@pytest.mark.parametrize(
    "change",
    [
        {"payload": "other"},
        {"schedule_at": NOON + timedelta(milliseconds=1)},
        {"priority": 1},
        {"max_attempts": 5},
        {"expires_at": NOON + timedelta(days=1)},
    ],
)
def test_a_change_of_anything_updates(queue: DelayedQueue[str], change: dict[str, Any]) -> None:
    offer: dict[str, Any] = {"payload": "payload", "schedule_at": NOON}
    queue.offer_or_update("k", **offer)
    assert queue.offer_or_update("k", **(offer | change)) is UPDATED
    assert queue.offer_or_update("k", **(offer | change)) is IGNORED
    assert queue.offer_or_update("k", **offer) is UPDATED


def test_an_update_starts_the_message_anew(queue: DelayedQueue[str], clock: FrozenClock, row: Row) -> None:
    queue.offer_or_update("k", "old", NOON, priority=9, max_attempts=3, expires_at=NOON + timedelta(days=1))
    polled = queue.try_poll()
    assert polled is not None
    assert polled.release(error="it failed")
    before = row("k")
    clock.now = NOON - timedelta(days=1)  # "createdAt" grows, whatever the clock says
    assert queue.offer_or_update("k", "new", NOON + timedelta(hours=2)) is UPDATED
    after = row("k")
    at = to_ms(NOON) + 7_200_000
    assert after["id"] == before["id"]
    assert bytes(after["payload"]) == b"new"
    assert (after["scheduledAt"], after["scheduledAtInitially"]) == (at, at)
    assert (after["priority"], after["maxAttempts"], after["expiresAt"]) == (0, None, None)
    assert (after["lockUuid"], after["attempts"], after["lastError"]) == (None, 0, None)
    assert after["createdAt"] > before["createdAt"]


def test_if_not_exists_leaves_what_is_there(queue: DelayedQueue[str], row: Row) -> None:
    assert queue.offer_if_not_exists("k", "first", NOON) is CREATED
    before = row("k")
    assert queue.offer_if_not_exists("k", "second", NOON + timedelta(hours=1), priority=5) is IGNORED
    assert row("k") == before


def test_one_key_in_two_queues_is_two_messages(db: None) -> None:
    one, two = DelayedQueue("one"), DelayedQueue("two")
    assert one.offer_or_update("k", "1", NOON) is CREATED
    assert two.offer_or_update("k", "2", NOON) is CREATED
    first, second = one.read("k"), two.read("k")
    assert first is not None
    assert second is not None
    assert (first.payload, second.payload) == ("1", "2")


def test_an_update_takes_the_lease_away(queue: DelayedQueue[str]) -> None:
    queue.offer_or_update("k", "old", NOON)
    holder = queue.try_poll()
    assert holder is not None
    assert queue.offer_or_update("k", "new", NOON) is UPDATED
    assert not holder.acknowledge()
    assert not holder.extend()
    assert not holder.release()
    newer = queue.try_poll()
    assert newer is not None
    assert (newer.payload, newer.attempt) == ("new", 1)
    assert newer.acknowledge()


def test_an_identical_offer_leaves_the_lease_to_its_holder(queue: DelayedQueue[str]) -> None:
    queue.offer_or_update("k", "same", NOON)
    holder = queue.try_poll()
    assert holder is not None
    assert queue.offer_or_update("k", "same", NOON) is IGNORED
    assert holder.acknowledge()
    assert not queue.contains("k")


def test_offers_are_part_of_the_callers_transaction(transactional_db: None) -> None:
    queue: DelayedQueue[str] = DelayedQueue("reminders")
    with pytest.raises(RuntimeError), transaction.atomic():
        queue.offer_or_update("k", "x", NOON)
        queue.offer_or_update("k", "y", NOON)
        raise RuntimeError
    assert not queue.contains("k")
    with transaction.atomic():
        queue.offer_or_update("k", "x", NOON)
    assert queue.contains("k")


class TestDebounce:
    """max_wait: each offer pushes the time back and keeps the newest payload, up to a ceiling."""

    def offer(self, queue: DelayedQueue[str], clock: FrozenClock, payload: str) -> OfferOutcome:
        return queue.offer_or_update("k", payload, clock() + timedelta(seconds=10), max_wait=timedelta(seconds=25))

    def due_after(self, row: Row) -> float:
        stored = row("k")
        assert stored["scheduledAt"] == stored["scheduledAtInitially"]
        return float((stored["scheduledAt"] - to_ms(NOON)) / 1000)

    def test_the_time_moves_back_but_not_past_the_first_offer_and_max_wait(
        self, queue: DelayedQueue[str], clock: FrozenClock, row: Row
    ) -> None:
        due = []
        for number in range(5):
            assert self.offer(queue, clock, str(number)) is (UPDATED if number else CREATED)
            due.append(self.due_after(row))
            clock.advance(5)
        assert due == [10, 15, 20, 25, 25]
        envelope = queue.try_poll()
        assert envelope is not None
        assert envelope.payload == "4"

    def test_the_first_offer_is_bounded_too(self, queue: DelayedQueue[str], clock: FrozenClock, row: Row) -> None:
        queue.offer_or_update("k", "x", NOON + timedelta(hours=1), max_wait=2)
        assert self.due_after(row) == 2

    def test_an_offer_that_changes_nothing_at_the_ceiling_is_ignored(
        self, queue: DelayedQueue[str], clock: FrozenClock
    ) -> None:
        self.offer(queue, clock, "x")
        clock.advance(20)
        assert self.offer(queue, clock, "x") is UPDATED
        clock.advance(1)
        assert self.offer(queue, clock, "x") is IGNORED

    def test_after_the_delivery_a_new_wait_begins(self, queue: DelayedQueue[str], clock: FrozenClock, row: Row) -> None:
        self.offer(queue, clock, "x")
        clock.advance(10)
        envelope = queue.try_poll()
        assert envelope is not None
        assert envelope.acknowledge()
        clock.advance(50)
        assert self.offer(queue, clock, "y") is CREATED
        assert self.due_after(row) == 70

    def test_the_jvms_rows_count_from_their_creation(
        self, queue: DelayedQueue[str], clock: FrozenClock, row: Row
    ) -> None:
        queue.offer_or_update("k", "x", NOON)
        with connection.cursor() as cursor:
            cursor.execute('UPDATE delayed_queue SET "firstOfferedAt" = NULL, "createdAt" = %s', [to_ms(NOON) - 20_000])
        self.offer(queue, clock, "y")
        assert self.due_after(row) == 5


def test_json_values_that_are_equal_are_the_same_offer(db: None) -> None:
    queue: DelayedQueue[dict[str, int]] = DelayedQueue("json", JsonSerializer())
    queue.offer_or_update("k", {"a": 1, "b": 2}, NOON)
    assert queue.offer_or_update("k", {"b": 2, "a": 1}, NOON) is IGNORED
