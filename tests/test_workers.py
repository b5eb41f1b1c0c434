"""A worker process from the inside: what it does with messages. How it survives is in tests/chaos."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from delayed_queue import (
    Backoff,
    BytesSerializer,
    DeadLetter,
    DelayedQueue,
    Retry,
    Snooze,
    current_delivery,
    delayed_task,
    signals,
)
from delayed_queue.models import DeadMessage, DelayedMessage, Delivery, Worker
from delayed_queue.testing import isolated_registry
from tests.conftest import connect
from tests.working import run_until_empty, running_worker, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

SOON = Backoff(initial=0.01, jitter=0)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    with isolated_registry():
        yield


def history(kind: str, key: str) -> list[tuple[int, str]]:
    return [(line.attempt, line.outcome) for line in Delivery.objects.of(kind, key)]


# Delivering


def test_what_is_due_is_run_and_what_is_later_is_left() -> None:
    seen = []

    @delayed_task(kind="k")
    def note(n: int, *, word: str = "") -> None:
        seen.append((n, word))

    note.using(key="now").offer(1, word="x")
    note.using(key="later", delay=3600).offer(2)
    run_until_empty()
    assert seen == [(1, "x")]
    assert [message.key for message in DelayedMessage.objects.all()] == ["later"]
    assert history("k", "now") == [(1, "done")]


def test_a_kind_that_nobody_here_serves_is_left_alone() -> None:
    delayed_task(kind="known")(lambda: None)
    with isolated_registry():
        stranger = delayed_task(kind="unknown")(lambda: None)
        stranger.offer()
    run_until_empty()
    message = stranger.message(DelayedMessage.objects.get().key)
    assert message is not None
    assert (message.state, message.attempts) == ("ready", 0)


def test_a_message_is_delivered_when_its_time_comes() -> None:
    seen: list[float] = []

    @delayed_task(kind="k")
    def note() -> None:
        seen.append(time.time())

    with running_worker(poll_period=60):
        wait_until(lambda: Worker.objects.exists())
        due = note.using(delay=0.3).offer().scheduled_at
        wait_until(lambda: seen)
    assert seen[0] >= due.timestamp()


def test_the_old_name_of_a_task_is_served() -> None:
    seen = []
    with isolated_registry():
        delayed_task(kind="old.name")(lambda n: None).offer(1)
    delayed_task(kind="new.name", aliases=["old.name"])(lambda n: seen.append(n)).offer(2)
    run_until_empty()
    assert sorted(seen) == [1, 2]


def test_plain_handlers_run_side_by_side() -> None:
    together = threading.Barrier(3, timeout=20)
    meet = delayed_task(kind="meet", max_attempts=1)(lambda: together.wait())
    meet.offer_many([()] * 3)
    run_until_empty(threads=3)
    assert not DeadMessage.objects.exists()


def test_async_handlers_run_side_by_side_on_one_loop() -> None:
    arrived: list[asyncio.AbstractEventLoop] = []

    @delayed_task(kind="meet", max_attempts=1)
    async def meet() -> None:
        arrived.append(asyncio.get_running_loop())
        async with asyncio.timeout(20):
            while len(arrived) < 30:
                await asyncio.sleep(0.001)

    meet.offer_many([()] * 30)
    run_until_empty(threads=1)
    assert not DeadMessage.objects.exists()
    assert len(set(arrived)) == 1


def test_async_handlers_use_the_orm() -> None:
    @delayed_task(kind="k", max_attempts=1)
    async def note() -> None:
        await Worker.objects.acreate(id=7, host="h", pid=1, threads=1, started_at=0, beat_at=0)

    note.offer()
    run_until_empty()
    assert Worker.objects.filter(id=7).exists()
    assert not DeadMessage.objects.exists()


def test_context_variables_do_not_leak_into_the_next_message() -> None:
    import contextvars

    variable = contextvars.ContextVar("variable", default=0)
    seen = []

    @delayed_task(kind="plain")
    def plain() -> None:
        seen.append(variable.get())
        variable.set(1)

    @delayed_task(kind="async")
    async def asynchronous() -> None:
        seen.append(variable.get())
        variable.set(1)

    plain.offer_many([()] * 3)
    asynchronous.offer_many([()] * 3)
    run_until_empty(threads=1)
    assert seen == [0] * 6
    assert current_delivery() is None


def test_no_transaction_is_open_while_a_handler_runs() -> None:
    seen = []
    delayed_task(kind="k")(lambda: seen.append(connection.in_atomic_block)).offer()
    run_until_empty()
    assert seen == [False]


def test_a_handler_is_told_what_it_handles() -> None:
    seen: list[Any] = []

    @delayed_task(kind="k", backoff=SOON)
    def note() -> None:
        delivery = current_delivery()
        assert delivery is not None
        seen.append((delivery.key, delivery.kind, delivery.attempt, delivery.scheduled_for, delivery.lease_held))
        if delivery.attempt < 2:
            raise Retry(delay=0)

    at = note.using(key="a").offer().scheduled_at
    with running_worker():
        wait_until(lambda: not DelayedMessage.objects.exists())
    assert seen == [("a", "k", 1, at, True), ("a", "k", 2, at, True)]


# Failing


def test_a_failure_is_retried_and_then_dead_with_the_traceback() -> None:
    @delayed_task(kind="k", max_attempts=3, backoff=SOON)
    def fails() -> None:
        raise RuntimeError("no such luck")

    fails.using(key="a").offer()
    with running_worker():
        wait_until(lambda: DeadMessage.objects.exists())
    dead = DeadMessage.objects.get()
    assert (dead.key, dead.reason, dead.attempts) == ("a", "exhausted", 3)
    assert str(dead.error).startswith("Traceback")
    assert 'raise RuntimeError("no such luck")' in str(dead.error)
    assert "executor.py" not in str(dead.error)
    assert history("k", "a") == [(1, "retried"), (2, "retried"), (3, "dead")]


def test_the_maximum_of_the_message_goes_before_that_of_the_task() -> None:
    @delayed_task(kind="k", max_attempts=5, backoff=SOON)
    def fails() -> None:
        raise RuntimeError

    fails.using(key="a", max_attempts=1).offer()
    run_until_empty()
    assert DeadMessage.objects.get().attempts == 1


def test_an_exception_that_cannot_be_written_down_is_a_failure_like_any_other() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ValueError

    @delayed_task(kind="k", max_attempts=1)
    def fails() -> None:
        raise Unspeakable

    fails.offer()
    run_until_empty()
    assert "Unspeakable" in str(DeadMessage.objects.get().error)


def test_sys_exit_in_a_handler_is_a_failure_and_ends_nothing() -> None:
    seen = []

    @delayed_task(kind="exits", max_attempts=1)
    def exits() -> None:
        raise SystemExit(3)

    exits.offer_many([()] * 3)
    delayed_task(kind="k")(lambda: seen.append(1)).using(priority=-1).offer()
    run_until_empty(threads=1)
    assert seen == [1]
    assert DeadMessage.objects.count() == 3


def test_a_payload_that_is_no_call_is_dead_with_the_reason() -> None:
    delayed_task(kind="k")(lambda: None)
    DelayedQueue.for_kind("k", BytesSerializer()).offer_or_update("bad", b"\xff", timezone.now())
    run_until_empty()
    dead = DeadMessage.objects.get()
    assert (dead.key, dead.reason) == ("bad", "undecodable")


def test_a_snooze_spends_no_attempt() -> None:
    seen = []

    @delayed_task(kind="k", max_attempts=1)
    def dozes() -> None:
        delivery = current_delivery()
        assert delivery is not None
        seen.append(delivery.attempt)
        if len(seen) < 4:
            raise Snooze(0.001)

    dozes.using(key="a").offer()
    with running_worker():
        wait_until(lambda: not DelayedMessage.objects.exists())
    assert seen == [1, 1, 1, 1]
    assert history("k", "a") == [(1, "snoozed")] * 3 + [(1, "done")]


def test_a_dead_letter_is_dead_at_once() -> None:
    @delayed_task(kind="k")
    def rejects() -> None:
        raise DeadLetter("the customer is gone")

    rejects.offer()
    run_until_empty()
    dead = DeadMessage.objects.get()
    assert (dead.reason, dead.error, dead.attempts) == ("rejected", "the customer is gone", 1)


def test_the_connection_that_one_handler_broke_does_not_reach_the_next() -> None:
    seen = []

    @delayed_task(kind="breaks", max_attempts=1)
    def breaks() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    @delayed_task(kind="reads", max_attempts=1)
    def reads() -> None:
        seen.append(Worker.objects.count())

    for _ in range(3):
        breaks.offer()
        reads.offer()
    run_until_empty(threads=1)
    assert len(seen) == 3


def test_a_thread_keeps_its_connection_from_message_to_message() -> None:
    backends = []

    @delayed_task(kind="k")
    def note() -> None:
        Worker.objects.count()
        backends.append(connection.connection.info.backend_pid)

    note.offer_many([()] * 20)
    run_until_empty(threads=1)
    assert len(backends) == 20
    assert len(set(backends)) == 1


def test_a_connection_that_was_severed_while_idle_costs_no_attempt() -> None:
    backends: list[int] = []

    @delayed_task(kind="k", max_attempts=1)
    def note() -> None:
        Worker.objects.count()
        backends.append(connection.connection.info.backend_pid)

    with running_worker(threads=1):
        note.offer()
        wait_until(lambda: backends)
        with connect() as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", backends)
        note.offer()
        wait_until(lambda: len(backends) == 2)
    assert not DeadMessage.objects.exists()


def test_a_transaction_that_a_handler_left_open_does_not_reach_the_next() -> None:
    seen = []

    @delayed_task(kind="forgets")
    def forgets() -> None:
        transaction.atomic().__enter__()
        Worker.objects.create(id=7, host="forgotten", pid=1, threads=1, started_at=0, beat_at=0)

    note = delayed_task(kind="notes")(lambda: seen.append(connection.in_atomic_block))
    for _ in range(2):
        forgets.offer()
        note.offer()
    run_until_empty(threads=1)
    assert seen == [False, False]
    assert not Worker.objects.filter(host="forgotten").exists()


# Time-outs


def test_a_plain_handler_that_overruns_its_time_has_failed_and_holds_up_nobody() -> None:
    release = threading.Event()
    seen = []

    @delayed_task(kind="slow", timeout=0.2, max_attempts=1)
    def slow() -> None:
        release.wait(30)  # inside a call of the system, where no exception reaches it

    slow.using(key="a").offer()
    quick = delayed_task(kind="quick")(lambda: seen.append(1))
    with running_worker(threads=1):
        wait_until(lambda: DeadMessage.objects.exists())
        quick.offer()
        wait_until(lambda: seen)
        release.set()
    assert DeadMessage.objects.get().error == "TaskTimeout: the handler ran for more than 0.2 s"
    assert history("slow", "a") == [(1, "dead")]


def test_a_plain_handler_in_python_code_is_interrupted() -> None:
    ended = threading.Event()

    @delayed_task(kind="slow", timeout=0.2, max_attempts=1)
    def slow() -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    slow.offer()
    run_until_empty(threads=1)
    assert ended.wait(20)


def test_an_async_handler_that_overruns_its_time_is_cancelled() -> None:
    ended = []

    @delayed_task(kind="slow", timeout=0.1, max_attempts=1)
    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(1)

    slow.using(key="a").offer()
    run_until_empty()
    assert ended == [1]
    assert DeadMessage.objects.get().error == "TaskTimeout: the handler ran for more than 0.1 s"


def test_a_time_out_of_the_handlers_own_making_is_an_ordinary_failure() -> None:
    @delayed_task(kind="k", max_attempts=1, timeout=20)
    async def fails() -> None:
        raise TimeoutError("the partner did not answer")

    fails.offer()
    run_until_empty()
    assert "the partner did not answer" in str(DeadMessage.objects.get().error)


# Leases


def test_a_lease_is_renewed_for_as_long_as_the_handler_runs() -> None:
    attempts = []

    @delayed_task(kind="slow", lease=0.6)
    def slow() -> None:
        delivery = current_delivery()
        assert delivery is not None
        attempts.append(delivery.attempt)
        time.sleep(1.5)
        assert delivery.lease_held

    slow.using(key="a").offer()
    with running_worker(threads=2, poll_period=0.05), running_worker(threads=2, poll_period=0.05):
        wait_until(lambda: not DelayedMessage.objects.exists())
    assert attempts == [1]
    assert history("slow", "a") == [(1, "done")]


def test_a_handler_extends_its_lease() -> None:
    seen: list[Any] = []

    @delayed_task(kind="k")
    def extends() -> None:
        delivery = current_delivery()
        assert delivery is not None
        seen.append(delivery.extend(timedelta(hours=1)))
        seen.append(DelayedMessage.objects.get(key="a").scheduled_at / 1000 - time.time() > 3000)

    extends.using(key="a").offer()
    run_until_empty()
    assert seen == [True, True]


def test_the_acknowledgement_of_a_message_that_was_updated_meanwhile_is_refused() -> None:
    seen = []
    started, go_on = threading.Event(), threading.Event()

    @delayed_task(kind="k")
    def handle(version: int) -> None:
        seen.append(version)
        if version == 1:
            started.set()
            go_on.wait(20)

    handle.using(key="a").offer(1)
    with running_worker():
        assert started.wait(20)
        handle.using(key="a").offer(2)
        go_on.set()
        wait_until(lambda: not DelayedMessage.objects.exists())
        wait_until(lambda: len(history("k", "a")) == 2)
    assert seen == [1, 2]
    assert sorted(outcome for _, outcome in history("k", "a")) == ["done", "lost"]


def test_a_handler_learns_that_its_message_was_taken_away() -> None:
    learned = threading.Event()
    lost = []
    signals.lease_lost.connect(receiver := lambda delivery, **kwargs: lost.append(delivery.key))

    @delayed_task(kind="k", lease=0.3)
    def handle() -> None:
        delivery = current_delivery()
        assert delivery is not None
        handle.drop("a")
        deadline = time.monotonic() + 20
        while delivery.lease_held and time.monotonic() < deadline:
            time.sleep(0.01)
        if not delivery.extend():
            learned.set()

    handle.using(key="a").offer()
    try:
        run_until_empty()
    finally:
        signals.lease_lost.disconnect(receiver)
    assert learned.is_set()
    assert lost == ["a"]


def test_an_atomic_task_and_its_acknowledgement_are_one_transaction() -> None:
    @delayed_task(kind="pay", atomic=True)
    def pay() -> None:
        assert connection.in_atomic_block
        Worker.objects.create(id=7, host="effect", pid=1, threads=1, started_at=0, beat_at=0)

    pay.using(key="a").offer()
    run_until_empty()
    assert Worker.objects.filter(host="effect").count() == 1
    assert history("pay", "a") == [(1, "done")]


def test_an_atomic_task_that_lost_its_lease_cannot_commit() -> None:
    started, go_on = threading.Event(), threading.Event()
    versions = []

    @delayed_task(kind="pay", atomic=True)
    def pay(version: int) -> None:
        versions.append(version)
        Worker.objects.create(id=version, host="effect", pid=1, threads=1, started_at=0, beat_at=0)
        if version == 1:
            started.set()
            go_on.wait(20)

    pay.using(key="a").offer(1)
    with running_worker():
        assert started.wait(20)
        pay.using(key="a").offer(2)
        go_on.set()
        wait_until(lambda: not DelayedMessage.objects.exists())
    assert versions == [1, 2]
    assert [worker.id for worker in Worker.objects.filter(host="effect")] == [2]


def test_the_effects_of_an_atomic_task_that_fails_are_undone() -> None:
    @delayed_task(kind="pay", atomic=True, max_attempts=1)
    def pay() -> None:
        Worker.objects.create(id=7, host="effect", pid=1, threads=1, started_at=0, beat_at=0)
        raise RuntimeError

    pay.offer()
    run_until_empty()
    assert not Worker.objects.filter(host="effect").exists()
    assert DeadMessage.objects.count() == 1


# Stopping


def test_what_has_not_started_when_a_worker_stops_is_given_back_and_spends_no_attempt() -> None:
    started, go_on = threading.Event(), threading.Event()

    @delayed_task(kind="k")
    def handle() -> None:
        started.set()
        go_on.wait(20)

    handle.offer_many([()] * 20)
    with running_worker(threads=1) as worker:
        assert started.wait(20)
        worker.request_stop()
        wait_until(lambda: DelayedMessage.objects.filter(lock_uuid=None).count() == 19)
        go_on.set()
    assert DelayedMessage.objects.count() == 19
    assert set(DelayedMessage.objects.values_list("attempts", flat=True)) == {0}


@pytest.mark.parametrize("is_async", [False, True])
def test_what_does_not_end_in_time_is_given_back_and_spends_no_attempt(is_async: bool) -> None:
    started, go_on = threading.Event(), threading.Event()

    @delayed_task(kind="plain")
    def plain() -> None:
        started.set()
        go_on.wait(20)

    @delayed_task(kind="async")
    async def asynchronous() -> None:
        started.set()
        await asyncio.sleep(20)

    (asynchronous if is_async else plain).using(key="a").offer()
    with running_worker(threads=1, shutdown_timeout=0.1) as worker:
        assert started.wait(20)
        worker.request_stop()
    message = DelayedMessage.objects.get()
    assert (message.attempts, message.lock_uuid) == (0, None)
    go_on.set()


def test_a_worker_ends_after_so_many_messages() -> None:
    handle = delayed_task(kind="k")(lambda: None)
    handle.offer_many([()] * 20)
    with running_worker(max_messages=7, threads=2):
        wait_until(lambda: DelayedMessage.objects.count() == 13)
    assert set(DelayedMessage.objects.values_list("attempts", flat=True)) == {0}
    assert Delivery.objects.filter(outcome="done").count() == 7


# Telling


def test_the_journal_of_a_task_says_what_is_written_down(settings: Any) -> None:
    @delayed_task(kind="failures", journal="failures", max_attempts=2, backoff=SOON)
    def sometimes(fail: bool) -> None:
        if fail:
            raise RuntimeError("boom\nand more of it")

    silent = delayed_task(kind="none", journal="none")(lambda: None)
    usual = delayed_task(kind="usual")(lambda: None)
    settings.DELAYED_QUEUE = {"JOURNAL": "failures"}
    for offered in (sometimes.using(key="good").offer(False), sometimes.using(key="bad").offer(True)):
        assert offered.key
    silent.using(key="a").offer()
    usual.using(key="a").offer()
    with running_worker():
        wait_until(lambda: DeadMessage.objects.exists() and not DelayedMessage.objects.exists())
    assert history("failures", "good") == history("none", "a") == history("usual", "a") == []
    assert history("failures", "bad") == [(1, "retried"), (2, "dead")]
    assert {line.error for line in Delivery.objects.all()} == {"RuntimeError: boom"}


def test_signals_are_sent_and_a_receiver_that_fails_changes_nothing() -> None:
    seen: list[tuple[str, str]] = []

    def receive(signal: Any, delivery: Any, **kwargs: Any) -> None:
        name = next(name for name, value in vars(signals).items() if value is signal)
        seen.append((name, delivery.key))
        raise RuntimeError("a bad receiver")

    all_signals = [signals.delivery_started, signals.delivery_done, signals.delivery_retried, signals.message_dead]
    for signal in all_signals:
        signal.connect(receive)

    @delayed_task(kind="k", max_attempts=2, backoff=SOON)
    def handle(fail: bool) -> None:
        if fail:
            raise RuntimeError

    try:
        handle.using(key="good").offer(False)
        handle.using(key="bad").offer(True)
        with running_worker():
            wait_until(lambda: DeadMessage.objects.exists() and not DelayedMessage.objects.exists())
    finally:
        for signal in all_signals:
            signal.disconnect(receive)
    assert [name for name, key in seen if key == "good"] == ["delivery_started", "delivery_done"]
    assert [name for name, key in seen if key == "bad"] == [
        "delivery_started",
        "delivery_retried",
        "delivery_started",
        "message_dead",
    ]


def test_log_records_carry_what_a_program_looks_for(caplog: pytest.LogCaptureFixture) -> None:
    @delayed_task(kind="k", max_attempts=1)
    def fails() -> None:
        raise RuntimeError("boom")

    fails.using(key="a").offer()
    with caplog.at_level(logging.DEBUG, "delayed_queue"):
        run_until_empty()
    record: Any = next(record for record in caplog.records if record.levelname == "ERROR")
    assert (record.key, record.kind, record.attempt, record.outcome) == ("a", "k", 1, "dead")
    assert record.duration >= 0


def test_a_worker_has_a_row_for_as_long_as_it_lives() -> None:
    delayed_task(kind="k")(lambda: None)
    with running_worker(threads=3):
        wait_until(lambda: Worker.objects.exists())
        worker = Worker.objects.get()
        assert (worker.kinds, worker.threads, worker.state) == (["k"], 3, "running")
        assert list(Worker.objects.alive()) == [worker]
    assert not Worker.objects.exists()


def test_an_idle_worker_asks_once_in_a_poll_period() -> None:
    delayed_task(kind="k")(lambda: None)
    delayed_task(kind="other")(lambda: None)
    with running_worker(poll_period=1.0) as worker:
        wait_until(lambda: Worker.objects.exists())
        time.sleep(0.3)
        leases = []
        lease = worker._store.lease
        worker._store.lease = lambda *args: leases.append(1) or lease(*args)  # type: ignore[assignment,func-returns-value]
        time.sleep(3.0)
    assert 1 <= len(leases) <= 5
