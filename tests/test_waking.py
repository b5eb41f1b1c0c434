"""R16: what is announced, and what a blocking poll waits for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from delayed_queue import DelayedQueue, ScheduledMessage
from tests.conftest import connect

pytestmark = pytest.mark.django_db(transaction=True)


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@pytest.fixture
def queue() -> DelayedQueue[str]:
    return DelayedQueue("reminders", poll_period=3)


@pytest.fixture
def heard(other_connection: psycopg.Connection[Any]) -> Callable[[], list[str]]:
    """The announcements since the last call."""
    other_connection.execute("LISTEN delayed_queue")
    return lambda: [notify.payload for notify in other_connection.notifies(timeout=0.05)]


class TestAnnouncements:
    def test_a_message_due_at_once_is_announced_with_its_kind(
        self, queue: DelayedQueue[str], heard: Callable[[], list[str]]
    ) -> None:
        queue.offer_or_update("k", "x", soon(-1))
        assert heard() == [queue.kind]

    def test_a_message_due_before_the_next_poll_is_announced(
        self, queue: DelayedQueue[str], heard: Callable[[], list[str]]
    ) -> None:
        queue.offer_or_update("k", "x", soon(2))
        assert heard() == [queue.kind]

    def test_a_message_that_the_next_poll_will_see_in_time_is_not(
        self, queue: DelayedQueue[str], heard: Callable[[], list[str]]
    ) -> None:
        queue.offer_or_update("soon enough", "x", soon(3.5))
        queue.offer_or_update("far", "x", soon(86_400))
        assert heard() == []

    def test_a_message_behind_one_that_wakes_the_pollers_anyway_is_not(
        self, queue: DelayedQueue[str], heard: Callable[[], list[str]]
    ) -> None:
        queue.offer_or_update("first", "x", soon(1))
        queue.offer_or_update("second", "x", soon(2))
        assert heard() == [queue.kind]
        queue.offer_or_update("earlier", "x", soon(0.5))
        assert heard() == [queue.kind]

    def test_a_message_that_is_due_already_stands_for_no_other(
        self, queue: DelayedQueue[str], heard: Callable[[], list[str]]
    ) -> None:
        """Who takes it may be asleep again before the next one is there."""
        for number in range(3):
            queue.offer_or_update(f"k{number}", "x", soon(0))
        assert heard() == [queue.kind] * 3

    def test_in_a_transaction_no_message_stands_for_another(
        self, queue: DelayedQueue[str], heard: Callable[[], list[str]]
    ) -> None:
        """By the time it commits, the other may be gone."""
        queue.offer_or_update("first", "x", soon(1))
        assert heard() == [queue.kind]
        for offer in (
            lambda: queue.offer_or_update("second", "x", soon(2)),
            lambda: queue.offer_batch([ScheduledMessage("third", "x", soon(2))]),
            lambda: queue.offer_batch([ScheduledMessage("fourth", str(n), soon(2)) for n in range(2)]),
        ):
            with transaction.atomic():
                offer()
            assert heard() == [queue.kind]

    def test_what_is_ignored_is_not(self, queue: DelayedQueue[str], heard: Callable[[], list[str]]) -> None:
        at = soon(1)
        queue.offer_or_update("k", "x", at)
        assert heard() == [queue.kind]
        queue.offer_or_update("k", "x", at)
        queue.offer_if_not_exists("k", "y", at)
        assert heard() == []

    def test_an_update_to_an_earlier_time_is(self, queue: DelayedQueue[str], heard: Callable[[], list[str]]) -> None:
        queue.offer_or_update("k", "x", soon(3600))
        assert heard() == []
        queue.offer_or_update("k", "x", soon(0))
        assert heard() == [queue.kind]

    @pytest.mark.parametrize("can_update", [True, False])
    def test_a_batch_is_announced_once(
        self, queue: DelayedQueue[str], heard: Callable[[], list[str]], can_update: bool
    ) -> None:
        at = soon(0)
        queue.offer_batch([ScheduledMessage(f"k{n}", "x", at, can_update=can_update) for n in range(50)])
        assert heard() == [queue.kind]

    def test_a_batch_offered_one_by_one_inside_is_announced_once(
        self, queue: DelayedQueue[str], heard: Callable[[], list[str]]
    ) -> None:
        queue.offer_batch([ScheduledMessage(f"k{n % 5}", str(n), soon(0)) for n in range(50)])
        assert heard() == [queue.kind]

    def test_a_batch_for_the_far_future_is_not_announced(
        self, queue: DelayedQueue[str], heard: Callable[[], list[str]]
    ) -> None:
        queue.offer_batch([ScheduledMessage(f"k{n}", "x", soon(3600)) for n in range(50)])
        assert heard() == []

    def test_a_release_is_announced(self, queue: DelayedQueue[str], heard: Callable[[], list[str]]) -> None:
        queue.offer_or_update("k", "x", soon(-1))
        envelope = queue.try_poll()
        assert envelope is not None
        heard()
        envelope.release()
        assert heard() == [queue.kind]

    def test_it_is_part_of_the_transaction(self, queue: DelayedQueue[str], heard: Callable[[], list[str]]) -> None:
        with transaction.atomic():
            queue.offer_or_update("k", "x", soon(0))
            assert heard() == []
        assert heard() == [queue.kind]
        with transaction.atomic():
            queue.offer_or_update("l", "x", soon(-60))
            transaction.set_rollback(True)
        assert heard() == []

    def test_it_can_be_switched_off(
        self, queue: DelayedQueue[str], heard: Callable[[], list[str]], settings: Any
    ) -> None:
        settings.DELAYED_QUEUE = {"NOTIFY": False}
        queue.offer_or_update("k", "x", soon(0))
        queue.offer_batch([ScheduledMessage("l", "x", soon(-60))])
        assert heard() == []


def elsewhere(work: Callable[[psycopg.Connection[Any]], Any], after: float = 0.1) -> threading.Timer:
    """Do the work on another connection in a moment."""

    def run() -> None:
        with connect() as other:
            work(other)

    timer = threading.Timer(after, run)
    timer.start()
    return timer


def offer(kind: str, at: str = "0") -> Callable[[psycopg.Connection[Any]], Any]:
    statement = f"SELECT delayed_queue_offer(%s, 'k', 'x', {at}, true, 3000, NULL)"
    return lambda other: other.execute(statement, [kind])


IN_200_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint + 200"


class TestBlockingPoll:
    """The poll period is 30 s here, so that whatever comes was not found by it."""

    @pytest.fixture
    def patient(self) -> DelayedQueue[str]:
        return DelayedQueue("reminders", poll_period=30)

    def test_it_returns_what_is_due(self, patient: DelayedQueue[str]) -> None:
        patient.offer_or_update("k", "x", soon(-1))
        envelope = patient.poll(timeout=0)
        assert envelope is not None

    def test_it_waits_until_the_next_due_time_and_not_longer(self, patient: DelayedQueue[str]) -> None:
        at = soon(0.25)
        patient.offer_or_update("k", "x", at)
        envelope = patient.poll(timeout=20)
        assert envelope is not None
        assert at - timedelta(milliseconds=1) <= envelope.timestamp < at + timedelta(seconds=10)

    def test_it_is_woken_by_an_offer(self, patient: DelayedQueue[str]) -> None:
        timer = elsewhere(offer(patient.kind))
        started = time.monotonic()
        envelope = patient.poll(timeout=25)
        timer.join()
        assert envelope is not None
        assert time.monotonic() - started < 20

    def test_it_is_woken_by_an_offer_for_a_little_later(self, patient: DelayedQueue[str]) -> None:
        timer = elsewhere(offer(patient.kind, IN_200_MS))
        started = time.monotonic()
        envelope = patient.poll(timeout=25)
        timer.join()
        assert envelope is not None
        assert time.monotonic() - started < 20

    def test_an_offer_of_another_kind_does_not_end_it(self, patient: DelayedQueue[str]) -> None:
        timer = elsewhere(offer("another"))
        assert patient.poll(timeout=0.3) is None
        timer.join()

    def test_it_finds_what_nobody_announced_within_the_poll_period(self) -> None:
        quick: DelayedQueue[str] = DelayedQueue("reminders", poll_period=0.2)
        statement = """INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially",
            "createdAt") VALUES ('k', %s, 'x', 0, 0, 0)"""
        timer = elsewhere(lambda other: other.execute(statement, [quick.kind]))
        assert quick.poll(timeout=20) is not None
        timer.join()

    def test_it_takes_what_a_lease_that_ran_out_left(self) -> None:
        brief: DelayedQueue[str] = DelayedQueue("reminders", poll_period=30, acquire_timeout=0.2)
        brief.offer_or_update("k", "x", soon(-1))
        assert brief.try_poll() is not None
        again = brief.poll(timeout=20)
        assert again is not None
        assert again.attempt == 2

    def test_it_gives_up_after_the_timeout(self, patient: DelayedQueue[str]) -> None:
        started = time.monotonic()
        assert patient.poll(timeout=timedelta(milliseconds=150)) is None
        assert time.monotonic() - started >= 0.15

    def test_it_leaves_no_listener_behind(self, patient: DelayedQueue[str]) -> None:
        patient.poll(timeout=0.05)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_listening_channels()")
            assert cursor.fetchone() == (0,)

    def test_without_listen_it_polls(self, settings: Any) -> None:
        settings.DELAYED_QUEUE = {"LISTEN": False}
        quick: DelayedQueue[str] = DelayedQueue("reminders", poll_period=0.2)
        timer = elsewhere(offer(quick.kind))
        assert quick.poll(timeout=20) is not None
        timer.join()

    def test_with_an_injected_clock_it_looks_again_after_the_poll_period(self) -> None:
        now = [datetime(2026, 1, 1, tzinfo=UTC)]
        queue: DelayedQueue[str] = DelayedQueue("reminders", poll_period=0.05, clock=lambda: now[0])
        queue.offer_or_update("k", "x", now[0] + timedelta(hours=1))
        timer = threading.Timer(0.1, lambda: now.__setitem__(0, now[0] + timedelta(hours=2)))
        timer.start()
        assert queue.poll(timeout=20) is not None
        timer.join()

    def test_idle_it_asks_once_in_a_poll_period(self) -> None:
        queue: DelayedQueue[str] = DelayedQueue("reminders", poll_period=0.3)
        statements: list[str] = []

        def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            statements.append(sql)
            return execute(sql, params, many, context)

        with connection.execute_wrapper(count):
            assert queue.poll(timeout=0.75) is None
        polls = [sql for sql in statements if "delayed_queue_poll" in sql]
        assert len(polls) <= 5  # two before it listens, one for each period, one at the end
        assert len(statements) - len(polls) == 2  # LISTEN and UNLISTEN


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def with_an_end() -> Any:
        try:
            return await coroutine
        finally:  # of the thread that the twins work in
            await sync_to_async(connections.close_all)()

    return asyncio.run(with_an_end())


class TestAsync:
    def test_every_operation_has_a_twin(self) -> None:
        async def scenario() -> None:
            queue: DelayedQueue[str] = DelayedQueue("reminders")
            assert (await queue.aoffer_or_update("a", "1", soon(-9))).name == "CREATED"
            assert (await queue.aoffer_if_not_exists("a", "2", soon(-9))).name == "IGNORED"
            batch = [ScheduledMessage(key, key, soon(-5)) for key in "bcdef"]
            assert len(await queue.aoffer_batch(batch)) == 5
            assert await queue.acontains("a")
            assert (await queue.astats()).due == 6
            read = await queue.aread("a")
            assert read is not None
            assert await read.aacknowledge()
            first = await queue.atry_poll()
            assert first is not None
            assert await first.aextend(5)
            assert await first.aacknowledge()
            many = await queue.atry_poll_many(2)
            assert await many.aacknowledge() == 2
            last = await queue.apoll(timeout=5)
            assert last is not None
            assert await last.arelease(3600)
            async with await queue.apoll() as envelope:  # type: ignore[union-attr]
                assert envelope.payload == "f"
            assert await queue.adrop("e")
            assert await queue.adrop_all("Yes, please, I know what I'm doing!") == 0

        run(scenario())

    def test_it_is_woken_by_an_offer(self) -> None:
        async def scenario() -> None:
            queue: DelayedQueue[str] = DelayedQueue("reminders", poll_period=30)
            timer = elsewhere(offer(queue.kind))
            envelope = await asyncio.wait_for(queue.apoll(timeout=25), 20)
            timer.join()
            assert envelope is not None

        run(scenario())

    def test_it_waits_without_holding_the_thread(self) -> None:
        async def scenario() -> None:
            queue: DelayedQueue[str] = DelayedQueue("reminders", poll_period=30)
            waiting = asyncio.ensure_future(queue.apoll(timeout=25))
            await asyncio.sleep(0.1)
            await queue.aoffer_or_update("k", "x", soon(0))  # by the one thread of the database
            envelope = await asyncio.wait_for(waiting, 20)
            assert envelope is not None

        run(scenario())

    def test_it_gives_up_after_the_timeout(self) -> None:
        queue: DelayedQueue[str] = DelayedQueue("reminders")
        assert run(queue.apoll(timeout=0.1)) is None

    def test_an_exception_releases(self) -> None:
        async def scenario() -> None:
            queue: DelayedQueue[str] = DelayedQueue("reminders")
            await queue.aoffer_or_update("k", "x", soon(-1))
            envelope = await queue.apoll()
            assert envelope is not None
            with pytest.raises(ZeroDivisionError):
                async with envelope:
                    _ = 1 / 0
            assert (await queue.astats()).leased == 0

        run(scenario())

    def test_a_cancelled_wait_leaves_nothing_leased(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario() -> None:
            queue: DelayedQueue[str] = DelayedQueue("reminders")
            await queue.aoffer_or_update("k", "x", soon(-1), max_attempts=1)
            taken = threading.Event()
            go_on = threading.Event()
            take = queue._poller._take

            def slow(limit: int) -> Any:
                result = take(limit)
                taken.set()
                go_on.wait(10)
                return result

            monkeypatch.setattr(queue._poller, "_take", slow)
            waiting = asyncio.ensure_future(queue.apoll())
            await asyncio.to_thread(taken.wait, 10)
            waiting.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            stats = await queue.astats()
            assert (stats.leased, stats.due + stats.scheduled) == (0, 1)
            monkeypatch.undo()
            again = await queue.apoll(timeout=5)  # the one attempt was not spent
            assert again is not None
            assert again.attempt == 1

        run(scenario())
