"""A look at a task's message, and taking it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from delayed_queue import BytesSerializer, DelayedQueue, DropOutcome
from delayed_queue.models import DeadMessage, DelayedMessage
from delayed_queue.tasks import Task, TaskMessage
from tests.conftest import NOON, FrozenClock


def cancel_unpaid(order_id: int, *, notify: bool = False) -> None: ...


task = Task(cancel_unpaid, kind="cancel")
Look = Callable[[], TaskMessage]


@pytest.fixture(autouse=True)
def frozen(db: None, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> FrozenClock:
    manager = DelayedMessage.objects.configured(using="default", clock=clock)
    monkeypatch.setattr("delayed_queue.tasks.databases._manager", lambda alias: manager)
    return clock


@pytest.fixture
def deliveries(clock: FrozenClock) -> DelayedQueue[bytes]:
    return DelayedQueue.for_kind("cancel", BytesSerializer(), clock=clock, acquire_timeout=60)


def look(key: str = "k") -> TaskMessage:
    message = task.message(key)
    assert message is not None
    return message


def test_there_may_be_none() -> None:
    assert task.message("k") is None
    assert task.drop("k") is DropOutcome.ABSENT


def test_it_tells_all_about_a_message() -> None:
    task.using(key="k", delay=60, priority=3, max_attempts=4, expires=30).offer(42, notify=True)
    due = NOON + timedelta(seconds=60)
    assert look() == TaskMessage(
        key="k",
        kind="cancel",
        state="scheduled",
        args=[42],
        kwargs={"notify": True},
        scheduled_at=due,
        scheduled_for=due,
        attempts=0,
        priority=3,
        max_attempts=4,
        expires_at=due + timedelta(seconds=30),
        last_error=None,
        reason=None,
        died_at=None,
    )
    with pytest.raises(FrozenInstanceError):
        look().state = "done"  # type: ignore[misc]


def test_the_states_follow_the_life_of_a_message(clock: FrozenClock, deliveries: DelayedQueue[bytes]) -> None:
    task.using(key="k", delay=1).offer(42)
    assert look().state == "scheduled"
    clock.advance(1)
    assert look().state == "ready"
    envelope = deliveries.try_poll()
    assert envelope is not None
    assert (look().state, look().attempts) == ("running", 1)
    assert (look().scheduled_at, look().scheduled_for) == (clock.now + timedelta(seconds=60), clock.now)
    clock.advance(60)
    assert look().state == "stalled"
    envelope.release(5, error="no answer")
    assert (look().state, look().attempts, look().last_error) == ("scheduled", 1, "no answer")
    clock.advance(5)
    assert look().state == "ready"


def test_the_newest_dead_one_is_seen_if_none_is_alive(clock: FrozenClock, deliveries: DelayedQueue[bytes]) -> None:
    for number in range(2):
        task.using(key="k", expires=1).offer(number)
        clock.advance(1)
        assert deliveries.try_poll() is None
    message = look()
    assert DeadMessage.objects.count() == 2
    assert (message.state, message.args, message.reason, message.died_at) == ("dead", [1], "expired", clock.now)
    assert (message.scheduled_at, message.scheduled_for) == (None, clock.now - timedelta(seconds=1))
    assert message.attempts == 0
    task.using(key="k").offer(3)
    assert (look().state, look().args) == ("ready", [3])


def test_the_error_of_a_dead_one_is_there(clock: FrozenClock, deliveries: DelayedQueue[bytes]) -> None:
    task.using(key="k", max_attempts=1).offer(42)
    envelope = deliveries.try_poll()
    assert envelope is not None
    envelope.release(error="ValueError: no such order")
    clock.advance(1)
    assert deliveries.try_poll() is None
    assert (look().state, look().reason, look().max_attempts) == ("dead", "exhausted", 1)
    assert "ValueError: no such order" in str(look().last_error)


def test_one_that_is_no_call_can_still_be_looked_at(deliveries: DelayedQueue[bytes]) -> None:
    deliveries.offer_or_update("k", b"\xff", NOON)
    assert (look().state, look().args, look().kwargs) == ("ready", None, None)


def test_what_another_program_put_in_again_was_not_attempted(deliveries: DelayedQueue[bytes]) -> None:
    """The JVM library rewrites the first eight columns and leaves the counter."""
    task.using(key="k").offer(42)
    assert deliveries.try_poll() is not None
    with connection.cursor() as cursor:
        cursor.execute('UPDATE delayed_queue SET "scheduledAt" = 5, "scheduledAtInitially" = 5, "lockUuid" = NULL')
    assert (look().state, look().attempts) == ("ready", 0)


def test_other_kinds_with_the_key_are_other_messages() -> None:
    Task(cancel_unpaid, kind="other").using(key="k").offer(42)
    assert task.message("k") is None
    assert not task.drop("k")


def test_a_look_is_one_statement_and_locks_nothing(
    django_assert_num_queries: Any, deliveries: DelayedQueue[bytes]
) -> None:
    task.using(key="k").offer(42)
    with django_assert_num_queries(1):
        look()
    assert deliveries.try_poll() is not None


def test_a_drop_says_whether_it_was_running(deliveries: DelayedQueue[bytes]) -> None:
    task.using(key="k").offer(42)
    assert task.drop("k") is DropOutcome.DROPPED
    task.using(key="k").offer(42)
    assert deliveries.try_poll() is not None
    assert task.drop("k") is DropOutcome.DROPPED_WHILE_LEASED


def test_both_have_twins() -> None:
    task.using(key="k").offer(42)
    assert async_to_sync(task.amessage)("k") == look()
    assert async_to_sync(task.adrop)("k") is DropOutcome.DROPPED
