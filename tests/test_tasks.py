"""The decorator and the task: what is refused where it is declared, and what a payload looks like."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import Backoff, InvalidInput, UndecodablePayload
from delayed_queue.tasks import DeadLetter, Retry, Snooze, Task, delayed_task, find, isolated_registry


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    with isolated_registry():
        yield


def cancel_unpaid(order_id: int, *, notify: bool = False) -> str:
    """Cancel an order that nobody paid."""
    return f"{order_id} {notify}"


async def fetch(url: str) -> str:
    return f"<{url}>"


class TestATask:
    def test_is_called_as_the_function_is(self) -> None:
        assert delayed_task(cancel_unpaid)(42, notify=True) == "42 True"

    def test_gives_the_coroutine_of_an_async_function(self) -> None:
        task = delayed_task(fetch)
        assert task.is_async
        assert asyncio.run(task("x")) == "<x>"

    def test_looks_like_the_function(self) -> None:
        task = delayed_task(cancel_unpaid)
        assert (task.__name__, task.__doc__) == ("cancel_unpaid", "Cancel an order that nobody paid.")  # type: ignore[attr-defined]
        assert task.__wrapped__ is task.function is cancel_unpaid  # type: ignore[attr-defined]
        assert inspect.signature(task) == inspect.signature(cancel_unpaid)
        assert repr(task) == "<Task 'tests.test_tasks.cancel_unpaid'>"

    def test_has_the_contracts_defaults(self) -> None:
        for task in (delayed_task(cancel_unpaid), delayed_task()(cancel_unpaid)):
            assert (task.kind, task.namespace, task.aliases) == ("tests.test_tasks.cancel_unpaid", "default", ())
            assert (task.max_attempts, task.backoff, task.lease, task.timeout) == (10, Backoff(), 60.0, None)
            assert (task.atomic, task.priority, task.expires, task.journal) == (False, 0, None, None)
            assert not task.is_async

    def test_keeps_its_options_in_the_units_of_its_users(self) -> None:
        task = delayed_task(
            kind="cancel",
            namespace="shop",
            max_attempts=None,
            backoff=Backoff(initial=5),
            lease=timedelta(minutes=2),
            timeout=1.5,
            atomic=True,
            priority=-3,
            expires=timedelta(hours=1),
            journal="failures",
            aliases=["shop|cancel_old", "older"],
        )(cancel_unpaid)
        assert (task.kind, task.namespace) == ("shop|cancel", "shop")
        assert task.kinds == ("shop|cancel", "shop|cancel_old", "older")
        assert (task.max_attempts, task.backoff.initial) == (None, 5)
        assert (task.lease, task.timeout, task.expires) == (120.0, 1.5, 3_600_000)
        assert (task.atomic, task.priority, task.journal) == (True, -3, "failures")

    def test_has_its_own_attributes_whatever_the_function_has(self) -> None:
        def handler() -> None: ...

        handler.kind = "another"  # type: ignore[attr-defined]
        assert delayed_task(kind="mine")(handler).kind == "mine"

    def test_takes_a_function_that_another_decorator_wrapped(self) -> None:
        @functools.wraps(cancel_unpaid)
        def wrapper(*args: Any, **kwargs: Any) -> str:
            return "wrapped " + cancel_unpaid(*args, **kwargs)

        task = delayed_task(wrapper)
        assert task.kind == "tests.test_tasks.cancel_unpaid"
        assert task(1) == "wrapped 1 False"
        assert list(task.signature.parameters) == ["order_id", "notify"]

    def test_in_a_namespace_may_be_named_by_its_kind_alone(self) -> None:
        assert delayed_task(kind="shop|cancel")(cancel_unpaid).namespace == "shop"

    def test_is_found_by_its_kind(self) -> None:
        assert find("cancel") is None
        task = delayed_task(kind="cancel", aliases=["old"])(cancel_unpaid)
        assert find("cancel") is find("old") is task


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kind": ""}, "The kind is blank"),
    ({"kind": 5}, "The kind must be text, not int."),
    ({"kind": "k" * 101}, "has 101 characters; 100 is the most"),
    ({"namespace": "n" * 90}, "characters; 100 is the most. Give the task a shorter kind="),
    ({"namespace": "a|b"}, "The namespace 'a|b' contains '|', which ends a namespace. Use another character."),
    ({"namespace": ""}, "The namespace is blank"),
    ({"namespace": 5}, "The namespace must be text, not int."),
    (
        {"kind": "a|b", "namespace": "c"},
        "The kind 'a|b' names a namespace before its '|', and namespace='c' names one, too. Give one of them.",
    ),
    ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 32767, or None, not 0."),
    ({"max_attempts": 32768}, "from 1 to 32767, or None, not 32768"),
    ({"max_attempts": True}, "from 1 to 32767, or None, not True"),
    ({"backoff": 5}, "backoff must be a Backoff, as in Backoff(initial=5), not 5."),
    ({"lease": 0}, "lease must be at least one millisecond, not 0."),
    ({"lease": "long"}, "lease must be a timedelta or a number of seconds, not str."),
    ({"timeout": -1}, "timeout must be at least one millisecond, not -1."),
    ({"expires": timedelta(0)}, "expires must be at least one millisecond"),
    ({"atomic": "yes"}, "atomic must be True or False, not 'yes'."),
    ({"priority": 101}, "The priority must be a whole number from -100 to 100, not 101."),
    ({"journal": "some"}, "journal must be one of 'all', 'failures', 'none', or None, not 'some'."),
    ({"aliases": "old"}, "aliases must be a list of kinds: ['old'], not 'old'."),
    ({"aliases": [""]}, "The kind is blank"),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_a_bad_option_is_refused_where_the_task_is_declared(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        delayed_task(**options)(cancel_unpaid)
    assert sentence in str(refusal.value)


class TestRefusedFunctions:
    def test_atomic_needs_a_plain_one(self) -> None:
        with pytest.raises(InvalidInput, match=r"atomic=True needs a plain function, and fetch is async"):
            delayed_task(atomic=True)(fetch)

    def test_one_inside_another_needs_a_kind(self) -> None:
        def inner() -> None: ...

        for function in (inner, lambda: None):
            with pytest.raises(InvalidInput, match=r"Give it a kind=, or move it to the level of its module\."):
                delayed_task(function)
        assert delayed_task(kind="inner")(inner).kind == "inner"

    def test_a_generator_would_not_run(self) -> None:
        def rows() -> Iterator[int]:
            yield 1

        with pytest.raises(InvalidInput, match="is a generator: a call would not run it"):
            delayed_task(kind="rows")(rows)

    @pytest.mark.parametrize("given", ["cancel", 42, print, int])
    def test_what_is_no_function_is_told_how_options_are_given(self, given: Any) -> None:
        with pytest.raises(InvalidInput, match=r"goes on a function, not on .* Its options are given by name"):
            delayed_task(given)

    def test_an_unknown_option_is_an_error_as_of_any_function(self) -> None:
        with pytest.raises(TypeError, match="retries"):
            delayed_task(retries=5)(cancel_unpaid)  # type: ignore[call-overload]


class TestArguments:
    def test_are_read_from_the_payload(self) -> None:
        assert Task(cancel_unpaid).arguments(b'{"args":[42],"kwargs":{"notify":true}}') == ([42], {"notify": True})

    @pytest.mark.parametrize(
        ("payload", "sentence"),
        [
            (b"\xff", "The payload is not JSON"),
            (b"{", "The payload is not JSON"),
            (b"[1]", 'it must be an object with "args" and "kwargs"'),
            (b"{}", '"args" must be there as a list, and "kwargs" as an object'),
            (b'{"args":[1]}', '"args" must be there as a list, and "kwargs" as an object'),
            (b'{"args":{},"kwargs":{}}', '"args" must be there as a list, and "kwargs" as an object'),
            (b'{"args":[],"kwargs":[]}', '"args" must be there as a list, and "kwargs" as an object'),
        ],
    )
    def test_that_are_no_call_cannot_be_read(self, payload: bytes, sentence: str) -> None:
        with pytest.raises(UndecodablePayload) as refusal:
            Task(cancel_unpaid).arguments(payload)
        assert sentence in str(refusal.value)


class TestVerdicts:
    def test_carry_what_the_handler_said(self) -> None:
        assert (Retry().delay, Retry().reason) == (None, "")
        assert (Retry(timedelta(minutes=1), "busy").delay, Retry(5).delay, Snooze(0.5).delay) == (60.0, 5.0, 0.5)
        assert DeadLetter("no such order").reason == "no such order"

    def test_say_what_they_mean(self) -> None:
        assert str(Retry(60, "busy")) == "to be retried after 60 s: busy"
        assert str(Retry()) == "to be retried by the backoff"
        assert str(Snooze(1.5)) == "snoozed for 1.5 s"
        assert str(DeadLetter("no such order")) == "no such order"

    @pytest.mark.parametrize("verdict", [Retry, Snooze])
    def test_refuse_a_delay_that_is_none(self, verdict: Any) -> None:
        with pytest.raises(InvalidInput, match="delay must not be negative, not -1"):
            verdict(-1)
        with pytest.raises(InvalidInput, match="delay must be a timedelta or a number of seconds, not str"):
            verdict("soon")

    def test_survive_the_way_to_another_process(self) -> None:
        for verdict in (Retry(5, "busy"), Snooze(5), DeadLetter("gone")):
            assert vars(pickle.loads(pickle.dumps(verdict))) == vars(verdict)  # noqa: S301


def test_the_tasks_can_be_imported_and_declared_before_django_is_set_up() -> None:
    program = """
from delayed_queue.tasks import delayed_task, find
@delayed_task(kind="early")
def early(): ...
assert find("early") is early
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})
