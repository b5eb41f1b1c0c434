"""Offering the calls of a task: what is stored, when it is due, by whose clock, and what is refused before any SQL."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction

from delayed_queue import InvalidInput, OfferOutcome
from delayed_queue.clocks import from_ms, to_ms
from delayed_queue.models import DelayedMessage
from delayed_queue.tasks import Offered, Task, TaskCall
from tests.conftest import NOON, FrozenClock

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED
Row = Callable[[str], dict[str, Any]]


def cancel_unpaid(order_id: int, *, notify: bool = False, **more: Any) -> None: ...


def awkward(self: Any, function: Any, args: Any = None, kwargs: Any = None) -> None: ...


task = Task(cancel_unpaid, kind="cancel")


@pytest.fixture
def frozen(db: None, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> FrozenClock:
    manager = DelayedMessage.objects.configured(using="default", clock=clock)
    monkeypatch.setattr("delayed_queue.tasks.databases._manager", lambda alias: manager)
    return clock


def messages() -> list[DelayedMessage]:
    return list(DelayedMessage.objects.order_by("id"))


@pytest.mark.django_db
class TestAnOffer:
    def test_is_due_at_once_under_a_fresh_key(self, row: Row) -> None:
        offered = task.offer(42, notify=True)
        stored = row(offered.key)
        assert bytes(stored["payload"]) == b'{"args":[42],"kwargs":{"notify":true}}'
        assert (stored["pKind"], stored["priority"], stored["maxAttempts"], stored["expiresAt"]) == (
            "cancel", 0, None, None,
        )  # fmt: skip
        assert stored["scheduledAt"] == stored["scheduledAtInitially"] == stored["createdAt"]
        assert offered == Offered(offered.key, "cancel", CREATED, from_ms(stored["scheduledAt"]))
        assert abs(offered.scheduled_at - datetime.now(UTC)) < timedelta(seconds=30)

    def test_without_a_key_never_meets_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        keys = {task.offer(42).key for _ in range(20)}
        assert len(keys) == 20
        assert {len(key) for key in keys} == {32}

    def test_without_a_key_goes_to_the_end_of_the_index(self, monkeypatch: pytest.MonkeyPatch) -> None:
        milliseconds = itertools.count(to_ms(NOON))
        monkeypatch.setattr(time, "time_ns", lambda: next(milliseconds) * 1_000_000)
        keys = [task.offer(42).key for _ in range(20)]
        assert keys == sorted(keys)

    def test_delays_count_from_the_databases_clock(self, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        monkeypatch.setattr(time, "time", lambda: 0.0)
        offered = task.using(delay=timedelta(minutes=30), expires=60).offer(42)
        stored = row(offered.key)
        assert stored["scheduledAt"] == stored["scheduledAtInitially"] == stored["createdAt"] + 1_800_000
        assert stored["expiresAt"] == stored["scheduledAt"] + 60_000
        assert to_ms(offered.scheduled_at) == stored["scheduledAt"]

    def test_at_a_moment_is_for_that_moment(self, row: Row) -> None:
        offered = task.using(key="k", at=NOON, expires=timedelta(hours=1)).offer(42)
        assert offered == Offered("k", "cancel", CREATED, NOON)
        assert (row("k")["scheduledAt"], row("k")["expiresAt"]) == (to_ms(NOON), to_ms(NOON) + 3_600_000)

    def test_says_what_became_of_it(self) -> None:
        order = task.using(key="order-42", at=NOON)
        assert [order.offer(number).outcome for number in (42, 42, 43)] == [CREATED, IGNORED, UPDATED]

    def test_that_may_not_update_says_the_time_it_asked_for(self, frozen: FrozenClock, row: Row) -> None:
        task.using(key="k", delay=10).offer(42)
        ignored = task.using(key="k", delay=20, can_update=False).offer(43)
        assert (ignored.outcome, ignored.scheduled_at) == (IGNORED, NOON + timedelta(seconds=20))
        assert row("k")["scheduledAt"] == to_ms(NOON) + 10_000

    def test_overrides_what_the_task_says(self, frozen: FrozenClock, row: Row) -> None:
        short = Task(cancel_unpaid, kind="cancel", priority=5, expires=60, max_attempts=3)
        short.using(key="as the task says", delay=10).offer(42)
        stored = row("as the task says")
        assert (stored["priority"], stored["expiresAt"]) == (5, to_ms(NOON) + 70_000)
        assert stored["maxAttempts"] is None  # the handler's policy, which a later release may change
        short.using(key="otherwise", delay=10, priority=0, expires=timedelta(seconds=1), max_attempts=7).offer(42)
        stored = row("otherwise")
        assert (stored["priority"], stored["expiresAt"], stored["maxAttempts"]) == (0, to_ms(NOON) + 11_000, 7)
        short.using(key="by a moment", delay=10, expires=NOON + timedelta(days=1)).offer(42)
        assert row("by a moment")["expiresAt"] == to_ms(NOON + timedelta(days=1))

    def test_can_be_debounced(self, frozen: FrozenClock) -> None:
        quiet = task.using(key="k", delay=10, max_wait=15)
        assert quiet.offer(1).scheduled_at == NOON + timedelta(seconds=10)
        frozen.advance(8)
        assert quiet.offer(2) == Offered("k", "cancel", UPDATED, NOON + timedelta(seconds=15))

    def test_can_be_far_away(self) -> None:
        assert task.using(delay=timedelta.max).offer(42).scheduled_at == datetime.max.replace(tzinfo=UTC)

    def test_is_part_of_the_callers_transaction(self) -> None:
        with transaction.atomic():
            task.using(key="k").offer(42)
            transaction.set_rollback(True)
        assert messages() == []

    def test_is_one_statement(self, django_assert_num_queries: Any) -> None:
        for _ in range(9):
            with django_assert_num_queries(1):
                task.using(key="k", delay=5, expires=5).offer(42)

    def test_has_a_twin(self) -> None:
        assert async_to_sync(task.aoffer)(42).outcome is CREATED
        assert async_to_sync(task.using(key="k").aoffer)(order_id=42).key == "k"
        assert [message.kind for message in messages()] == ["cancel"] * 2

    def test_takes_arguments_of_any_name(self) -> None:
        odd = Task(awkward, kind="awkward")
        given = {"self": 1, "function": 2, "args": 3, "kwargs": 4}
        odd.offer(**given)

        async def offer() -> None:
            await odd.aoffer(**given)

        async_to_sync(offer)()
        odd.offer_many([given])
        for message in messages():
            assert odd.arguments(bytes(message.payload)) == ([], given)
        assert len(messages()) == 3

    def test_is_equal_in_bytes_if_it_is_equal(self) -> None:
        order = task.using(key="k", at=NOON)
        order.offer(42, a={"x": 1, "y": [1, "é"]}, b=2)
        assert order.offer(42, b=2, a={"y": [1, "é"], "x": 1}).outcome is IGNORED


@pytest.mark.django_db(databases=["default", "second"])
class TestTheDatabase:
    def test_is_the_one_that_is_named(self) -> None:
        second = task.using(key="k", database="second")
        second.offer(42)
        assert DelayedMessage.objects.count() == 0
        assert DelayedMessage.objects.using("second").get().key == "k"
        assert task.message("k") is None
        assert task.message("k", database="second") is not None
        assert not task.drop("k")
        assert task.drop("k", database="second")

    def test_is_else_that_of_the_settings_at_the_time(self, settings: Any) -> None:
        task.offer(1)
        settings.DELAYED_QUEUE = {"DATABASE": "second"}
        task.offer(2)
        task.offer_many([(3,)])
        assert DelayedMessage.objects.count() == 1
        assert DelayedMessage.objects.using("second").count() == 2

    def test_that_is_not_there_is_an_error_of_djangos(self) -> None:
        with pytest.raises(connections.exception_class, match="nowhere"):
            task.using(database="nowhere").offer(42)


@pytest.mark.django_db
class TestOfferMany:
    def test_takes_arguments_by_place_and_by_name(self) -> None:
        offered = task.offer_many([(1,), [2], {"order_id": 3, "notify": True}, TaskCall((4,), {"notify": False})])
        assert [task.arguments(bytes(message.payload)) for message in messages()] == [
            ([1], {}),
            ([2], {}),
            ([], {"order_id": 3, "notify": True}),
            ([4], {"notify": False}),
        ]
        assert [(each.key, each.kind, each.outcome) for each in offered] == [
            (message.key, "cancel", CREATED) for message in messages()
        ]

    def test_counts_all_delays_from_one_look_at_the_databases_clock(self, django_assert_num_queries: Any) -> None:
        delayed = task.using(delay=10, priority=3, max_attempts=4, expires=5)
        with django_assert_num_queries(2):
            first, second, third = delayed.offer_many([(1,), TaskCall((2,), delay=20), TaskCall((3,), at=NOON)])
        assert second.scheduled_at - first.scheduled_at == timedelta(seconds=10)
        assert abs(first.scheduled_at - datetime.now(UTC)) < timedelta(seconds=40)
        assert third.scheduled_at == NOON
        for message, offered in zip(messages(), (first, second, third), strict=True):
            assert (message.priority, message.max_attempts) == (3, 4)
            assert message.scheduled_at == message.scheduled_at_initially == to_ms(offered.scheduled_at)
            assert message.expires_at == message.scheduled_at + 5000

    def test_asks_no_clock_where_there_is_nothing_to_count(self, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(1):
            task.using(at=NOON).offer_many([(1,), (2,)])
        with django_assert_num_queries(0):
            assert task.offer_many([]) == []

    def test_honours_an_injected_clock(self, frozen: FrozenClock) -> None:
        (offered,) = task.using(delay=10, expires=NOON).offer_many([(1,)])
        assert offered.scheduled_at == NOON + timedelta(seconds=10)
        assert messages()[0].expires_at == to_ms(NOON)

    def test_answers_in_the_order_given(self) -> None:
        task.using(key="b", at=NOON).offer(1)
        calls = [TaskCall((n,), key=key) for n, key in enumerate("cbab")]
        assert [(each.key, each.outcome) for each in task.using(at=NOON).offer_many(calls)] == [
            ("c", CREATED), ("b", IGNORED), ("a", CREATED), ("b", UPDATED),
        ]  # fmt: skip

    def test_may_be_told_not_to_update(self) -> None:
        task.using(key="k").offer(1)
        (offered,) = task.using(can_update=False).offer_many([TaskCall((2,), key="k")])
        assert offered.outcome is IGNORED

    def test_has_a_twin(self) -> None:
        assert len(async_to_sync(task.aoffer_many)((n,) for n in range(3))) == 3
        assert len(async_to_sync(task.using(delay=5).aoffer_many)([(1,)])) == 1
        assert len(messages()) == 4


class TestRefusedBeforeAnySql:
    """These tests have no database: a statement would fail them."""

    USING: tuple[tuple[dict[str, Any], str], ...] = (
        ({"at": NOON, "delay": 5}, "at= and delay= both say when. Give one of them."),
        ({"at": datetime(2026, 1, 1)}, "at is a naive datetime, which names no moment"),
        ({"at": 5}, "at must be an aware datetime, not int."),
        ({"delay": -1}, "delay must not be negative, not -1. For a moment in the past give at=."),
        ({"delay": "soon"}, "delay must be a timedelta or a number of seconds, not str."),
        ({"delay": 1e30}, "leaves the range of a bigint"),
        ({"key": ""}, "The key is blank"),
        ({"key": "k" * 201}, "has 201 characters; 200 is the most"),
        ({"priority": 101}, "from -100 to 100, not 101"),
        ({"expires": 0}, "expires must be at least one millisecond, not 0."),
        ({"expires": datetime(2026, 1, 1)}, "expires is a naive datetime"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 32767, or None, not 0."),
        ({"max_wait": 0}, "max_wait must be at least one millisecond, not 0."),
    )

    @pytest.mark.parametrize(("options", "sentence"), USING, ids=[sentence for _, sentence in USING])
    def test_using_refuses_at_once(self, options: dict[str, Any], sentence: str) -> None:
        with pytest.raises(InvalidInput) as refusal:
            task.using(**options)
        assert sentence in str(refusal.value)

    ARGUMENTS: tuple[tuple[tuple[Any, ...], dict[str, Any], str], ...] = (
        ((), {}, "missing a required argument: 'order_id'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"order_id": 2}, "multiple values for argument 'order_id'"),
        ((NOON,), {}, "Object of type datetime is not JSON serializable"),
        ((b"x",), {}, "Object of type bytes is not JSON serializable"),
        ((float("nan"),), {}, "Out of range float values are not JSON compliant"),
        (("\ud800",), {}, "surrogates not allowed"),
        (({1: 2},), {}, "A dict has the key 1, which would arrive as text. Use text keys, or a list of pairs."),
        ((1,), {"more": [({"deep": {None: 1}},)]}, "A dict has the key None, which would arrive as text"),
    )

    @pytest.mark.parametrize(("args", "kwargs", "sentence"), ARGUMENTS, ids=[sentence for *_, sentence in ARGUMENTS])
    def test_arguments_that_would_not_arrive(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], sentence: str
    ) -> None:
        with pytest.raises(InvalidInput) as refusal:
            task.offer(*args, **kwargs)
        assert sentence in str(refusal.value)
        assert "the task 'cancel'" in str(refusal.value).lower()
        with pytest.raises(InvalidInput) as refusal:
            task.offer_many([(1,), TaskCall(args, kwargs)])
        assert str(refusal.value).startswith("Item 1 of offer_many: ")
        assert sentence in str(refusal.value)

    def test_the_signature_is_shown(self) -> None:
        with pytest.raises(InvalidInput) as refusal:
            Task(awkward, kind="k").offer(1)  # type: ignore[call-arg]
        assert str(refusal.value) == (
            "The task 'k' is called as (self: 'Any', function: 'Any', args: 'Any' = None, kwargs: 'Any' = None)"
            " -> 'None': missing a required argument: 'function'."
        )

    def test_arguments_without_an_end(self) -> None:
        loop: list[Any] = []
        loop.append(loop)
        with pytest.raises(InvalidInput, match="Circular reference detected"):
            task.offer(1, more=loop)
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(InvalidInput, match="nested too deeply for JSON"):
            task.offer(1, more=deep)

    def test_a_payload_over_the_limit(self, settings: Any) -> None:
        settings.DELAYED_QUEUE = {"MAX_PAYLOAD_BYTES": 50}
        with pytest.raises(InvalidInput, match="the limit is 50"):
            task.offer(1, more="x" * 50)
        with pytest.raises(InvalidInput, match="Item 0 of offer_many: The payload has"):
            task.offer_many([TaskCall((1,), {"more": "x" * 50})])

    def test_an_expiry_that_leaves_the_range(self) -> None:
        with pytest.raises(InvalidInput, match="leaves the range of a bigint"):
            task.using(delay=4e15, expires=4e15).offer(1)

    @pytest.mark.parametrize("item", ["x", 42, None, {1}])
    def test_an_item_that_is_no_call(self, item: Any) -> None:
        with pytest.raises(InvalidInput, match=r"Item 0 .* is no call\. Wrap a single argument in a tuple"):
            task.offer_many([item])

    def test_one_key_for_many(self) -> None:
        with pytest.raises(InvalidInput, match=r"Give each its own: TaskCall\(args=\.\.\., key=\.\.\.\)\."):
            task.using(key="k").offer_many([(1,)])
        with pytest.raises(InvalidInput, match="Item 0 of offer_many: The key is blank"):
            task.offer_many([TaskCall((1,), key="")])

    def test_a_call_that_is_none(self) -> None:
        with pytest.raises(InvalidInput, match="both say when"):
            TaskCall((1,), at=NOON, delay=5)
        with pytest.raises(InvalidInput, match="must be a tuple or a list, not str"):
            TaskCall("x")
        with pytest.raises(InvalidInput, match="must be a dict, not list"):
            TaskCall((), [])  # type: ignore[arg-type]


@pytest.mark.django_db
def test_the_manager_refuses_a_delay_that_is_none_and_a_time_that_is_missing() -> None:
    with pytest.raises(InvalidInput, match="delay must not be negative"):
        DelayedMessage.objects.offer(True, "k", "k", b"", None, delay=-1)
    with pytest.raises(InvalidInput, match="schedule_at must be an aware datetime, not NoneType"):
        DelayedMessage.objects.offer(True, "k", "k", b"", None)
