"""R5 to R7, R9 and R10: what a poll gives, in which order, and what it does not give."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction

from delayed_queue import BytesSerializer, DelayedQueue, DeliveryType, InvalidInput, JsonSerializer, ScheduledMessage
from delayed_queue.clocks import to_ms
from delayed_queue.models import DeadMessage, DelayedMessage
from tests.conftest import NOON, FrozenClock

Row = Callable[[str], dict[str, Any]]


def keys(batch: Any) -> list[str]:
    return [envelope.key for envelope in batch]


def test_nothing_due_gives_none(queue: DelayedQueue[str]) -> None:
    assert queue.try_poll() is None
    queue.offer_or_update("later", "x", NOON + timedelta(milliseconds=1))
    assert queue.try_poll() is None
    assert len(queue.try_poll_many(10)) == 0


def test_due_is_inclusive(queue: DelayedQueue[str], clock: FrozenClock) -> None:
    queue.offer_or_update("k", "x", NOON + timedelta(seconds=1))
    clock.now = NOON + timedelta(milliseconds=999, microseconds=999)
    assert queue.try_poll() is None
    clock.now = NOON + timedelta(seconds=1)
    assert queue.try_poll() is not None


def test_higher_priority_comes_first_then_time_then_id(queue: DelayedQueue[str]) -> None:
    offers = [
        ("c", 0, -5), ("a", 0, -9), ("tie-1", 0, -7), ("tie-2", 0, -7),
        ("low", -100, -99), ("high-2", 100, -1), ("high-1", 100, -2), ("middle", 7, 0),
    ]  # fmt: skip
    for key, priority, seconds in offers:
        queue.offer_or_update(key, "x", NOON + timedelta(seconds=seconds), priority=priority)
    expected = ["high-1", "high-2", "middle", "a", "tie-1", "tie-2", "c", "low"]
    assert keys(queue.try_poll_many(3)) == expected[:3]
    assert keys(queue.try_poll_many(100)) == expected[3:]


def test_one_by_one_is_the_same_order(queue: DelayedQueue[str]) -> None:
    for priority in range(-100, 101, 20):
        queue.offer_or_update(f"{priority}", "x", NOON - timedelta(seconds=priority + 200), priority=priority)
    polled = []
    while envelope := queue.try_poll():
        polled.append(int(envelope.key))
    assert polled == sorted(polled, reverse=True)
    assert len(polled) == 11


@pytest.mark.django_db(transaction=True)
def test_what_this_queue_offers_behind_its_head_keeps_the_order(clock: FrozenClock) -> None:
    queue: DelayedQueue[str] = DelayedQueue("reminders", clock=clock)
    queue.offer_batch([ScheduledMessage(f"k{n:02}", "x", NOON - timedelta(seconds=50 - n)) for n in range(40)])
    assert keys(queue.try_poll_many(10))[-1] == "k09"
    queue.offer_or_update("earlier", "x", NOON - timedelta(seconds=60))
    queue.offer_or_update("more urgent", "x", NOON - timedelta(seconds=1), priority=1)
    assert keys(queue.try_poll_many(3)) == ["more urgent", "earlier", "k10"]


@pytest.mark.django_db(transaction=True)
def test_what_lands_behind_the_head_from_elsewhere_is_found_when_a_poll_would_come_back_short(
    clock: FrozenClock,
) -> None:
    queue: DelayedQueue[str] = DelayedQueue("reminders", clock=clock)
    elsewhere: DelayedQueue[str] = DelayedQueue("reminders", clock=clock)
    queue.offer_batch([ScheduledMessage(f"k{n}", "x", NOON - timedelta(seconds=50 - n)) for n in range(6)])
    assert keys(queue.try_poll_many(4)) == ["k0", "k1", "k2", "k3"]
    elsewhere.offer_or_update("behind", "x", NOON - timedelta(seconds=99))
    elsewhere.offer_or_update("behind, of a new priority", "x", NOON - timedelta(seconds=99), priority=-3)
    assert keys(queue.try_poll_many(5)) == ["behind", "k4", "k5", "behind, of a new priority"]


@pytest.mark.django_db(transaction=True)
def test_what_lands_behind_the_head_from_elsewhere_is_found_within_the_poll_period(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while there is always something in front of it."""
    monotonic = 1000.0
    monkeypatch.setattr("delayed_queue.heads.time.monotonic", lambda: monotonic)
    queue: DelayedQueue[str] = DelayedQueue("busy", clock=clock, poll_period=2)
    elsewhere: DelayedQueue[str] = DelayedQueue("busy", clock=clock)
    queue.offer_batch([ScheduledMessage(f"k{n}", "x", NOON - timedelta(seconds=50 - n)) for n in range(9)])
    queue.try_poll_many(2)
    elsewhere.offer_or_update("behind", "x", NOON - timedelta(seconds=99))
    assert "behind" not in keys(queue.try_poll_many(2))
    monotonic += 2
    assert keys(queue.try_poll_many(2))[0] == "behind"


@pytest.mark.django_db(transaction=True)
def test_a_poll_that_is_rolled_back_leaves_everything_where_it_was(clock: FrozenClock) -> None:
    queue: DelayedQueue[str] = DelayedQueue("reminders", clock=clock)
    queue.offer_batch([ScheduledMessage(f"k{n:02}", "x", NOON - timedelta(seconds=50 - n)) for n in range(20)])
    for _ in range(2):
        with transaction.atomic():
            assert keys(queue.try_poll_many(3)) == ["k00", "k01", "k02"]
            assert keys(queue.try_poll_many(3)) == ["k03", "k04", "k05"]
            transaction.set_rollback(True)
    assert keys(queue.try_poll_many(3)) == ["k00", "k01", "k02"]


@pytest.mark.django_db(transaction=True)
def test_an_offer_that_commits_after_a_poll_is_not_behind_the_head(clock: FrozenClock) -> None:
    queue: DelayedQueue[str] = DelayedQueue("reminders", clock=clock)
    assert queue.try_poll() is None
    queue.offer_batch([ScheduledMessage(f"k{n:02}", "x", NOON - timedelta(seconds=50 - n)) for n in range(20)])
    polled: list[str] = []

    def poll_elsewhere() -> None:
        polled.extend(keys(queue.try_poll_many(5)))
        connections.close_all()

    with transaction.atomic():
        queue.offer_or_update("earlier", "x", NOON - timedelta(seconds=99))
        thread = threading.Thread(target=poll_elsewhere)
        thread.start()
        thread.join()
    assert polled == ["k00", "k01", "k02", "k03", "k04"]
    assert keys(queue.try_poll_many(2)) == ["earlier", "k05"]


def test_what_is_due_at_the_same_time_comes_in_the_order_it_was_offered(queue: DelayedQueue[str]) -> None:
    names = [f"k{n}" for n in random.Random(5).sample(range(100), 40)]
    queue.offer_batch([ScheduledMessage(name, "x", NOON) for name in names[:20]])
    for name in names[20:]:
        queue.offer_or_update(name, "x", NOON)
    assert keys(queue.try_poll_many(100)) == names


@pytest.mark.parametrize("limit", [2**31, 10**30])
def test_a_limit_may_be_any_number(queue: DelayedQueue[str], limit: int) -> None:
    queue.offer_or_update("k", "x", NOON)
    assert len(queue.try_poll_many(limit)) == 1


@pytest.mark.parametrize("limit", [1.5, "1", None, True])
def test_a_limit_that_is_no_number_is_refused(queue: DelayedQueue[str], limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit must be a whole number"):
        queue.try_poll_many(limit)


def test_a_poll_gives_at_most_what_was_asked_for_under_stale_statistics(queue: DelayedQueue[str]) -> None:
    """The seed's UPDATE ... WHERE id IN (SELECT ... LIMIT 3) gave 40 here."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE delayed_queue")
    queue.offer_batch([ScheduledMessage(f"k{n}", "x", NOON) for n in range(200)])
    assert len(queue.try_poll_many(3)) == 3
    assert len(queue.try_poll_many(500)) == 197


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_gives_nothing_and_asks_nothing(
    queue: DelayedQueue[str], limit: int, django_assert_num_queries: Any
) -> None:
    queue.offer_or_update("k", "x", NOON)
    with django_assert_num_queries(0):
        assert len(queue.try_poll_many(limit)) == 0


def test_a_polled_message_is_invisible_until_its_lease_runs_out(
    queue: DelayedQueue[str], clock: FrozenClock, row: Row
) -> None:
    queue.offer_or_update("k", "x", NOON)
    first = queue.try_poll()
    assert first is not None
    stored = row("k")
    assert (stored["scheduledAt"], stored["scheduledAtInitially"]) == (to_ms(NOON) + 60_000, to_ms(NOON))
    assert (stored["lockUuid"], stored["attempts"]) == (first.lock_uuid, 1)
    clock.advance(59.999)
    assert queue.try_poll() is None
    clock.advance(0.001)
    second = queue.try_poll()
    assert second is not None
    assert second.lock_uuid != first.lock_uuid


def test_an_envelope_tells_what_was_polled(queue: DelayedQueue[str], clock: FrozenClock) -> None:
    queue.offer_or_update("k", "x", NOON - timedelta(seconds=5))
    envelope = queue.try_poll()
    assert envelope is not None
    assert (envelope.key, envelope.kind, envelope.payload, envelope.attempt) == ("k", queue.kind, "x", 1)
    assert envelope.scheduled_for == NOON - timedelta(seconds=5)
    assert envelope.timestamp == NOON
    assert envelope.source == "delayed_queue:reminders"
    assert envelope.delivery_type is DeliveryType.FIRST_DELIVERY
    clock.advance(60)
    again = queue.try_poll()
    assert again is not None
    assert (again.attempt, again.delivery_type) == (2, DeliveryType.REDELIVERY)
    assert again.scheduled_for == NOON - timedelta(seconds=5)


def test_each_message_of_a_batch_has_its_own_delivery_type(queue: DelayedQueue[str], clock: FrozenClock) -> None:
    queue.offer_or_update("again", "x", NOON)
    queue.try_poll()
    clock.advance(60)
    queue.offer_or_update("new", "x", NOON + timedelta(seconds=1))
    batch = queue.try_poll_many(10)
    assert {envelope.key: envelope.delivery_type for envelope in batch} == {
        "new": DeliveryType.FIRST_DELIVERY,
        "again": DeliveryType.REDELIVERY,
    }


def test_a_batch_is_a_sequence_that_acknowledges_a_subset_or_all(queue: DelayedQueue[str]) -> None:
    queue.offer_batch([ScheduledMessage(f"k{n}", f"p{n}", NOON) for n in range(5)])
    batch = queue.try_poll_many(10)
    assert batch.payloads == ["p0", "p1", "p2", "p3", "p4"]
    assert [batch[0].key, batch[-1].key, keys(batch[1:3])] == ["k0", "k4", ["k1", "k2"]]
    assert batch.acknowledge(batch[:2]) == 2
    assert batch.acknowledge() == 3
    assert batch.acknowledge() == 0
    assert queue.stats().leased == 0


def test_a_payload_that_cannot_be_decoded_is_buried_and_those_behind_it_are_delivered(
    db: None, clock: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue: DelayedQueue[Any] = DelayedQueue("json", JsonSerializer(), clock=clock)
    poison = DelayedQueue.for_kind(queue.kind, BytesSerializer(), clock=clock)
    poison.offer_or_update("poison", b"{not json\xff", NOON - timedelta(seconds=9), priority=3, max_attempts=5)
    queue.offer_or_update("good", {"n": 1}, NOON)
    with caplog.at_level(logging.ERROR, "delayed_queue"):
        envelope = queue.try_poll()
    assert envelope is not None
    assert envelope.key == "good"
    dead = DeadMessage.objects.get()
    assert (dead.key, dead.kind, bytes(dead.payload), dead.reason) == (
        "poison", queue.kind, b"{not json\xff", "undecodable",
    )  # fmt: skip
    assert (dead.priority, dead.attempts, dead.max_attempts, dead.died_at) == (3, 1, 5, to_ms(NOON))
    assert "not JSON" in dead.error
    assert "poison" in caplog.text
    assert queue.stats().dead == 1


def test_a_batch_is_filled_up_behind_payloads_that_cannot_be_decoded(db: None, clock: FrozenClock) -> None:
    queue: DelayedQueue[Any] = DelayedQueue("json", JsonSerializer(), clock=clock)
    poison = DelayedQueue.for_kind(queue.kind, BytesSerializer(), clock=clock)
    poison.offer_batch([ScheduledMessage(f"bad{n}", b"\xff", NOON - timedelta(seconds=9)) for n in range(3)])
    queue.offer_batch([ScheduledMessage(f"good{n}", n, NOON) for n in range(6)])
    assert queue.try_poll_many(4).payloads == [0, 1, 2, 3]
    assert DeadMessage.objects.count() == 3


def test_a_serializer_that_fails_in_any_way_buries_only_its_message(db: None, clock: FrozenClock) -> None:
    class Fussy(JsonSerializer):
        def loads(self, payload: bytes) -> Any:
            value = super().loads(payload)
            return value["known"]

    queue: DelayedQueue[Any] = DelayedQueue("fussy", Fussy(), clock=clock)
    queue.offer_or_update("a", {"unknown": 1}, NOON)
    queue.offer_or_update("b", {"known": 2}, NOON)
    assert queue.try_poll_many(5).payloads == [2]
    assert DeadMessage.objects.get().error == "KeyError: 'known'"


def test_an_error_that_cannot_be_stored_as_it_is_buries_all_the_same(db: None, clock: FrozenClock) -> None:
    class Odd(JsonSerializer):
        def loads(self, payload: bytes) -> Any:
            raise ValueError("lone \ud800 and NUL \0" + "x" * 20_000)

    queue: DelayedQueue[Any] = DelayedQueue("odd", Odd(), clock=clock)
    queue.offer_or_update("a", 1, NOON)
    assert queue.try_poll() is None
    assert len(DeadMessage.objects.get().error) == 10_001


def test_a_message_that_expired_is_dead_when_its_time_comes(queue: DelayedQueue[str], clock: FrozenClock) -> None:
    queue.offer_or_update("k", "x", NOON, expires_at=NOON + timedelta(seconds=30))
    queue.offer_or_update("behind", "y", NOON + timedelta(seconds=1))
    clock.advance(30)
    envelope = queue.try_poll()
    assert envelope is not None
    assert envelope.key == "behind"
    dead = DeadMessage.objects.get()
    assert (dead.key, dead.reason, dead.expires_at) == ("k", "expired", to_ms(NOON) + 30_000)


def test_a_message_is_delivered_until_it_expires(queue: DelayedQueue[str], clock: FrozenClock) -> None:
    queue.offer_or_update("k", "x", NOON, expires_at=NOON + timedelta(seconds=30))
    clock.advance(29.999)
    assert queue.try_poll() is not None


def test_a_message_is_dead_after_its_maximum_of_attempts(queue: DelayedQueue[str], clock: FrozenClock) -> None:
    queue.offer_or_update("k", "x", NOON, max_attempts=2)
    for attempt in (1, 2):
        envelope = queue.try_poll()
        assert envelope is not None
        assert envelope.attempt == attempt
        assert envelope.release(error=f"failed {attempt}")
        clock.advance(1)
    assert queue.try_poll() is None
    dead = DeadMessage.objects.get()
    assert (dead.reason, dead.attempts, dead.max_attempts, dead.error) == ("exhausted", 2, 2, "failed 2")


def test_a_crash_spends_an_attempt(queue: DelayedQueue[str], clock: FrozenClock) -> None:
    queue.offer_or_update("k", "x", NOON, max_attempts=1)
    assert queue.try_poll() is not None
    clock.advance(60)  # nobody came back
    assert queue.try_poll() is None
    assert DeadMessage.objects.get().reason == "exhausted"


def test_without_a_maximum_a_message_is_delivered_for_ever(queue: DelayedQueue[str], clock: FrozenClock) -> None:
    queue.offer_or_update("k", "x", NOON)
    for attempt in range(1, 60):
        envelope = queue.try_poll()
        assert envelope is not None
        assert envelope.attempt == attempt
        clock.advance(60)


def test_thousands_of_expired_messages_in_front_keep_nobody_waiting(
    queue: DelayedQueue[str], clock: FrozenClock
) -> None:
    queue.offer_batch(
        [ScheduledMessage(f"old{n}", "x", NOON, expires_at=NOON + timedelta(seconds=1)) for n in range(2500)]
    )
    queue.offer_or_update("fresh", "y", NOON + timedelta(seconds=2))
    clock.advance(5)
    envelope = queue.try_poll()
    assert envelope is not None
    assert envelope.key == "fresh"
    assert DeadMessage.objects.count() == 2500


def test_a_statement_within_a_statement_keeps_its_own_result(queue: DelayedQueue[str]) -> None:
    """Someone's execute_wrapper may use the queue, too."""
    queue.offer_or_update("k", "x", NOON)
    inside: list[bool] = []

    def look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if not inside:
            inside.append(True)
            assert queue.contains("k")
        return result

    with connection.execute_wrapper(look):
        envelope = queue.try_poll()
    assert envelope is not None
    assert envelope.key == "k"


def test_the_manager_has_the_same_operations_by_keyword(db: None, clock: FrozenClock) -> None:
    messages = DelayedMessage.objects.configured(clock=clock)
    messages.offer_or_update(kind="a|b", key="k", payload=b"x", schedule_at=NOON)
    messages.offer_batch([ScheduledMessage("k2", b"y", NOON)], kind="a|b")
    assert messages.contains(kind="a|b", key="k")
    assert messages.stats(kind="a|b").due == 2
    envelope = messages.try_poll(kind="a|b", lease=10)
    assert envelope is not None
    assert (envelope.payload, envelope.kind) == (b"x", "a|b")
    assert envelope.acknowledge()
    assert messages.try_poll_many(kind="a|b", limit=5).payloads == [b"y"]
    assert messages.drop(kind="a|b", key="k2")
    assert messages.poll(kind="a|b", timeout=0) is None
