"""Django's tasks, its own or the backport's, on top of the queue."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

import django
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from delayed_queue import Backoff, DeadLetter, InvalidInput, Retry, Snooze, current_delivery, delayed_task
from delayed_queue.backends import DelayedQueueBackend, TaskDied, TaskDropped
from delayed_queue.backends.attempts import MOST_ERRORS, worker_of
from delayed_queue.backends.framework import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from delayed_queue.clocks import from_ms
from delayed_queue.models import DeadMessage, DelayedMessage, StoredResult
from delayed_queue.tasks import find, tasks_by_kind
from delayed_queue.testing import drain, isolated_registry
from delayed_queue.workers.options import WorkerOptions, choose
from delayed_queue.workers.worker import Worker

framework = import_module("django.tasks" if django.VERSION >= (6, 0) else "django_tasks")
task: Any = framework.task

READY, RUNNING, FAILED, SUCCESSFUL = (
    TaskResultStatus.READY,
    TaskResultStatus.RUNNING,
    TaskResultStatus.FAILED,
    TaskResultStatus.SUCCESSFUL,
)
HERE = "tests.test_django_tasks"
AN_HOUR = timedelta(hours=1)


@contextmanager
def backends(**params: dict[str, Any]) -> Iterator[None]:
    """These aliases in TASKS, each ours if it does not say otherwise."""
    ours = {"BACKEND": "delayed_queue.backends.DelayedQueueBackend"}
    with override_settings(TASKS={alias: ours | given for alias, given in params.items()}):
        yield


@pytest.fixture(autouse=True)
def backend() -> Iterator[None]:
    with isolated_registry(), backends(default={"QUEUES": ["default", "mail"]}):
        yield


def run(**arguments: Any) -> list[tuple[str, str]]:
    return drain(raise_errors=False, **arguments).outcomes()


def run_later() -> list[tuple[str, str]]:
    """Once more, when every retry is due."""
    moments = [message.scheduled_at for message in DelayedMessage.objects.all()]
    return run(now=from_ms(max(moments) + 1000), limit=1)


# The functions. What they are to do is given as arguments, for they must be at the level of a module.

heard: list[Any] = []


@pytest.fixture(autouse=True)
def silence() -> None:
    heard.clear()


def add(a: int, b: int = 0) -> int:
    heard.append((a, b))
    return a + b


def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


async def aadd(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


ERRORS: dict[str, BaseException] = {
    "value": ValueError("no such order"),
    "exit": SystemExit("bye"),
    "retry": Retry(delay=5, reason="busy"),
    "snooze": Snooze(60),
    "dead": DeadLetter("no such customer"),
}


def fail(with_what: str = "value", until: int = 1000) -> str:
    delivery = current_delivery()
    assert delivery is not None
    if delivery.attempt < until:
        raise ERRORS[with_what]
    return "at last"


async def afail() -> None:
    raise ValueError("no such order")


def give_a_function() -> Any:
    heard.append("called")
    return lambda: None


def tell_attempt(context: Any, name: str) -> list[Any]:
    return [name, context.attempt, context.task_result.id, context.task_result.status]


def look_at_myself() -> list[Any]:
    delivery = current_delivery()
    assert delivery is not None
    seen = task_backends["default"].get_result(delivery.key)
    return [seen.status, seen.worker_ids == [worker_of(delivery.lock_uuid)], seen.started_at == seen.last_attempted_at]


async def sleep_long() -> None:
    await asyncio.sleep(60)


def yielding() -> Iterator[int]:
    yield 1


class TestAFunction:
    def test_is_a_kind_of_its_own_in_each_queue_of_the_backend(self) -> None:
        task(add)
        assert sorted(tasks_by_kind()) == [f"mail|{HERE}.add", f"{HERE}.add"]

    def test_is_served_by_workers_of_its_queues_namespace(self) -> None:
        task(add)
        assert list(choose(tasks_by_kind(), [], ["mail"], [])) == [f"mail|{HERE}.add"]

    def test_has_one_kind_where_any_queue_may_be_named(self) -> None:
        with backends(default={"QUEUES": []}):
            task(add).using(queue_name="whatever")
        assert list(tasks_by_kind()) == [f"{HERE}.add"]

    def test_is_registered_with_the_options_of_its_backend(self) -> None:
        options = {
            "max_attempts": 3,
            "lease": timedelta(minutes=2),
            "timeout": 5,
            "backoff": Backoff(7),
            "journal": "none",
        }
        with backends(default={"OPTIONS": options}):
            task(add)
        served = find(f"{HERE}.add")
        assert served is not None
        assert (served.max_attempts, served.lease, served.timeout) == (3, 120.0, 5.0)
        assert (served.backoff.initial, served.journal) == (7, "none")

    def test_that_is_async_is_run_on_the_event_loop(self) -> None:
        task(aadd)
        served = find(f"{HERE}.aadd")
        assert served is not None
        assert served.is_async

    def test_whose_name_and_queue_are_too_long_together_is_refused(self) -> None:
        queue = "q" * 80
        with backends(default={"QUEUES": [queue]}), pytest.raises(InvalidTask) as refused:
            task(queue_name=queue)(add)
        assert str(refused.value) == (
            f"The function and its queue make the kind '{queue}|{HERE}.add' of 108 characters; 100 is the most. "
            "Shorten the name of the function, of its module or of the queue."
        )

    def test_cannot_be_in_a_queue_with_a_bar_in_its_name(self) -> None:
        with backends(default={"QUEUES": ["a|b"]}), pytest.raises(InvalidTask, match="which ends a namespace"):
            task(queue_name="a|b")(add)

    def test_that_is_a_generator_is_refused(self) -> None:
        with pytest.raises(InvalidTask, match="yielding is a generator: a call would not run it"):
            task(yielding)

    def test_cannot_have_the_kind_of_another_task(self) -> None:
        delayed_task(kind=f"{HERE}.add")(echo)
        with pytest.raises(InvalidTask, match=r"has two handlers: .*echo .* and .*add "):
            task(add)

    def test_may_go_to_two_backends_with_the_same_options(self) -> None:
        with backends(default={}, other={}):
            task(add).using(backend="other")
        assert list(tasks_by_kind()) == [f"{HERE}.add"]

    def test_may_go_to_two_backends_with_queues_of_their_own(self) -> None:
        with backends(default={}, once={"QUEUES": ["once"], "OPTIONS": {"max_attempts": 1}}):
            task(add).using(backend="once", queue_name="once")
        assert {kind: served.max_attempts for kind, served in tasks_by_kind().items()} == {
            f"{HERE}.add": 10,
            f"once|{HERE}.add": 1,
        }

    def test_cannot_go_to_two_backends_that_differ_over_one_queue(self) -> None:
        with backends(default={}, once={"OPTIONS": {"max_attempts": 1}}):
            task(backend="once")(echo)
            with pytest.raises(InvalidTask) as refused:
                task(add).using(backend="once")
        assert str(refused.value) == (
            f"The backends 'default' and 'once' both serve {HERE}.add in one queue, with different OPTIONS. "
            "Give them the same, or one of them other QUEUES."
        )

    def test_follows_a_change_of_the_settings(self) -> None:
        task(add)
        with backends(other={"OPTIONS": {"max_attempts": 2}}):
            task(backend="other")(add)
        served = find(f"{HERE}.add")
        assert served is not None
        assert served.max_attempts == 2


@pytest.mark.django_db
class TestEnqueueing:
    def test_gives_the_result_that_is_found_later(self) -> None:
        result = task(add).using(priority=5, queue_name="mail").enqueue(1, b=2)
        assert task_backends["default"].get_result(result.id) == result
        assert (result.status, result.args, result.kwargs, result.attempts) == (READY, [1], {"b": 2}, 0)
        assert result.enqueued_at is not None

    def test_keeps_the_time_to_run_after_as_it_was_given(self) -> None:
        moment = timezone.now() + AN_HOUR
        result = task(add).using(run_after=moment).enqueue(1)
        assert task_backends["default"].get_result(result.id) == result
        assert result.task.run_after == moment
        assert run() == []
        assert run(now=moment) == [(result.id, "done")]

    def test_offers_with_the_priority_and_in_the_kind_of_the_queue(self) -> None:
        tasks = task(add)
        low = tasks.using(priority=-1).enqueue(1)
        high = tasks.using(priority=1).enqueue(2)
        mail = tasks.using(queue_name="mail").enqueue(3)
        found = {message.key: (message.kind, message.priority) for message in DelayedMessage.objects.all()}
        assert found == {
            low.id: (f"{HERE}.add", -1),
            high.id: (f"{HERE}.add", 1),
            mail.id: (f"mail|{HERE}.add", 0),
        }
        run()
        assert heard.index((2, 0)) < heard.index((1, 0))

    def test_is_part_of_the_callers_transaction(self) -> None:
        with pytest.raises(RuntimeError), transaction.atomic():
            result = task(add).enqueue(1)
            assert task_backends["default"].get_result(result.id) == result
            raise RuntimeError
        assert (StoredResult.objects.count(), DelayedMessage.objects.count()) == (0, 0)
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].get_result(result.id)

    def test_again_after_a_lost_answer_offers_nothing_twice(self) -> None:
        result = task(add).enqueue(1)
        run()
        again = StoredResult.objects.enqueue(
            id=result.id,
            kind=f"{HERE}.add",
            backend="default",
            queue_name="default",
            priority=0,
            run_after=None,
            call=b'{"args":[1],"kwargs":{}}',
            using="default",
        )
        assert again == result.enqueued_at
        assert DelayedMessage.objects.count() == 0

    def test_takes_what_jsonb_would_not(self) -> None:
        odd = ["\0", 1e16, 2**70, "ü", {"b": 1, "a": None}, [], True]
        result = task(echo).enqueue(*odd, x="\0")
        assert task_backends["default"].get_result(result.id) == result
        run()
        result.refresh()
        assert result.return_value == [odd, {"x": "\0"}]
        assert [type(value) for value in result.return_value[0]] == [type(value) for value in odd]

    def test_refuses_arguments_that_the_function_does_not_take(self) -> None:
        with pytest.raises(InvalidInput, match="too many positional arguments"):
            task(add).enqueue(1, 2, 3)
        with pytest.raises(InvalidInput, match="would arrive as text"):
            task(echo).enqueue({1: 2})
        with pytest.raises(TypeError, match="Unsupported type"):
            task(echo).enqueue(object())
        assert StoredResult.objects.count() == 0

    def test_does_not_ask_for_the_context(self) -> None:
        with pytest.raises(InvalidInput, match="missing a required argument: 'name'"):
            task(takes_context=True)(tell_attempt).enqueue()

    @pytest.mark.django_db(transaction=True)
    def test_has_a_twin_for_asyncio(self) -> None:
        async def enqueue() -> Any:
            result = await task(add).aenqueue(1)
            assert await task_backends["default"].aget_result(result.id) == result
            return result

        assert asyncio.run(enqueue()).status == READY

    def test_goes_to_the_database_of_the_options(self) -> None:
        with (
            backends(default={"OPTIONS": {"database": "default"}}),
            override_settings(DELAYED_QUEUE={"DATABASE": "second"}),
        ):
            result = task(add).enqueue(1)
            assert run(database="default") == [(result.id, "done")]
            assert task_backends["default"].get_result(result.id).return_value == 1

    @override_settings(USE_TZ=False, TIME_ZONE="Europe/Bucharest")
    def test_takes_naive_times_where_the_project_does(self) -> None:
        moment = timezone.now() + AN_HOUR
        result = task(add).using(run_after=moment).enqueue(1)
        message = DelayedMessage.objects.get(key=result.id)
        assert abs(message.scheduled_at / 1000 - moment.timestamp()) < 86_400


@pytest.mark.django_db
class TestARun:
    def test_that_succeeds_keeps_what_was_returned(self) -> None:
        result = task(add).enqueue(40, b=2)
        with pytest.raises(ValueError, match="Task has not finished yet"):
            result.return_value  # noqa: B018
        assert run() == [(result.id, "done")]
        result.refresh()
        assert (result.status, result.return_value, result.attempts, result.errors) == (SUCCESSFUL, 42, 1, [])
        assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
        assert DelayedMessage.objects.count() == 0

    def test_of_an_async_function_does_so_too(self) -> None:
        result = task(aadd).enqueue(40, 2)
        run()
        result.refresh()
        assert (result.status, result.return_value) == (SUCCESSFUL, 42)

    def test_is_running_for_those_who_look(self) -> None:
        result = task(look_at_myself).enqueue()
        run()
        result.refresh()
        assert result.return_value == [RUNNING, True, True]

    def test_has_its_context(self) -> None:
        result = task(takes_context=True)(tell_attempt).enqueue("me")
        run()
        result.refresh()
        assert result.return_value == ["me", 1, result.id, RUNNING]

    @pytest.mark.parametrize("function", [fail, afail])
    def test_that_fails_is_tried_again(self, function: Callable[..., Any]) -> None:
        result = task(function).enqueue()
        assert run() == [(result.id, "retried")]
        result.refresh()
        assert (result.status, result.finished_at, result.attempts) == (READY, None, 1)
        (error,) = result.errors
        assert error.exception_class is ValueError
        assert error.traceback.endswith("ValueError: no such order\n")
        assert "delayed_queue/" not in error.traceback

    def test_that_succeeds_at_last_keeps_the_errors_before_it(self) -> None:
        result = task(fail).enqueue(until=3)
        run_later(), run_later(), run_later()
        result.refresh()
        assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, "at last", 3)
        assert len(result.errors) == 2
        assert result.started_at < result.last_attempted_at < result.finished_at

    @pytest.mark.parametrize("what", ["value", "exit", "retry"])
    def test_that_fails_for_the_last_time_has_failed(self, what: str) -> None:
        with backends(default={"OPTIONS": {"max_attempts": 2}}):
            result = task(fail).enqueue(what)
            assert run_later() == [(result.id, "retried")]
            assert run_later() == [(result.id, "dead")]
            result.refresh()
        assert (result.status, result.attempts) == (FAILED, 2)
        assert [error.exception_class for error in result.errors] == [type(ERRORS[what])] * 2
        assert result.finished_at is not None
        with pytest.raises(ValueError, match="Task failed"):
            result.return_value  # noqa: B018

    def test_may_be_put_off_or_given_up_by_the_function(self) -> None:
        off, up = task(fail).enqueue("snooze"), task(fail).enqueue("dead")
        assert run() == [(off.id, "snoozed"), (up.id, "dead")]
        off.refresh(), up.refresh()
        assert (off.status, off.errors) == (READY, [])
        assert (up.status, [error.exception_class for error in up.errors]) == (FAILED, [DeadLetter])

    def test_whose_return_value_cannot_be_kept_has_failed_and_is_not_repeated(self) -> None:
        result = task(give_a_function).enqueue()
        assert run() == [(result.id, "dead")]
        result.refresh()
        assert result.status == FAILED
        assert result.errors[0].exception_class is TypeError
        assert "Unsupported type" in result.errors[0].traceback
        assert heard == ["called"]

    def test_is_not_repeated_where_only_its_acknowledgement_was_lost(self) -> None:
        result = task(add).enqueue(1)
        (before,) = DelayedMessage.objects.all()
        run()
        before.save(force_insert=True)
        assert run() == [(result.id, "done")]
        assert heard == [(1, 0)]
        result.refresh()
        assert (result.status, result.attempts) == (SUCCESSFUL, 1)

    def test_that_lost_its_message_cannot_write_over_its_successor(self) -> None:
        result = task(add).enqueue(1)
        start = StoredResult.objects.start
        first, second = "00000000-0000-0001-0000-000000000001", "00000000-0000-0002-0000-000000000001"
        start(result.id, f"{HERE}.add", worker_of(first), first, using="default")
        start(result.id, f"{HERE}.add", worker_of(second), second, using="default")
        late = StoredResult.objects.finish(
            result.id, first, status="SUCCESSFUL", return_value="1", errors=[], using="default"
        )
        assert late is None
        stored = StoredResult.objects.get(pk=result.id)
        assert (stored.status, stored.worker_ids) == ("RUNNING", ["1", "2"])

    def test_of_a_message_that_has_no_result_works_all_the_same(self) -> None:
        task(takes_context=True)(tell_attempt)
        served = find(f"{HERE}.tell_attempt")
        assert served is not None
        offered = served.offer("from a schedule")
        assert run() == [(offered.key, "done")]
        assert StoredResult.objects.count() == 0

    def test_without_a_limit_of_attempts_keeps_the_newest_errors(self) -> None:
        with backends(default={"OPTIONS": {"max_attempts": None, "backoff": Backoff(0.001, maximum=0.001)}}):
            result = task(fail).enqueue()
            for _ in range(MOST_ERRORS + 1):
                run_later()
            result.refresh()
        assert (result.status, len(result.errors)) == (READY, MOST_ERRORS)
        assert result.attempts > MOST_ERRORS


@pytest.mark.django_db
class TestAResult:
    def test_that_does_not_exist_says_so(self) -> None:
        for id in ("123", "", "\0", "f" * 32, "F" * 32, "ü" * 32):
            with pytest.raises(TaskResultDoesNotExist):
                task_backends["default"].get_result(id)

    def test_of_another_backend_does_not_exist(self) -> None:
        with backends(default={}, other={}):
            result = task(add).enqueue(1)
            with pytest.raises(TaskResultDoesNotExist, match="of the backend 'other'"):
                task_backends["other"].get_result(result.id)

    def test_of_a_function_that_is_gone_does_not_exist(self) -> None:
        result = task(add).enqueue(1)
        StoredResult.objects.update(kind="tests.nowhere.function")
        with pytest.raises(TaskResultDoesNotExist, match="is of a task that is gone: No module named"):
            task_backends["default"].get_result(result.id)
        StoredResult.objects.update(kind="tests.settings.function")
        with pytest.raises(TaskResultDoesNotExist, match=r"tests\.settings\.function is no task of this backend"):
            task_backends["default"].get_result(result.id)

    def test_of_a_message_that_died_without_its_handler_has_failed(self) -> None:
        result = task(add).enqueue(1)
        DelayedMessage.objects.update(attempts=10, scheduled_at=DelayedMessage.objects.get().scheduled_at + 1)
        assert run_later() == []
        assert DeadMessage.objects.get().reason == "exhausted"
        result.refresh()
        assert (result.status, result.errors[0].exception_class) == (FAILED, TaskDied)
        assert result.errors[0].traceback == "The message is dead (exhausted)."
        assert result.finished_at is not None

    def test_of_a_message_that_was_dropped_has_failed(self) -> None:
        result = task(add).enqueue(1)
        DelayedMessage.objects.drop(kind=f"{HERE}.add", key=result.id)
        result.refresh()
        assert (result.status, result.errors[0].exception_class) == (FAILED, TaskDropped)

    def test_of_a_dead_message_that_was_redriven_is_open_again(self) -> None:
        result = task(fail).enqueue("dead")
        run()
        result.refresh()
        assert result.status == FAILED
        DeadMessage.objects.redrive()
        result.refresh()
        assert (result.status, result.finished_at) == (READY, None)
        run()
        result.refresh()
        assert (result.status, result.attempts) == (FAILED, 2)
        assert len(result.errors) == 2

    def test_of_a_worker_that_was_killed_is_ready_to_be_run_again(self) -> None:
        result = task(add).enqueue(1)
        envelope = DelayedMessage.objects.try_poll(kind=f"{HERE}.add", lease=60)
        assert envelope is not None
        StoredResult.objects.start(result.id, f"{HERE}.add", "1", str(envelope.lock_uuid), using="default")
        result.refresh()
        assert result.status == RUNNING
        DelayedMessage.objects.update(scheduled_at=DelayedMessage.objects.get().scheduled_at - 120_000)
        result.refresh()
        assert result.status == READY


class Received:
    """What a signal told, with the state at that moment."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self._receivers = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}

    def __enter__(self) -> Received:
        for name, signal in self._receivers.items():
            signal.connect(self._receiver(name), weak=False, dispatch_uid=f"test-{name}")
        return self

    def __exit__(self, *error: object) -> None:
        for name, signal in self._receivers.items():
            signal.disconnect(dispatch_uid=f"test-{name}")

    def _receiver(self, name: str) -> Callable[..., None]:
        def receive(sender: type, task_result: Any, **kwargs: Any) -> None:
            assert sender is DelayedQueueBackend
            self.told.append((name, str(task_result.status)))

        return receive


@pytest.mark.django_db
class TestSignals:
    def test_tell_of_each_start_and_of_one_end(self) -> None:
        with Received() as received:
            task(fail).enqueue(until=2)
            run_later(), run_later()
        assert received.told == [
            ("enqueued", "READY"),
            ("started", "RUNNING"),
            ("started", "RUNNING"),
            ("finished", "SUCCESSFUL"),
        ]

    @pytest.mark.parametrize("function", [fail, afail])
    def test_tell_of_a_failure_when_it_is_final(
        self, function: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        with backends(default={"OPTIONS": {"max_attempts": 2}}), Received() as received:
            task(function).enqueue()
            run_later(), run_later()
        assert [told for told in received.told if told[0] == "finished"] == [("finished", "FAILED")]
        (record,) = [
            record for record in caplog.records if record.name == framework.__name__ and record.levelname == "ERROR"
        ]
        assert record.exc_info is not None
        assert record.exc_info[0] is ValueError

    def test_whose_receiver_fails_change_nothing(self) -> None:
        def receive(**kwargs: Any) -> None:
            raise RuntimeError

        for signal in (task_enqueued, task_started, task_finished):
            signal.connect(receive, dispatch_uid="test")
        try:
            result = task(add).enqueue(1)
            run()
        finally:
            for signal in (task_enqueued, task_started, task_finished):
                signal.disconnect(dispatch_uid="test")
        result.refresh()
        assert result.status == SUCCESSFUL


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "sentence", "hint"),
        [
            ({"max_attempt": 3}, "has an unknown key 'max_attempt'.", "Did you mean 'max_attempts'?"),
            (
                {"x": 3},
                "has an unknown key 'x'.",
                "Known keys: max_attempts, backoff, lease, timeout, journal, database.",
            ),
            ({"max_attempts": 0}, ": max_attempts must be a whole number from 1 to 32767, or None, not 0.", None),
            ({"lease": 0}, ": lease must be at least one millisecond, not 0.", None),
            ({"timeout": "5"}, ": timeout must be a timedelta or a number of seconds, not str.", None),
            ({"backoff": 5}, ": backoff must be a Backoff, as in Backoff(initial=5), not 5.", None),
            ({"journal": "some"}, ": journal must be one of 'all', 'failures', 'none', or None, not 'some'.", None),
            ({"database": ""}, ": database must be an alias of DATABASES, or None, not ''.", None),
            ([], " must be a dict, not list.", None),
        ],
    )
    def test_with_a_mistake_are_told_by_check_and_at_enqueue(
        self, options: Any, sentence: str, hint: str | None
    ) -> None:
        with backends(default={"OPTIONS": options}):
            (message,) = task_backends["default"].check()
            tasks = task(add)  # the project can be imported, or check could not be run
            with pytest.raises(ImproperlyConfigured) as refused:
                tasks.enqueue(1)
        assert message.id == "delayed_queue.E005"
        assert (message.msg.removeprefix("TASKS['default']['OPTIONS']").lstrip(), message.hint) == (
            sentence.lstrip(),
            hint,
        )
        assert str(refused.value) == f"{message.msg} {hint or ''}".strip()
        assert tasks_by_kind() == {}

    def test_name_a_database_that_there_is(self) -> None:
        with backends(default={"OPTIONS": {"database": "elsewhere"}}):
            (message,) = task_backends["default"].check()
        assert message.id == "delayed_queue.E006"
        assert message.msg == "TASKS['default']['OPTIONS']['database'] is 'elsewhere', which is not in DATABASES."

    def test_name_a_database_that_is_postgresql(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "vendor", "sqlite")
        monkeypatch.setattr(connection, "display_name", "SQLite")
        with backends(default={"OPTIONS": {"database": "default"}}):
            (message,) = task_backends["default"].check()
        assert message.id == "delayed_queue.E007"

    def test_without_a_mistake_pass(self) -> None:
        with backends(default={"OPTIONS": {"max_attempts": 1, "database": "default"}}):
            assert list(task_backends["default"].check()) == []


@pytest.mark.django_db
class TestPruning:
    @pytest.fixture
    def old(self) -> dict[str, str]:
        """Results of tasks that were enqueued eight days ago, by what became of them."""
        tasks = {name: task(fail).enqueue("dead") for name in ("failed", "failed lately", "died lately", "redriven")}
        run()
        tasks |= {name: task(add).enqueue(1) for name in ("done", "done lately")}
        run()
        tasks |= {name: task(add).enqueue(1) for name in ("waiting", "dropped")}
        DelayedMessage.objects.drop(kind=f"{HERE}.add", key=tasks["dropped"].id)
        DeadMessage.objects.redrive(key=tasks["redriven"].id)
        days_ago = timezone.now() - timedelta(days=8)
        ids = {}
        for number, (name, result) in enumerate(tasks.items()):
            ids[name] = f"{int(days_ago.timestamp() * 1000):012x}{number:020x}"
            StoredResult.objects.filter(pk=result.id).update(id=ids[name], enqueued_at=days_ago)
            StoredResult.objects.filter(pk=ids[name], finished_at__isnull=False).exclude(
                pk=ids[name] if name.endswith("lately") else ""
            ).update(finished_at=days_ago)
            DelayedMessage.objects.filter(key=result.id).update(key=ids[name])
            DeadMessage.objects.filter(key=result.id).update(key=ids[name])
        StoredResult.objects.filter(pk=ids["died lately"]).update(finished_at=None, status="RUNNING")
        task(add).enqueue(2)
        return ids

    def test_deletes_what_was_finished_long_ago_or_has_no_message(self, old: dict[str, str]) -> None:
        assert StoredResult.objects.prune(older_than=timedelta(days=7), dry_run=True) == 2
        assert StoredResult.objects.prune(older_than=timedelta(days=7)) == 2
        kept = {name for name, id in old.items() if StoredResult.objects.filter(pk=id).exists()}
        assert kept == {"failed", "failed lately", "died lately", "redriven", "done lately", "waiting"}

    def test_goes_on_past_the_first_chunk(self, monkeypatch: pytest.MonkeyPatch, old: dict[str, str]) -> None:
        monkeypatch.setattr("delayed_queue.results.CHUNK", 1)
        DeadMessage.objects.update(died_at=0)
        assert StoredResult.objects.prune(older_than=timedelta(days=7)) == 4


@pytest.mark.django_db(transaction=True)
class TestAWorker:
    def test_runs_plain_and_async_functions(self) -> None:
        results = [task(add).enqueue(1), task(aadd).using(queue_name="mail").enqueue(40, 2), task(echo).enqueue("x")]
        assert Worker(WorkerOptions(threads=2, until_empty=True)).run()
        for result in results:
            result.refresh()
        assert [result.return_value for result in results] == [1, 42, [["x"], {}]]
        assert len({tuple(result.worker_ids) for result in results}) == 1

    def test_tells_of_an_async_function_that_took_too_long(self) -> None:
        with backends(default={"OPTIONS": {"timeout": 0.05, "max_attempts": 1}}), Received() as received:
            result = task(sleep_long).enqueue()
            assert Worker(WorkerOptions(threads=1, until_empty=True)).run()
            result.refresh()
        assert result.status == FAILED
        assert result.errors[0].traceback.endswith("TaskTimeout: the function ran for more than 0.05 s\n")
        assert ("finished", "FAILED") in received.told


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django has its own")
def test_without_the_backport_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['django_tasks'] = None; import delayed_queue.backends"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == (
        f"ImportError: Django {django.get_version()} has no django.tasks. "
        "Install its backport with: pip install django-tasks"
    )
