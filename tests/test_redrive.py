"""Dead messages go back, stay dead or are discarded; manage.py delayed_queue_redrive."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, transaction

from delayed_queue import DelayedQueue, InvalidInput
from delayed_queue.dead import Counts, RedriveReport
from delayed_queue.models import DeadMessage, DelayedMessage
from tests.conftest import NOON
from tests.test_races import together

dead = DeadMessage.objects
Row = Callable[[str], dict[str, Any] | None]


def now_ms() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint")
        return int(cursor.fetchone()[0])


def bury(key: str = "k", kind: str = "mails", ago: timedelta = timedelta(0), **fields: Any) -> DeadMessage:
    values = {
        "payload": b"x", "priority": 0, "attempts": 10, "scheduled_at_initially": 1, "created_at": 2,
        "reason": "exhausted", "died_at": now_ms() - int(ago.total_seconds() * 1000),
    }  # fmt: skip
    return DeadMessage.objects.create(key=key, kind=kind, **values | fields)


def offer(key: str = "k", kind: str = "mails", payload: bytes = b"live") -> None:
    DelayedMessage.objects.offer_or_update(kind=kind, key=key, payload=payload, schedule_at=NOON)


def live() -> list[str]:
    return sorted(DelayedMessage.objects.values_list("key", flat=True))


def still_dead() -> list[str]:
    return sorted(DeadMessage.objects.values_list("key", flat=True))


# What goes back


@pytest.mark.django_db
def test_a_message_goes_back_due_now_with_all_attempts_before_it(row: Row) -> None:
    started = now_ms()
    bury(payload=b"p", priority=7, max_attempts=3, error="boom", first_offered_at=1, expires_at=started + 3_600_000)
    assert dead.redrive() == RedriveReport(1, 0, {"mails": Counts(1, 0)})
    assert still_dead() == []
    found = row("k")
    assert found is not None
    at = found["scheduledAt"]
    assert started <= at <= now_ms()
    assert found == found | {
        "pKind": "mails", "payload": b"p", "scheduledAtInitially": at, "createdAt": at, "priority": 7, "attempts": 0,
        "maxAttempts": 3, "expiresAt": started + 3_600_000, "lastError": "boom", "firstOfferedAt": 1, "lockUuid": None,
    }  # fmt: skip


@pytest.mark.django_db
def test_an_expiry_that_has_passed_is_dropped_and_a_first_offer_is_the_creation(row: Row) -> None:
    bury(reason="expired", expires_at=5, created_at=2, first_offered_at=None)
    dead.redrive()
    found = row("k")
    assert found is not None
    assert (found["expiresAt"], found["firstOfferedAt"]) == (None, 2)


@pytest.mark.django_db
def test_what_went_back_is_delivered_as_its_first_attempt() -> None:
    queue = DelayedQueue("reminders")
    bury(kind=queue.kind, payload=b"hello")
    dead.redrive(kind=queue.kind)
    envelope = queue.try_poll()
    assert envelope is not None
    assert (envelope.payload, envelope.attempt) == ("hello", 1)


@pytest.mark.django_db
def test_one_whose_key_is_in_the_queue_again_stays_dead(row: Row) -> None:
    bury("busy")
    bury("free")
    bury("busy", kind="other")
    offer("busy")
    assert dead.redrive(kind="mails") == RedriveReport(1, 1, {"mails": Counts(1, 1)})
    assert (live(), still_dead()) == (["busy", "free"], ["busy", "busy"])
    found = row("busy")
    assert found is not None
    assert found["payload"] == b"live"


@pytest.mark.django_db
@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_of_two_with_the_same_key_the_newest_goes_back(chunk: int, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayed_queue.dead.CHUNK", chunk)
    for payload in (b"old", b"older", b"newest"):
        bury("k", payload=payload)
    bury("z")
    report = dead.redrive()
    assert (report.redriven, report.blocked) == (2, 2)
    found = row("k")
    assert found is not None
    assert found["payload"] == b"newest"
    assert still_dead() == ["k", "k"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("chosen", "keys"),
    [
        ({"kind": "mails"}, ["a", "b"]),
        ({"key": "b"}, ["b"]),
        ({"reason": "rejected"}, ["c"]),
        ({"reason": DeadMessage.Reason.REJECTED}, ["c"]),
        ({"older_than": timedelta(hours=1)}, ["b", "c"]),
        ({"younger_than": 3600}, ["a"]),
        ({"older_than": timedelta(hours=1), "younger_than": timedelta(days=1)}, ["b"]),
        ({"ids": []}, []),
        ({}, ["a", "b", "c"]),
    ],
)
def test_what_goes_back_can_be_chosen(chosen: dict[str, Any], keys: list[str]) -> None:
    bury("a")
    bury("b", ago=timedelta(hours=2))
    bury("c", kind="other", ago=timedelta(days=3), reason="rejected")
    assert dead.redrive(dry_run=True, **chosen).redriven == len(keys)
    assert live() == []
    assert dead.redrive(**chosen).redriven == len(keys)
    assert live() == keys


@pytest.mark.django_db
def test_ids_choose_too() -> None:
    ids = [bury(key).id for key in "abc"]
    dead.redrive(ids=iter(ids[:2]))
    assert live() == ["a", "b"]


@pytest.mark.django_db
@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_a_limit_counts_what_goes_back_not_what_is_blocked(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayed_queue.dead.CHUNK", chunk)
    for key in ("old", "young", "busy", "busy"):
        bury(key)
    offer("busy")
    expected = RedriveReport(1, 2, {"mails": Counts(1, 2)})
    assert dead.redrive(limit=1, dry_run=True) == expected
    assert dead.redrive(limit=1) == expected
    assert live() == ["busy", "young"]


@pytest.mark.django_db
@pytest.mark.parametrize("limit", [None, 1, 2, 3, 9])
def test_a_dry_run_says_what_then_happens_and_touches_nothing(limit: int | None) -> None:
    for key, kind in [("a", "mails"), ("a", "mails"), ("b", "mails"), ("a", "other"), ("c", "other"), ("b", "mails")]:
        bury(key, kind)
    offer("c", "other")
    expected = dead.redrive(limit=limit, dry_run=True)
    assert (DelayedMessage.objects.count(), DeadMessage.objects.count()) == (1, 6)
    assert dead.redrive(limit=limit) == expected


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"reason": "bored"}, "The reason must be one of exhausted, expired, undecodable, rejected, not 'bored'."),
        ({"kind": ""}, "The kind is blank"),
        ({"key": "k" * 201}, "200 is the most"),
        ({"older_than": -1}, "older_than must not be negative, not -1."),
        ({"younger_than": "1h"}, "younger_than must be a timedelta or a number of seconds, not str."),
        ({"limit": 0}, "limit must be a whole number greater than 0, or None for all, not 0."),
        ({"ids": ["1"]}, "ids must be whole numbers, not '1'."),
    ],
)
def test_bad_input_is_refused_before_the_database_sees_it(chosen: dict[str, Any], sentence: str) -> None:
    for operation in (dead.redrive, dead.discard):
        with pytest.raises(InvalidInput) as caught:
            operation(**({"key": "k"} | chosen))
        assert sentence in str(caught.value)


@pytest.mark.django_db(databases=["default", "second"])
def test_another_database_can_be_named() -> None:
    bury()
    assert dead.redrive(using="second").redriven == 0
    assert dead.db_manager("second").redrive().redriven == 0
    assert dead.redrive(using="default").redriven == 1


# Many, and many at once


@pytest.mark.django_db(transaction=True)
def test_two_who_do_it_at_once_move_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayed_queue.dead.CHUNK", 50)
    bury_many(1000)
    reports = together(*[dead.redrive] * 4)
    assert sum(report.redriven for report in reports) == 1000
    assert sum(report.blocked for report in reports) == 0
    assert (DelayedMessage.objects.count(), DeadMessage.objects.count()) == (1000, 0)


@pytest.mark.django_db(transaction=True)
def test_racing_with_offers_of_the_same_keys_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayed_queue.dead.CHUNK", 20)
    bury_many(300)

    def offer_them_backwards() -> None:
        for number in reversed(range(0, 300, 2)):
            offer(f"k{number}")

    _, report = together(offer_them_backwards, dead.redrive)
    assert report.redriven + report.blocked == 300
    assert (DelayedMessage.objects.count(), DeadMessage.objects.count()) == (300, report.blocked)


@pytest.mark.django_db(transaction=True)
def test_a_dead_message_that_someone_holds_locked_is_passed_over(other_connection: psycopg.Connection[Any]) -> None:
    bury("held")
    bury("free")
    other_connection.execute("BEGIN")
    other_connection.execute("SELECT FROM delayed_queue_dead WHERE key = 'held' FOR UPDATE")
    assert dead.redrive().redriven == 1
    assert dead.discard(older_than=0) == 0
    other_connection.execute("ROLLBACK")
    assert dead.redrive().redriven == 1


@pytest.mark.django_db(transaction=True)
def test_each_chunk_is_committed_by_itself(
    other_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayed_queue.dead.CHUNK", 4)
    bury_many(10)
    seen = []
    for _ in dead.redrive_in_chunks():
        seen.append(other_connection.execute("SELECT count(*) FROM delayed_queue").fetchone())
    assert seen == [(4,), (8,), (10,)]


@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_of_the_caller_it_is_part_of_that() -> None:
    bury()
    with transaction.atomic():
        assert dead.redrive().redriven == 1
        transaction.set_rollback(True)
    assert (live(), still_dead()) == ([], ["k"])


@pytest.mark.django_db
def test_there_are_twins_for_asyncio() -> None:
    bury("a")
    bury("b")

    async def scenario() -> None:
        assert (await dead.aredrive(key="a")).redriven == 1
        assert await dead.adiscard(key="b") == 1

    async_to_sync(scenario)()


def test_each_kind_is_announced_once_in_a_chunk(other_connection: psycopg.Connection[Any], settings: Any) -> None:
    other_connection.execute("LISTEN delayed_queue")

    def heard() -> list[str]:
        return sorted(found.payload for found in other_connection.notifies(timeout=0.2))

    for key, kind in [("a", "mails"), ("b", "mails"), ("c", "other"), ("busy", "third")]:
        bury(key, kind)
    offer("busy", "third")
    heard()
    dead.redrive()
    assert heard() == ["mails", "other"]
    settings.DELAYED_QUEUE = {"NOTIFY": False}
    bury("d")
    dead.redrive(key="d")
    assert heard() == []


def bury_many(count: int) -> None:
    template = bury("template")
    DeadMessage.objects.bulk_create(
        DeadMessage(
            key=f"k{number}", kind="mails", payload=b"x", priority=0, attempts=1, scheduled_at_initially=1,
            created_at=1, reason="exhausted", died_at=template.died_at,
        )
        for number in range(count)
    )  # fmt: skip
    template.delete()


# Discarding


@pytest.mark.django_db
def test_what_is_discarded_is_gone_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayed_queue.dead.CHUNK", 2)
    for number in range(5):
        bury(f"k{number}")
    bury("other", kind="other")
    assert dead.discard(kind="mails", dry_run=True) == 5
    assert dead.discard(kind="mails", limit=1, dry_run=True) == 1
    assert dead.discard(kind="mails", limit=3) == 3
    assert still_dead() == ["k3", "k4", "other"]
    assert dead.discard(kind="mails") == 2
    assert (still_dead(), live()) == (["other"], [])


@pytest.mark.django_db
def test_discarding_everything_must_be_said() -> None:
    bury(ago=timedelta(seconds=1))
    with pytest.raises(InvalidInput, match="If that is meant, pass older_than=0"):
        dead.discard()
    assert dead.discard(older_than=0) == 1


# The command


def redrive(*arguments: str, stdout: io.StringIO | None = None) -> str:
    output = stdout or io.StringIO()
    call_command("delayed_queue_redrive", *arguments, stdout=output)
    return output.getvalue()


@pytest.mark.django_db
def test_the_command_shows_a_table_and_says_what_stayed_dead_and_why() -> None:
    bury("a")
    bury("b")
    bury("c", kind="shop|invoices")
    offer("b")
    expected = [
        "kind           would go back  blocked",
        "mails                      1        1",
        "shop|invoices              1        0",
        "total                      2        1",
        "Would stay dead: 1. A message with their key is in the queue again, or went back now as the newer of two.",
    ]
    assert redrive("--all", "--dry-run").splitlines() == expected
    assert live() == ["b"]
    shown = redrive("--all").splitlines()
    assert shown[0] == "kind               went back  blocked"
    assert shown[1:4] == expected[1:4]
    assert shown[4].startswith("Stayed dead: 1. A message with their key is in the queue again")
    assert live() == ["a", "b", "c"]


@pytest.mark.django_db
def test_the_command_says_when_there_is_nothing() -> None:
    assert redrive("--kind", "mails") == "There is no such dead message.\n"


def test_the_command_wants_to_know_which() -> None:
    for arguments in ([], ["--limit", "5"], ["--dry-run"]):
        with pytest.raises(CommandError, match=r"Say which: --kind, --key, .* or --all of them"):
            redrive(*arguments)


@pytest.mark.django_db
def test_the_command_takes_conditions_and_durations() -> None:
    bury("new")
    bury("old", ago=timedelta(minutes=20))
    bury("older", ago=timedelta(days=8), reason="rejected")
    redrive("--older-than", "15m", "--younger-than", "7d")
    assert live() == ["old"]
    redrive("--reason", "rejected", "--kind", "mails", "--key", "older")
    assert live() == ["old", "older"]
    redrive("--all", "--limit", "1", "--database", "default")
    assert still_dead() == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--older-than", "soon"], "'soon' is not a duration. Write 90s, 15m, 2h or 7d."),
        (["--older-than", "7"], "'7' is not a duration."),
        (["--older-than", "9999999999d"], "'9999999999d' is longer than a duration can be."),
        (["--reason", "bored"], "invalid choice: 'bored'"),
        (["--all", "--limit", "0"], "limit must be a whole number greater than 0"),
        (["--kind", ""], "The kind is blank"),
    ],
)
def test_the_command_explains_what_it_does_not_understand(arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError) as caught:
        redrive(*arguments)
    assert sentence in str(caught.value)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.django_db
def test_progress_is_for_terminals_only() -> None:
    bury("a")
    assert "so far" not in redrive("--all")
    bury("b")
    assert "\r1 went back so far" in redrive("--all", stdout=Terminal())
