"""Offering many messages at once: any number, in one transaction, with one reply for each in the order given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.db import transaction

from delayed_queue import sessions
from delayed_queue.arrays import binaries, integers, texts
from delayed_queue.clocks import positive_ms, to_ms
from delayed_queue.messages import OfferOutcome, ScheduledMessage
from delayed_queue.retry import with_retries
from delayed_queue.sql import statements
from delayed_queue.validation import check_key, check_max_attempts, check_payload, check_priority

if TYPE_CHECKING:
    from delayed_queue.managers import DelayedMessageManager

T = TypeVar("T")

# Rows and bytes in one statement. From 2,000 to 20,000 rows the rate is the same; a payload is sent as hex.
CHUNK = 5000
CHUNK_BYTES = 8 * 1024 * 1024


class Row(NamedTuple):
    key: str
    payload: bytes
    at: int
    can_update: bool
    priority: int
    max_attempts: int | None
    expires_at: int | None
    max_wait: int | None


def offer(
    manager: DelayedMessageManager,
    kind: str,
    messages: Iterable[ScheduledMessage[T]],
    dumps: Callable[[T], bytes],
) -> list[OfferOutcome]:
    """All or nothing: every message is checked before the first statement, and the statements are one transaction.

    They go in the order of their keys, so that batches which share keys lock them in one order and cannot deadlock.
    """
    rows = [_row(message, dumps) for message in messages]
    if not rows:
        return []
    if len(rows) <= CHUNK and sum(len(row.payload) for row in rows) <= CHUNK_BYTES:
        return with_retries(manager.connection, manager.retry, partial(_store, manager, kind, rows))
    return with_retries(manager.connection, manager.retry, partial(_store_in_chunks, manager, kind, rows))


def _store_in_chunks(manager: DelayedMessageManager, kind: str, rows: Sequence[Row]) -> list[OfferOutcome]:
    outcomes = [OfferOutcome.IGNORED] * len(rows)
    connection = manager.connection
    with transaction.atomic(using=connection.alias, savepoint=False):
        (ids,) = sessions.run_for_many(connection, methodcaller("fetchone"), statements.RESERVE_IDS, [len(rows)])
        for places in _chunks(rows):
            chunk = [rows[place] for place in places]
            stored = _store(manager, kind, chunk, [ids[place] for place in places])
            for place, outcome in zip(places, stored, strict=True):
                outcomes[place] = outcome
    return outcomes


def _row(message: ScheduledMessage[T], dumps: Callable[[T], bytes]) -> Row:
    expires_at, max_wait = message.expires_at, message.max_wait
    return Row(
        check_key(message.key),
        check_payload(dumps(message.payload)),
        to_ms(message.schedule_at),
        bool(message.can_update),
        check_priority(message.priority),
        None if message.max_attempts is None else check_max_attempts(message.max_attempts),
        None if expires_at is None else to_ms(expires_at, "expires_at"),
        None if max_wait is None else positive_ms(max_wait, "max_wait"),
    )


def _chunks(rows: Sequence[Row]) -> Iterator[list[int]]:
    """The places of the rows in the order of their keys, and of one key in the order given, cut where it is enough."""
    chunk: list[int] = []
    size = 0
    for place in sorted(range(len(rows)), key=lambda place: rows[place].key):
        if chunk and (len(chunk) == CHUNK or size + len(rows[place].payload) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(place)
        size += len(rows[place].payload)
    yield chunk


def _store(
    manager: DelayedMessageManager, kind: str, rows: Sequence[Row], ids: Sequence[int] | None = None
) -> list[OfferOutcome]:
    """One statement. Without ids the rows get the next ones, in their order."""
    keys, payloads, ats, can_updates, priorities, max_attempts, expires_ats, max_waits = map(
        list, zip(*rows, strict=True)
    )
    parameters: dict[str, Any] = {
        "kind": kind,
        "ids": None if ids is None else integers(ids),
        "keys": texts(keys),
        "payloads": binaries(payloads),
        "ats": integers(ats),
        "priorities": integers(priorities),
        "max_attempts": integers(max_attempts),
        "expires_ats": integers(expires_ats),
        "horizon": manager._horizon,
        "now": manager._now,
        "in_transaction": manager._in_transaction,
    }
    fetch = methodcaller("fetchone")
    if len(set(keys)) < len(keys) or len(set(can_updates)) > 1 or any(max_waits):
        parameters |= {"can_updates": can_updates, "max_waits": integers(max_waits)}
        (each,) = sessions.run_for_many(manager.connection, fetch, statements.OFFER_EACH, parameters)
        return [OfferOutcome[outcome.partition(" ")[0]] for outcome in each]

    statement = statements.OFFER_MANY_OR_UPDATE if can_updates[0] else statements.OFFER_MANY_IF_ABSENT
    created, updated, _ = sessions.run_for_many(manager.connection, fetch, statement, parameters)
    if created is None:
        return [OfferOutcome.CREATED] * len(rows)
    outcomes = dict.fromkeys(created, OfferOutcome.CREATED) | dict.fromkeys(updated, OfferOutcome.UPDATED)
    return [outcomes.get(key, OfferOutcome.IGNORED) for key in keys]
