"""What an operation costs, in counts: statements, and bytes of the write-ahead log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from delayed_queue import BytesSerializer, DelayedQueue, ScheduledMessage
from delayed_queue.batches import CHUNK
from tests.conftest import NOON, FrozenClock
from tests.explaining import explained

Count = Callable[[int], Any]


@pytest.fixture
def polled(queue: DelayedQueue[str]) -> Any:
    queue.offer_batch([ScheduledMessage(f"k{n}", "x", NOON) for n in range(20)])
    return queue.try_poll_many(20)


class TestOneStatement:
    """Each in the caller's transaction, so that a savepoint or a BEGIN would be counted too."""

    def test_for_an_offer_whatever_becomes_of_it(
        self, queue: DelayedQueue[str], django_assert_num_queries: Count
    ) -> None:
        for number in range(9):  # among them the one before which the session is looked at
            with django_assert_num_queries(1):
                queue.offer_or_update("k", str(number // 2), NOON, max_wait=5)
            with django_assert_num_queries(1):
                queue.offer_if_not_exists("k", "x", NOON)

    @pytest.mark.parametrize("can_update", [True, False])
    def test_for_a_batch(self, queue: DelayedQueue[str], django_assert_num_queries: Count, can_update: bool) -> None:
        messages = [ScheduledMessage(f"k{n}", "x", NOON, can_update=can_update) for n in range(1000)]
        with django_assert_num_queries(1):
            queue.offer_batch(messages)
        with django_assert_num_queries(1):
            queue.offer_batch(messages + messages)

    def test_for_a_poll_of_one_of_many_and_of_none(
        self, queue: DelayedQueue[str], django_assert_num_queries: Count
    ) -> None:
        queue.offer_batch([ScheduledMessage(f"k{n}", "x", NOON, priority=n) for n in range(50)])
        with django_assert_num_queries(1):
            assert queue.try_poll()
        with django_assert_num_queries(1):
            assert len(queue.try_poll_many(100)) == 49
        with django_assert_num_queries(1):
            assert queue.try_poll() is None

    def test_to_settle(self, polled: Any, django_assert_num_queries: Count) -> None:
        with django_assert_num_queries(1):
            polled[0].acknowledge()
        with django_assert_num_queries(1):
            polled[1].release()
        with django_assert_num_queries(1):
            polled[2].extend()
        with django_assert_num_queries(1):
            polled.acknowledge()

    def test_to_look_and_to_drop(self, queue: DelayedQueue[str], django_assert_num_queries: Count) -> None:
        queue.offer_or_update("k", "x", NOON)
        for operation in (queue.contains, queue.read, queue.drop, queue.drop):
            with django_assert_num_queries(1):
                operation("k")
        with django_assert_num_queries(1):
            queue.stats()
        with django_assert_num_queries(1):
            queue.drop_all("Yes, please, I know what I'm doing!")


def test_a_batch_of_many_chunks_is_a_statement_for_each(
    queue: DelayedQueue[str], django_assert_num_queries: Count
) -> None:
    messages = [ScheduledMessage(f"k{n}", "x", NOON) for n in range(2 * CHUNK + 1)]
    with transaction.atomic(), django_assert_num_queries(4):  # and one that reserves the ids
        queue.offer_batch(messages)


@pytest.mark.django_db(transaction=True)
def test_a_message_writes_at_most_1350_bytes_of_wal_over_its_life() -> None:
    """Offered, leased and acknowledged in batches of 500, with 40 bytes of payload. docs/benchmarks.md has the rest."""
    queue: DelayedQueue[bytes] = DelayedQueue("wal", BytesSerializer())
    # After a checkpoint whole pages are written: where one falls into a round, the next one tells.
    assert min(_wal_of_a_life(queue) for _ in range(3)) <= 1350


def test_the_clock_is_asked_once_for_an_operation(db: None) -> None:
    asked = []

    class Counting(FrozenClock):
        def __call__(self) -> datetime:
            asked.append(1)
            return super().__call__()

    queue: DelayedQueue[str] = DelayedQueue("reminders", clock=Counting())
    queue.offer_or_update("k", "x", NOON)
    queue.try_poll()
    assert len(asked) == 2


def _wal_of_a_life(queue: DelayedQueue[bytes]) -> float:
    count, batch = 5_000, 500
    at = datetime.now(UTC) - timedelta(seconds=1)
    with explained("WAL") as plans:
        for start in range(0, count, batch):
            queue.offer_batch([ScheduledMessage(f"key-{start + n}", b"x" * 40, at) for n in range(batch)])
        while polled := queue.try_poll_many(batch):
            assert polled.acknowledge() == batch
    assert len(plans) == 31
    return sum(plan["WAL Bytes"] for plan in plans) / count
