"""What the JVM library and this one must agree on, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from delayed_queue import BytesSerializer, DelayedQueue, DeliveryType, JsonSerializer, TextSerializer
from delayed_queue.clocks import to_ms
from delayed_queue.kinds import namespace_of
from tests.conftest import FrozenClock


def insert_as_the_jvm_does(key: str, kind: str, payload: bytes, at: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO "delayed_queue" ("pKey", "pKind", "payload", "scheduledAt", "scheduledAtInitially", "createdAt")
            VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT ("pKey", "pKind") DO NOTHING
            """,
            [key, kind, payload, at, at, at],
        )


def test_the_kind_of_a_queue_is_the_md5_of_its_name_and_type() -> None:
    assert DelayedQueue("my-queue").kind == "7ab2b0dfa43e1a1f12169da88468fb53"


def test_queues_of_one_name_and_two_types_are_two_queues() -> None:
    assert DelayedQueue("q", TextSerializer()).kind != DelayedQueue("q", JsonSerializer()).kind


def test_a_kind_can_be_named_directly() -> None:
    assert DelayedQueue.for_kind("billing|invoices").kind == "billing|invoices"


@pytest.mark.parametrize(("kind", "namespace"), [("a|b", "a"), ("a|b|c", "a"), ("plain", "default"), ("|x", "")])
def test_the_namespace_is_what_stands_before_the_first_bar(kind: str, namespace: str) -> None:
    assert namespace_of(kind) == namespace


def test_text_is_utf8() -> None:
    assert TextSerializer().dumps("ț") == b"\xc8\x9b"


def test_json_is_canonical() -> None:
    assert JsonSerializer().dumps({"b": [1, 2.5, None], "a": "ț"}) == '{"a":"ț","b":[1,2.5,null]}'.encode()


@pytest.mark.parametrize("value", [b"", b"\0\xff", bytearray(b"x"), memoryview(b"y")])
def test_bytes_are_kept_as_they_are(value: Any) -> None:
    assert BytesSerializer().loads(BytesSerializer().dumps(value)) == bytes(value)


def test_a_row_that_the_jvm_inserted_is_delivered(queue: DelayedQueue[str], clock: FrozenClock) -> None:
    insert_as_the_jvm_does("jvm", queue.kind, b"salut", to_ms(clock()) - 5)
    envelope = queue.try_poll()
    assert envelope is not None
    assert (envelope.payload, envelope.attempt, envelope.delivery_type) == ("salut", 1, DeliveryType.FIRST_DELIVERY)
    assert envelope.acknowledge()


def test_a_row_that_the_jvm_rewrote_is_at_its_first_attempt_again(
    queue: DelayedQueue[str], clock: FrozenClock, row: Callable[[str], dict[str, Any]]
) -> None:
    """The JVM does not know the counter, so it leaves it where it was."""
    queue.offer_or_update("k", "old", clock(), max_attempts=2)
    queue.try_poll()
    with connection.cursor() as cursor:
        cursor.execute(
            """UPDATE "delayed_queue" SET "payload" = 'new', "scheduledAt" = %(at)s, "scheduledAtInitially" = %(at)s,
            "lockUuid" = NULL, "createdAt" = "createdAt" + 1, attempts = 2 WHERE "pKey" = 'k'""",
            {"at": to_ms(clock())},
        )
    envelope = queue.try_poll()
    assert envelope is not None
    assert (envelope.payload, envelope.attempt) == ("new", 1)


def test_the_jvm_can_acknowledge_by_the_lock_alone(queue: DelayedQueue[str], clock: FrozenClock) -> None:
    queue.offer_or_update("k", "x", clock())
    envelope = queue.try_poll()
    assert envelope is not None
    with connection.cursor() as cursor:
        cursor.execute('DELETE FROM "delayed_queue" WHERE "lockUuid" = %s', [envelope.lock_uuid])
        assert cursor.rowcount == 1
    assert not envelope.acknowledge()
