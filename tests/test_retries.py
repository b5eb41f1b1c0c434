"""R13 and R14: whose clock decides, and what is tried again after which failure."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from delayed_queue import Backoff, DelayedQueue, QueueUnavailable, RetryConfig, ScheduledMessage
from delayed_queue.errors import is_transient
from delayed_queue.messages import OfferOutcome
from tests.conftest import NOON, connect

FAST = RetryConfig(backoff=Backoff(initial=0.01, maximum=0.05))
TRANSIENT = ["08000", "08006", "08P01", "40001", "40P01", "53300", "55P03", "57P01", "57P02", "57P03"]
FOR_GOOD = ["22001", "23505", "25006", "42P01", "53100", "57014", "57P04", "57P05", "0A000"]


def queue(**options: Any) -> DelayedQueue[str]:
    return DelayedQueue("reminders", **({"retry": FAST} | options))


class Failing:
    """Lets statements fail, as a server would: with an SQLSTATE, through Django."""

    def __init__(self, sqlstates: list[str]) -> None:
        self.sqlstates = sqlstates
        self.calls = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.calls += 1
        if self.sqlstates:
            sqlstate = self.sqlstates.pop(0)
            cause = psycopg.errors.lookup(sqlstate)() if sqlstate != "08P01" else psycopg.errors.ProtocolViolation()
            raise OperationalError("as if the server had said so") from cause
        return execute(sql, params, many, context)


@pytest.mark.parametrize("sqlstate", TRANSIENT)
@pytest.mark.django_db(transaction=True)
def test_a_transient_error_is_tried_again(sqlstate: str) -> None:
    failing = Failing([sqlstate] * 3)
    with connection.execute_wrapper(failing):
        assert queue().offer_or_update("k", "x", NOON) is OfferOutcome.CREATED
    assert failing.calls == 4


@pytest.mark.parametrize("sqlstate", FOR_GOOD)
@pytest.mark.django_db(transaction=True)
def test_nothing_else_is_tried_again(sqlstate: str) -> None:
    failing = Failing([sqlstate])
    with connection.execute_wrapper(failing), pytest.raises(DatabaseError):
        queue().offer_or_update("k", "x", NOON)
    assert failing.calls == 1


@pytest.mark.django_db(transaction=True)
def test_after_five_retries_the_queue_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing(["40P01"] * 99)
    with (
        caplog.at_level(logging.WARNING, "delayed_queue"),
        connection.execute_wrapper(failing),
        pytest.raises(QueueUnavailable, match="'default' did not answer") as unavailable,
    ):
        queue().offer_or_update("k", "x", NOON)
    assert failing.calls == 6
    assert isinstance(unavailable.value.__cause__, OperationalError)
    assert caplog.text.count("trying again in") == 5


@pytest.mark.django_db(transaction=True)
def test_it_gives_up_earlier_when_the_time_in_all_is_over() -> None:
    failing = Failing(["40P01"] * 99)
    slow = RetryConfig(backoff=Backoff(initial=0.02, factor=1, jitter=0), total=0.05)
    with connection.execute_wrapper(failing), pytest.raises(QueueUnavailable):
        queue(retry=slow).offer_or_update("k", "x", NOON)
    assert failing.calls == 3


def test_the_defaults_are_the_contracts() -> None:
    config = RetryConfig()
    assert (config.retries, config.total) == (5, 30)
    longest = [Backoff(config.backoff.initial, 2, config.backoff.maximum, jitter=0).seconds(n) for n in range(1, 9)]
    assert longest == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    delays = {config.backoff.seconds(3) for _ in range(50)}
    assert len(delays) > 40
    assert all(0.2 <= delay <= 0.4 for delay in delays)


def test_a_backoff_does_not_overflow() -> None:
    assert Backoff(jitter=0).seconds(100_000) == 3600


@pytest.mark.django_db(transaction=True)
def test_inside_a_transaction_nothing_is_tried_again() -> None:
    failing = Failing(["40P01"])
    with pytest.raises(OperationalError), transaction.atomic(), connection.execute_wrapper(failing):
        queue().offer_or_update("k", "x", NOON)
    assert failing.calls == 1


@pytest.mark.django_db(transaction=True)
def test_with_autocommit_switched_off_nothing_is_tried_again() -> None:
    failing = Failing(["40P01"])
    transaction.set_autocommit(False)
    try:
        with connection.execute_wrapper(failing), pytest.raises(OperationalError):
            queue().offer_or_update("k", "x", NOON)
        assert failing.calls == 1
        transaction.rollback()
        reminders = queue()
        assert reminders.try_poll() is None
        reminders.offer_or_update("k", "x", NOON)
        assert reminders.try_poll() is not None
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_errors_of_ones_own_are_not_transient() -> None:
    assert not is_transient(ValueError("40P01"))


class TestKilledConnections:
    """For real: the server ends the session, and the next operation does not notice."""

    @pytest.fixture(autouse=True)
    def killer(self, transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
        with connect() as self.other:
            yield self.other

    def kill(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()
        self.other.execute("SELECT pg_terminate_backend(%s, 1000)", [pid])

    def test_every_operation_outside_a_transaction_survives(self) -> None:
        reminders = queue()
        self.kill()
        assert reminders.offer_or_update("k", "x", NOON) is OfferOutcome.CREATED
        self.kill()
        assert reminders.offer_batch([ScheduledMessage("b", "x", NOON)]) == [OfferOutcome.CREATED]
        self.kill()
        envelope = reminders.try_poll()
        assert envelope is not None
        self.kill()
        assert envelope.extend()
        self.kill()
        assert envelope.acknowledge()
        self.kill()
        assert len(reminders.try_poll_many(5)) == 1
        self.kill()
        assert reminders.stats().leased == 1
        self.kill()
        assert reminders.drop("b")

    def test_a_session_that_the_server_ended_for_idleness_is_no_error(self) -> None:
        connection.cursor().execute("SET idle_session_timeout = '20ms'")
        pid = connection.connection.info.backend_pid
        deadline = time.monotonic() + 10
        while self.other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone():
            assert time.monotonic() < deadline
        assert not queue().contains("k")

    def test_statements_that_someone_deallocated_are_not_missed(self) -> None:
        reminders = queue()
        for number in range(10):
            reminders.offer_or_update(f"k{number}", "x", NOON)
        connection.cursor().execute("DISCARD ALL")
        assert reminders.offer_or_update("k", "x", NOON) is OfferOutcome.CREATED
        assert reminders.try_poll() is not None

    def test_a_batch_of_many_chunks_starts_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("delayed_queue.batches.CHUNK", 10)
        killed = []

        def kill_once(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if "INSERT INTO delayed_queue" in sql and params["keys"].startswith('{"k5') and not killed:
                killed.append(sql)
                pid = connection.connection.info.backend_pid
                self.other.execute("SELECT pg_terminate_backend(%s, 1000)", [pid])
            return execute(sql, params, many, context)

        messages = [ScheduledMessage(f"k{n}", "x", NOON) for n in range(10, 99)]
        with connection.execute_wrapper(kill_once):
            assert queue().offer_batch(messages) == [OfferOutcome.CREATED] * len(messages)
        assert killed
        assert queue().stats().due == len(messages)

    def test_inside_a_transaction_the_caller_is_told(self) -> None:
        with pytest.raises(OperationalError), transaction.atomic():
            queue().offer_or_update("k", "x", NOON)
            self.kill()
            queue().offer_or_update("l", "x", NOON)
        assert not queue().contains("k")

    def test_a_blocking_poll_goes_on(self) -> None:
        reminders = queue(poll_period=0.2)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()

        def kill_then_offer() -> None:
            self.other.execute("SELECT pg_terminate_backend(%s, 1000)", [pid])
            self.other.execute("SELECT delayed_queue_offer(%s, 'k', 'x', 0, true, 3000, NULL)", [reminders.kind])

        timer = threading.Timer(0.1, kill_then_offer)
        timer.start()
        envelope = reminders.poll(timeout=10)
        timer.join()
        assert envelope is not None
        assert envelope.key == "k"


@pytest.mark.django_db(transaction=True)
def test_a_lock_that_is_not_available_is_waited_for(other_connection: psycopg.Connection[Any]) -> None:
    queue().offer_or_update("k", "x", NOON)
    other_connection.execute("BEGIN")
    other_connection.execute("SELECT * FROM delayed_queue FOR UPDATE")
    timer = threading.Timer(0.2, other_connection.execute, ["COMMIT"])
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '20ms'")
    timer.start()
    try:
        patient = RetryConfig(retries=50, backoff=Backoff(initial=0.02, factor=1))
        assert queue(retry=patient).offer_or_update("k", "y", NOON) is OfferOutcome.UPDATED
    finally:
        timer.join()
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = 0")


class TestClock:
    @pytest.mark.django_db
    def test_by_default_it_is_the_databases(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A host ten minutes ahead neither takes early nor leases short: its clock is never asked."""
        reminders = queue()
        now = datetime.now(UTC)
        reminders.offer_or_update("later", "x", now + timedelta(minutes=5))
        monkeypatch.setattr("time.time", lambda: now.timestamp() + 600)
        assert reminders.try_poll() is None
        reminders.offer_or_update("now", "x", now - timedelta(seconds=1))
        envelope = reminders.try_poll()
        assert envelope is not None
        assert abs(envelope.timestamp - now) < timedelta(seconds=30)

    @pytest.mark.django_db
    def test_it_moves_on_inside_a_transaction(self) -> None:
        reminders = queue()
        with connection.cursor() as cursor:  # the test's own transaction has begun before this
            cursor.execute("SELECT clock_timestamp() > now() + interval '0 ms', pg_sleep(0.02)")
        reminders.offer_or_update("k", "x", datetime.now(UTC) - timedelta(milliseconds=10))
        assert reminders.try_poll() is not None

    @pytest.mark.django_db
    def test_an_injected_one_decides_everything(self) -> None:
        reminders = queue(clock=lambda: datetime(2000, 1, 1, tzinfo=UTC))
        reminders.offer_or_update("k", "x", datetime(2000, 1, 1, tzinfo=UTC))
        envelope = reminders.try_poll()
        assert envelope is not None
        assert envelope.timestamp == datetime(2000, 1, 1, tzinfo=UTC)
        assert reminders.stats().leased == 1
