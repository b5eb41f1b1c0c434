"""Offering many messages at once: any number, in one transaction, with one reply for each in the order given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
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

# Rows in one statement. From 2,000 to 20,000 the rate is the same; larger ones only need more memory.
CHUNK = 5000


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
    order = sorted(range(len(rows)), key=lambda index: rows[index].key)
    connection = manager.connection

    def store() -> list[OfferOutcome]:
        outcomes: list[OfferOutcome] = [OfferOutcome.IGNORED] * len(rows)
        many = len(rows) > CHUNK
        with transaction.atomic(using=connection.alias, savepoint=False) if many else nullcontext():
            for indexes in _chunks(rows, order):
                chunk = [rows[index] for index in indexes]
                for index, outcome in zip(indexes, _store(manager, kind, chunk), strict=True):
                    outcomes[index] = outcome
        return outcomes

    return with_retries(connection, manager.retry, store) if rows else []


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


def _chunks(rows: Sequence[Row], order: Sequence[int]) -> Iterable[Sequence[int]]:
    """Slices of the order, of which none separates two messages of one key."""
    start = 0
    while start < len(order):
        end = min(start + CHUNK, len(order))
        while end < len(order) and rows[order[end]].key == rows[order[end - 1]].key:
            end += 1
        yield order[start:end]
        start = end


def _store(manager: DelayedMessageManager, kind: str, rows: Sequence[Row]) -> Iterable[OfferOutcome]:
    connection = manager.connection
    keys, payloads, ats, can_updates, priorities, max_attempts, expires_ats, max_waits = map(
        list, zip(*rows, strict=True)
    )
    parameters: dict[str, Any] = {
        "kind": kind,
        "keys": texts(keys),
        "payloads": binaries(payloads),
        "ats": integers(ats),
        "priorities": integers(priorities),
        "max_attempts": integers(max_attempts),
        "expires_ats": integers(expires_ats),
        "horizon": manager._horizon,
        "now": manager._now,
    }
    if len(set(keys)) < len(keys) or len(set(can_updates)) > 1 or any(max_waits):
        parameters |= {"can_updates": can_updates, "max_waits": integers(max_waits)}
        (each,) = sessions.run(connection, methodcaller("fetchone"), statements.OFFER_EACH, parameters)
        return [OfferOutcome[outcome.partition(" ")[0]] for outcome in each]

    statement = statements.OFFER_MANY_OR_UPDATE if can_updates[0] else statements.OFFER_MANY_IF_ABSENT
    created, updated, _ = sessions.run(connection, methodcaller("fetchone"), statement, parameters)
    if created is None:
        return [OfferOutcome.CREATED] * len(rows)
    outcomes = dict.fromkeys(created, OfferOutcome.CREATED) | dict.fromkeys(updated, OfferOutcome.UPDATED)
    return [outcomes.get(key, OfferOutcome.IGNORED) for key in keys]
