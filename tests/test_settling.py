"""R8, R9 and R11: acknowledge, release, extend, read and drop, each guarded by its fence."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from delayed_queue import DelayedQueue, DropOutcome, Envelope, OfferOutcome
from delayed_queue.clocks import to_ms
from delayed_queue.errors import UndecodablePayload
from tests.conftest import NOON, FrozenClock

Row = Callable[[str], dict[str, Any]]


@pytest.fixture
def envelope(queue: DelayedQueue[str]) -> Envelope[str]:
    queue.offer_or_update("k", "x", NOON)
    polled = queue.try_poll()
    assert polled is not None
    return polled


class TestAcknowledge:
    def test_it_deletes_and_says_so_once(self, queue: DelayedQueue[str], envelope: Envelope[str]) -> None:
        assert envelope.acknowledge() is True
        assert not queue.contains("k")
        assert envelope.acknowledge() is False

    def test_a_late_one_works_until_someone_polled_again(
        self, queue: DelayedQueue[str], envelope: Envelope[str], clock: FrozenClock
    ) -> None:
        clock.advance(3600)
        assert envelope.acknowledge()

    def test_it_is_refused_after_someone_polled_again(
        self, queue: DelayedQueue[str], envelope: Envelope[str], clock: FrozenClock
    ) -> None:
        clock.advance(60)
        newer = queue.try_poll()
        assert newer is not None
        assert not envelope.acknowledge()
        assert newer.acknowledge()

    def test_it_is_false_for_what_is_gone(self, queue: DelayedQueue[str], envelope: Envelope[str]) -> None:
        queue.drop("k")
        assert not envelope.acknowledge()

    def test_it_does_not_touch_a_new_message_of_the_same_key(
        self, queue: DelayedQueue[str], envelope: Envelope[str]
    ) -> None:
        queue.drop("k")
        queue.offer_or_update("k", "x", NOON)
        assert not envelope.acknowledge()
        assert queue.contains("k")

    def test_it_is_part_of_the_callers_transaction(self, transactional_db: None) -> None:
        queue: DelayedQueue[str] = DelayedQueue("reminders")
        queue.offer_or_update("k", "x", NOON)
        envelope = queue.try_poll()
        assert envelope is not None
        with pytest.raises(RuntimeError), transaction.atomic():
            assert envelope.acknowledge()
            raise RuntimeError
        assert queue.contains("k")
        assert envelope.acknowledge()


class TestRelease:
    def test_at_once_it_can_be_polled_again_as_a_redelivery(
        self, queue: DelayedQueue[str], envelope: Envelope[str], clock: FrozenClock, row: Row
    ) -> None:
        assert envelope.release()
        stored = row("k")
        assert stored["lockUuid"] is None
        assert stored["scheduledAt"] > stored["scheduledAtInitially"]
        clock.advance(0.001)
        again = queue.try_poll()
        assert again is not None
        assert again.attempt == 2

    def test_with_a_delay_it_comes_later(
        self, queue: DelayedQueue[str], envelope: Envelope[str], clock: FrozenClock
    ) -> None:
        assert envelope.release(timedelta(seconds=30), error="not now")
        clock.advance(29)
        assert queue.try_poll() is None
        clock.advance(1)
        assert queue.try_poll() is not None

    def test_the_error_is_kept_and_an_untold_one_leaves_it(
        self, queue: DelayedQueue[str], envelope: Envelope[str], clock: FrozenClock, row: Row
    ) -> None:
        envelope.release(error="first\0failure")
        assert row("k")["lastError"] == "first\N{REPLACEMENT CHARACTER}failure"
        clock.advance(1)
        again = queue.try_poll()
        assert again is not None
        again.release()
        assert row("k")["lastError"] == "first\N{REPLACEMENT CHARACTER}failure"

    def test_it_is_refused_once_the_lease_is_anothers(
        self, queue: DelayedQueue[str], envelope: Envelope[str], clock: FrozenClock
    ) -> None:
        clock.advance(60)
        newer = queue.try_poll()
        assert newer is not None
        assert not envelope.release()
        assert newer.acknowledge()

    def test_a_released_message_can_not_be_acknowledged(
        self, queue: DelayedQueue[str], envelope: Envelope[str]
    ) -> None:
        assert envelope.release()
        assert not envelope.acknowledge()
        assert queue.contains("k")


class TestExtend:
    def test_it_counts_from_now(
        self, queue: DelayedQueue[str], envelope: Envelope[str], clock: FrozenClock, row: Row
    ) -> None:
        clock.advance(50)
        assert envelope.extend(timedelta(seconds=20))
        assert row("k")["scheduledAt"] == to_ms(NOON) + 70_000

    def test_by_default_it_is_as_long_as_the_first(self, envelope: Envelope[str], clock: FrozenClock, row: Row) -> None:
        clock.advance(50)
        assert envelope.extend()
        assert row("k")["scheduledAt"] == to_ms(NOON) + 110_000

    def test_it_is_refused_once_the_lease_is_anothers(
        self, queue: DelayedQueue[str], envelope: Envelope[str], clock: FrozenClock
    ) -> None:
        clock.advance(60)
        assert queue.try_poll() is not None
        assert not envelope.extend()

    def test_a_clock_that_stepped_back_does_not_make_it_a_first_delivery(
        self, envelope: Envelope[str], clock: FrozenClock, row: Row
    ) -> None:
        clock.now = NOON - timedelta(days=1)
        assert envelope.extend(1)
        stored = row("k")
        assert stored["scheduledAt"] > stored["scheduledAtInitially"]


class TestContextManager:
    def test_it_acknowledges_at_the_end(self, queue: DelayedQueue[str], envelope: Envelope[str]) -> None:
        with envelope as message:
            assert message.payload == "x"
        assert not queue.contains("k")

    def test_an_exception_releases_with_backoff_and_goes_on(
        self, queue: DelayedQueue[str], envelope: Envelope[str], clock: FrozenClock, row: Row
    ) -> None:
        with pytest.raises(ZeroDivisionError), envelope:
            _ = 1 / 0
        stored = row("k")
        assert stored["lockUuid"] is None
        assert stored["lastError"] == "ZeroDivisionError: division by zero"
        assert 500 <= stored["scheduledAt"] - to_ms(NOON) <= 1000
        clock.advance(1)
        again = queue.try_poll()
        assert again is not None
        with pytest.raises(ZeroDivisionError), again:
            _ = 1 / 0
        assert 1000 <= row("k")["scheduledAt"] - to_ms(clock()) <= 2000

    def test_being_told_to_stop_releases_at_once(self, envelope: Envelope[str], row: Row) -> None:
        with pytest.raises(KeyboardInterrupt), envelope:
            raise KeyboardInterrupt
        assert row("k")["lastError"] is None
        assert row("k")["attempts"] == 0
        assert row("k")["scheduledAt"] - to_ms(NOON) <= 1

    def test_what_was_settled_inside_is_left_alone(
        self, queue: DelayedQueue[str], envelope: Envelope[str], row: Row
    ) -> None:
        with envelope:
            envelope.release(timedelta(hours=1))
        assert row("k")["scheduledAt"] == to_ms(NOON) + 3_600_000

    def test_an_acknowledgement_that_was_rolled_back_is_released(
        self, transactional_db: None, clock: FrozenClock, row: Row
    ) -> None:
        queue: DelayedQueue[str] = DelayedQueue("reminders", clock=clock)
        queue.offer_or_update("k", "x", NOON)
        envelope = queue.try_poll()
        assert envelope is not None
        with pytest.raises(ZeroDivisionError), envelope, transaction.atomic():
            assert envelope.acknowledge()
            _ = 1 / 0
        assert row("k")["lockUuid"] is None

    def test_the_error_of_the_block_is_the_one_to_see(
        self, envelope: Envelope[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Also where the release fails, as it does in a transaction that the error has broken."""
        with (
            caplog.at_level(logging.ERROR, "delayed_queue"),
            pytest.raises(DatabaseError, match="division by zero"),
            transaction.atomic(),
            envelope,
        ):
            connection.cursor().execute("SELECT 1 / 0")
        assert "k could not be released" in caplog.text

    def test_an_error_may_have_any_text(self, envelope: Envelope[str], row: Row) -> None:
        with pytest.raises(RuntimeError), envelope:
            raise RuntimeError("lone \ud800")
        assert row("k")["lastError"] == "RuntimeError: lone ?"

    def test_a_lost_lease_is_told(
        self, queue: DelayedQueue[str], envelope: Envelope[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "delayed_queue"), envelope:
            queue.offer_or_update("k", "newer", NOON)
        assert "The lease of k was lost" in caplog.text
        assert queue.contains("k")


class TestRead:
    def test_it_shows_the_message_without_a_lease(self, queue: DelayedQueue[str], clock: FrozenClock, row: Row) -> None:
        queue.offer_or_update("k", "x", NOON + timedelta(hours=1))
        before = row("k")
        envelope = queue.read("k")
        assert envelope is not None
        assert (envelope.key, envelope.payload, envelope.lock_uuid) == ("k", "x", None)
        assert envelope.scheduled_for == NOON + timedelta(hours=1)
        assert row("k") == before

    def test_what_is_not_there_is_none(self, queue: DelayedQueue[str]) -> None:
        assert queue.read("k") is None
        assert not queue.contains("k")

    def test_its_acknowledgement_deletes_the_version_that_was_read(self, queue: DelayedQueue[str]) -> None:
        queue.offer_or_update("k", "x", NOON)
        envelope = queue.read("k")
        assert envelope is not None
        assert envelope.acknowledge()
        assert not envelope.acknowledge()
        assert not queue.contains("k")

    def test_its_acknowledgement_leaves_a_newer_version(self, queue: DelayedQueue[str]) -> None:
        queue.offer_or_update("k", "x", NOON)
        envelope = queue.read("k")
        assert envelope is not None
        queue.offer_or_update("k", "y", NOON)
        queue.offer_or_update("k", "x", NOON)
        assert not envelope.acknowledge()
        assert queue.contains("k")

    def test_its_acknowledgement_leaves_what_another_holds_leased(
        self, queue: DelayedQueue[str], clock: FrozenClock
    ) -> None:
        queue.offer_or_update("k", "x", NOON)
        envelope = queue.read("k")
        assert envelope is not None
        holder = queue.try_poll()
        assert holder is not None
        assert not envelope.acknowledge()
        read_while_leased = queue.read("k")
        assert read_while_leased is not None
        assert not read_while_leased.acknowledge()
        assert holder.acknowledge()

    def test_it_cannot_be_released_or_extended(self, queue: DelayedQueue[str]) -> None:
        queue.offer_or_update("k", "x", NOON)
        envelope = queue.read("k")
        assert envelope is not None
        assert not envelope.release()
        assert not envelope.extend()

    def test_a_payload_that_cannot_be_decoded_is_an_error_that_says_so(self, queue: DelayedQueue[str]) -> None:
        queue._messages().offer_or_update(kind=queue.kind, key="k", payload=b"\xff", schedule_at=NOON)
        with pytest.raises(UndecodablePayload, match="not UTF-8"):
            queue.read("k")

    def test_neither_read_nor_contains_waits_for_a_lock(self, transactional_db: None, other_connection: Any) -> None:
        queue: DelayedQueue[str] = DelayedQueue("reminders")
        queue.offer_or_update("k", "x", NOON)
        with other_connection.transaction():
            other_connection.execute("SELECT * FROM delayed_queue FOR UPDATE")
            with transaction.atomic():
                connection.cursor().execute("SET LOCAL lock_timeout = '50ms'")
                assert queue.contains("k")
                assert queue.read("k") is not None


class TestDrop:
    def test_it_says_what_it_dropped(self, queue: DelayedQueue[str], clock: FrozenClock) -> None:
        assert queue.drop("k") is DropOutcome.ABSENT
        queue.offer_or_update("k", "x", NOON)
        assert queue.drop("k") is DropOutcome.DROPPED
        queue.offer_or_update("k", "x", NOON)
        queue.try_poll()
        assert queue.drop("k") is DropOutcome.DROPPED_WHILE_LEASED
        assert not queue.contains("k")

    def test_a_lease_that_ran_out_is_no_lease(self, queue: DelayedQueue[str], clock: FrozenClock) -> None:
        queue.offer_or_update("k", "x", NOON)
        queue.try_poll()
        clock.advance(60)
        assert queue.drop("k") is DropOutcome.DROPPED

    def test_only_absent_is_false(self) -> None:
        assert DropOutcome.DROPPED
        assert DropOutcome.DROPPED_WHILE_LEASED
        assert not DropOutcome.ABSENT

    def test_drop_all_deletes_this_kind_only_and_wants_to_be_sure(self, queue: DelayedQueue[str]) -> None:
        other: DelayedQueue[str] = DelayedQueue("other")
        for number in range(3):
            queue.offer_or_update(f"k{number}", "x", NOON)
        other.offer_or_update("k0", "x", NOON)
        with pytest.raises(ValueError, match="Yes, please, I know what I'm doing!"):
            queue.drop_all("yes")
        assert queue.drop_all("Yes, please, I know what I'm doing!") == 3
        assert other.contains("k0")


def test_stats_count_each_message_in_one_state(queue: DelayedQueue[str], clock: FrozenClock) -> None:
    assert queue.stats().oldest_due_at is None
    queue.offer_or_update("stalled", "x", NOON)
    queue.try_poll()
    clock.advance(60)
    for key, seconds in {"due": 0, "older": -5, "later": 90, "much later": 999}.items():
        queue.offer_or_update(key, "x", clock() + timedelta(seconds=seconds))
    queue.offer_or_update("leased", "x", NOON, priority=9)
    leased = queue.try_poll()
    assert leased is not None
    assert leased.key == "leased"
    stats = queue.stats()
    assert (stats.scheduled, stats.due, stats.leased, stats.stalled, stats.dead) == (2, 2, 1, 1, 0)
    assert stats.oldest_due_at == clock() - timedelta(seconds=5)
    assert stats.next_due_at == clock() + timedelta(seconds=90)


def test_offering_again_after_the_delivery_creates_again(queue: DelayedQueue[str], envelope: Envelope[str]) -> None:
    envelope.acknowledge()
    assert queue.offer_or_update("k", "x", NOON) is OfferOutcome.CREATED
