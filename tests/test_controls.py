"""Pauses and limits: what is written, what is refused, and who is told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connection, transaction

from delayed_queue import InvalidInput
from delayed_queue.models import Control
from tests.test_races import together

controls = Control.objects


def the(name: str) -> dict[str, Any]:
    return Control.objects.values("scope", "paused", "max_running", "rate", "rate_period").get(name=name)


@pytest.mark.django_db
def test_a_kind_is_paused_until_it_is_resumed() -> None:
    assert controls.pause(kind="shop|mails")
    assert [(control.scope, control.name) for control in controls.paused()] == [("kind", "shop|mails")]
    assert not controls.pause(kind="shop|mails")
    assert controls.resume(kind="shop|mails")
    assert not controls.resume(kind="shop|mails")
    assert not controls.paused()


@pytest.mark.django_db
def test_a_namespace_and_a_kind_of_the_same_name_are_two_things() -> None:
    controls.pause(kind="shop")
    controls.pause(namespace="shop")
    controls.resume(kind="shop")
    assert [str(control) for control in controls.paused()] == ["namespace shop"]


@pytest.mark.django_db
def test_resuming_what_was_never_paused_writes_nothing() -> None:
    assert not controls.resume(namespace="shop")
    assert not Control.objects.exists()


@pytest.mark.django_db
def test_a_limit_that_is_not_mentioned_stays_and_none_removes_one() -> None:
    controls.limit(kind="mails", max_running=5)
    controls.limit(kind="mails", rate=100, per=timedelta(minutes=1))
    assert the("mails") == {
        "scope": "kind", "paused": False, "max_running": 5, "rate": 100, "rate_period": 60_000,
    }  # fmt: skip
    controls.limit(kind="mails", max_running=None)
    assert (the("mails")["max_running"], the("mails")["rate"]) == (None, 100)
    controls.limit(kind="mails", rate=7)
    assert (the("mails")["rate"], the("mails")["rate_period"]) == (7, 1000)
    controls.limit(kind="mails", max_running=0, rate=None)
    assert (the("mails")["max_running"], the("mails")["rate"]) == (0, None)


@pytest.mark.django_db
def test_a_pause_and_limits_do_not_touch_each_other() -> None:
    controls.limit(namespace="shop", max_running=3)
    controls.pause(namespace="shop")
    controls.limit(namespace="shop", max_running=4)
    assert (the("shop")["paused"], the("shop")["max_running"]) == (True, 4)
    controls.resume(namespace="shop")
    assert the("shop")["max_running"] == 4


@pytest.mark.django_db
def test_clearing_forgets_the_pause_and_the_limits() -> None:
    controls.limit(kind="mails", max_running=3)
    assert controls.clear(kind="mails")
    assert not controls.clear(kind="mails")
    assert not Control.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "Give either kind= or namespace=."),
        ({"kind": "a", "namespace": "b"}, "Give either kind= or namespace=."),
        ({"kind": ""}, "The kind is blank; it must name something."),
        ({"namespace": " "}, "The namespace is blank; it must name something."),
        ({"namespace": "shop|mails"}, "The namespace 'shop|mails' contains '|', which ends it"),
        ({"kind": "k" * 101}, "has 101 characters; 100 is the most."),
        ({"kind": "a"}, "limit() needs max_running or rate; None removes that limit."),
        ({"kind": "a", "max_running": -1}, "max_running must be a whole number from 0 to 2147483647, or None"),
        ({"kind": "a", "max_running": True}, "max_running must be a whole number from 0"),
        ({"kind": "a", "max_running": 2**31}, "max_running must be a whole number from 0"),
        ({"kind": "a", "rate": 0}, "rate must be a whole number from 1 to 2147483647, or None for no limit, not 0."),
        ({"kind": "a", "rate": 1.5}, "rate must be a whole number from 1"),
        ({"kind": "a", "rate": 1, "per": 0}, "per must be at least one millisecond, not 0."),
        ({"kind": "a", "max_running": 1, "per": 5}, "per is the time in which rate may start; give both."),
        ({"kind": "a", "rate": None, "per": 5}, "per is the time in which rate may start; give both."),
    ],
)
def test_bad_input_is_refused_before_the_database_sees_it(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:  # and without the database: the test has none
        controls.limit(**arguments)
    assert sentence in str(caught.value)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("field", "value", "constraint"),
    [
        ("scope", "queue", "delayed_queue_control_scope"),
        ("max_running", -1, "delayed_queue_control_running"),
        ("rate", 0, "delayed_queue_control_rate"),
        ("rate_period", 0, "delayed_queue_control_period"),
    ],
)
def test_bad_values_are_refused_by_the_database_too(field: str, value: Any, constraint: str) -> None:
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        Control.objects.create(**{"scope": "kind", "name": "mails", field: value})


@pytest.mark.django_db(databases=["default", "second"])
def test_controls_are_those_of_the_queues_database_or_of_the_one_named(settings: Any) -> None:
    controls.pause(kind="mails", using="second")
    assert not controls.paused()
    settings.DELAYED_QUEUE = {"DATABASE": "second"}
    assert [control.name for control in controls.paused()] == ["mails"]
    assert controls.resume(kind="mails")


@pytest.mark.django_db
def test_each_operation_has_a_twin_for_asyncio() -> None:
    async def scenario() -> None:
        await controls.alimit(kind="mails", max_running=1)
        assert await controls.apause(kind="mails")
        assert await controls.aresume(kind="mails")
        assert await controls.aclear(kind="mails")

    async_to_sync(scenario)()


@pytest.mark.django_db(transaction=True)
def test_two_who_pause_the_same_kind_at_once_pause_it_once() -> None:
    assert sorted(together(*[lambda: controls.pause(kind="mails")] * 4)) == [False, False, False, True]


# Telling the workers


def heard(listener: psycopg.Connection[Any]) -> list[str]:
    return [notification.payload for notification in listener.notifies(timeout=0.2)]


@pytest.fixture
def listener(other_connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    other_connection.execute("LISTEN delayed_queue")
    return other_connection


def test_every_change_is_announced_to_all(listener: psycopg.Connection[Any]) -> None:
    changes = [
        lambda: controls.pause(kind="mails"),
        lambda: controls.limit(kind="mails", max_running=1),
        lambda: controls.resume(kind="mails"),
        lambda: controls.clear(kind="mails"),
    ]
    for change in changes:
        change()
        assert heard(listener) == [""]


def test_what_changes_nothing_is_not_written(listener: psycopg.Connection[Any]) -> None:
    controls.pause(kind="mails")
    heard(listener)
    with connection.cursor() as cursor:
        cursor.execute("SELECT xmin::text FROM delayed_queue_control")
        before = cursor.fetchall()
        controls.pause(kind="mails")
        cursor.execute("SELECT xmin::text FROM delayed_queue_control")
        assert cursor.fetchall() == before


def test_a_change_of_many_rows_is_announced_once_whoever_makes_it(listener: psycopg.Connection[Any]) -> None:
    for kind in ("a", "b", "c"):
        controls.pause(kind=kind)
    heard(listener)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delayed_queue_control SET paused = false")
    assert heard(listener) == [""]
    Control.objects.all().delete()
    assert heard(listener) == [""]


def test_taking_tokens_out_of_the_bucket_wakes_nobody(listener: psycopg.Connection[Any]) -> None:
    controls.limit(kind="mails", rate=10)
    heard(listener)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delayed_queue_control SET tokens = 9, tokens_at = 1")
    assert heard(listener) == []
