"""delayed_queue.testing: what a project's own tests use."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.test import TestCase
from django.utils import timezone

from delayed_queue import DeadLetter, Retry, Snooze, current_delivery, delayed_task
from delayed_queue.models import Control, DeadMessage, Delivery
from delayed_queue.testing import FrozenClock, HandlerFailed, drain, isolated_registry, offered
from tests.conftest import NOON


@pytest.fixture(autouse=True)
def registry() -> Any:
    with isolated_registry():
        yield


class WithinATestCase(TestCase):
    def test_what_is_due_is_delivered_in_the_transaction_of_the_test(self) -> None:
        seen: list[Any] = []
        with isolated_registry():

            @delayed_task(kind="remind")
            def remind(*args: Any, **kwargs: Any) -> None:
                seen.append((args, kwargs, current_delivery().key))  # type: ignore[union-attr]

            remind.using(key="a").offer(1, two=2)
            remind.using(key="later", delay=60).offer(3)
            drained = drain()
        assert seen == [((1,), {"two": 2}, "a")]
        assert drained.outcomes() == [("a", "done")]
        assert connection.in_atomic_block


@pytest.mark.django_db
def test_a_later_moment_delivers_what_is_scheduled_until_then() -> None:
    seen = []
    remind = delayed_task(kind="remind")(lambda n: seen.append(n))
    remind.using(delay=timedelta(days=2)).offer(1)
    remind.using(delay=timedelta(days=4)).offer(2)
    assert len(drain()) == 0
    assert len(drain(now=timezone.now() + timedelta(days=3))) == 1
    assert seen == [1]


@pytest.mark.django_db
def test_a_handler_that_fails_makes_the_test_fail() -> None:
    @delayed_task(kind="fails")
    def fails() -> None:
        raise RuntimeError("boom")

    fails.using(key="a").offer()
    with pytest.raises(HandlerFailed, match="boom"):
        drain()


@pytest.mark.django_db
def test_or_is_retried_as_its_task_says() -> None:
    @delayed_task(kind="fails", max_attempts=2)
    def fails() -> None:
        raise RuntimeError("boom")

    clock = FrozenClock(fails.using(key="a").offer().scheduled_at)
    assert drain(now=clock(), raise_errors=False).outcomes() == [("a", "retried")]
    assert drain(now=clock(), raise_errors=False).outcomes() == []
    clock.advance(60)
    assert drain(now=clock(), raise_errors=False).outcomes() == [("a", "dead")]
    dead = DeadMessage.objects.get()
    assert (dead.reason, dead.attempts) == ("exhausted", 2)
    assert 'raise RuntimeError("boom")' in str(dead.error)


@pytest.mark.django_db
def test_an_error_of_the_database_leaves_the_transaction_of_the_test_usable() -> None:
    @delayed_task(kind="breaks")
    def breaks() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    breaks.offer()
    with pytest.raises(HandlerFailed, match="division by zero"):
        drain()
    assert len(offered(breaks)) == 1


@pytest.mark.django_db
def test_an_atomic_task_is_undone_when_it_fails() -> None:
    @delayed_task(kind="atomic", atomic=True)
    def pays() -> None:
        DeadMessage.objects.create(
            key="effect",
            kind="k",
            payload=b"",
            priority=0,
            attempts=0,
            scheduled_at_initially=0,
            created_at=0,
            died_at=0,
        )
        raise IntegrityError("no money")

    pays.offer()
    drain(raise_errors=False)
    assert not Control.objects.exists()


@pytest.mark.django_db
def test_async_handlers_are_run_too() -> None:
    seen = []

    @delayed_task(kind="async")
    async def remind(n: int) -> None:
        seen.append((n, current_delivery().attempt))  # type: ignore[union-attr]

    remind.offer(1)
    drain()
    assert seen == [(1, 1)]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("verdict", "outcome", "attempts"),
    [(Retry(delay=5), "retried", 1), (Snooze(5), "snoozed", 0), (DeadLetter("nobody wants it"), "dead", None)],
)
def test_verdicts_are_heeded(verdict: Exception, outcome: str, attempts: int | None) -> None:
    @delayed_task(kind="judges")
    def judges() -> None:
        raise verdict

    judges.using(key="a").offer()
    assert drain().outcomes() == [("a", outcome)]
    message = judges.message("a")
    assert message is not None
    if attempts is None:
        assert (message.state, message.last_error) == ("dead", "nobody wants it")
    else:
        assert (message.state, message.attempts) == ("scheduled", attempts)
    assert [line.outcome for line in Delivery.objects.of("judges", "a")] == [outcome]


@pytest.mark.django_db
def test_messages_that_handlers_offer_are_delivered_until_the_limit() -> None:
    @delayed_task(kind="again")
    def again(n: int) -> None:
        again.offer(n + 1)

    again.offer(0)
    assert len(drain(limit=7)) == 7


@pytest.mark.django_db
def test_only_the_tasks_that_are_named() -> None:
    one, two = (delayed_task(kind=kind)(lambda: None) for kind in ("one", "two"))
    one.offer()
    two.offer()
    assert len(drain(two)) == 1
    assert [message.state for message in offered(one)] == ["ready"]
    assert offered(two) == []


def test_a_clock_moves_when_it_is_told_to() -> None:
    clock = FrozenClock(NOON)
    clock.advance(timedelta(minutes=1))
    clock.advance(30)
    assert clock() == NOON + timedelta(seconds=90)
