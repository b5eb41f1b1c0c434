"""R17: what a poll costs does not grow with what is not due, nor with what was delivered under a held horizon.

Counts of buffers and shapes of plans, never times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from delayed_queue import DelayedQueue, OfferOutcome, ScheduledMessage, delayed_task
from delayed_queue.queues import queue_kind
from delayed_queue.testing import isolated_registry
from delayed_queue.workers.executor import fail
from delayed_queue.workers.identity import Identity
from delayed_queue.workers.options import WorkerOptions
from delayed_queue.workers.store import Store
from tests.conftest import connect
from tests.explaining import explained

KIND = queue_kind("plans", "java.lang.String")
FUTURE = 1_000_000


def queue() -> DelayedQueue[str]:
    return DelayedQueue("plans")


@contextmanager
def counted() -> Iterator[list[int]]:
    """The buffers that each statement of the block touches."""
    buffers: list[int] = []
    with explained("BUFFERS", times=2) as plans:
        yield buffers
    buffers += [plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans]


def insert(raw: psycopg.Connection[Any], count: int, at: str, prefix: str) -> None:
    raw.execute(
        f"""
        INSERT INTO delayed_queue
            ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
        SELECT '{prefix}' || i, %(kind)s, 'x', at + i, at + i, 0
        FROM generate_series(1, %(count)s) AS i, (SELECT (extract(epoch FROM {at}) * 1000)::bigint) AS t (at)
        """,
        {"kind": KIND, "count": count},
    )


@pytest.fixture(scope="module")
def million(django_db_setup: None, django_db_blocker: Any) -> Iterator[psycopg.Connection[Any]]:
    """A million messages for tomorrow, in one batch, of three priorities, above and below that of what will be due."""
    with django_db_blocker.unblock(), connect() as raw:
        # An analysis by itself would hold the horizon while it runs, and count.
        raw.execute("ALTER TABLE delayed_queue SET (autovacuum_enabled = off)")
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        outcomes = queue().offer_batch(
            ScheduledMessage(f"future-{n}", "x", tomorrow + timedelta(milliseconds=n), priority=(-50, 50, 100)[n % 3])
            for n in range(FUTURE)
        )
        assert outcomes == [OfferOutcome.CREATED] * FUTURE
        yield raw
        raw.execute("TRUNCATE delayed_queue, delayed_queue_dead, delayed_queue_delivery")
        raw.execute("ALTER TABLE delayed_queue RESET (autovacuum_enabled)")
        connection.close()


@pytest.fixture(params=["no", "fresh", "foreign", "empty"])
def statistics(request: pytest.FixtureRequest, million: psycopg.Connection[Any]) -> Iterator[str]:
    """None, those of the table as it is, those of a day when it was nearly empty, and of one when it was quite."""
    if request.param == "fresh":
        million.execute("ANALYZE delayed_queue")
    else:
        million.execute("DELETE FROM pg_statistic WHERE starelid = 'delayed_queue'::regclass")
        tuples, pages = {"no": (-1, 0), "foreign": (2, 1), "empty": (0, 10_000)}[request.param]
        million.execute(
            "UPDATE pg_class SET reltuples = %s, relpages = %s WHERE oid = 'delayed_queue'::regclass", [tuples, pages]
        )
    connection.close()  # plans are kept for a session
    yield request.param
    if million.execute("DELETE FROM delayed_queue WHERE \"pKey\" NOT LIKE 'future-%'").rowcount:
        million.execute("VACUUM (INDEX_CLEANUP ON) delayed_queue")


@pytest.mark.large
class TestBesideAMillion:
    @pytest.fixture(autouse=True)
    def unblocked(self, statistics: str, django_db_blocker: Any) -> Iterator[None]:
        with django_db_blocker.unblock():
            yield

    def test_a_poll_of_nothing_reads_a_few_pages(self) -> None:
        with counted() as buffers:
            assert queue().try_poll() is None
        assert max(buffers) <= 60

    def test_a_poll_reads_what_it_takes(self, million: psycopg.Connection[Any]) -> None:
        insert(million, 500, "now() - interval '1 minute'", "due-")
        with counted() as buffers:
            assert len(queue().try_poll_many(10)) == 10
        assert max(buffers) <= 400  # of which about 25 for each row are its entries in the three indexes
        with counted() as buffers:
            assert len(queue().try_poll_many(1)) == 1
        assert max(buffers) <= 100

    def test_a_blocking_poll_knows_the_next_due_time_from_the_same_statement(self) -> None:
        with counted() as buffers:
            assert queue().poll(timeout=0) is None
        assert len(buffers) == 1
        assert max(buffers) <= 60

    def test_offers_acks_and_drops_read_a_few_pages(self) -> None:
        reminders = queue()
        now = datetime.now(UTC)
        with counted() as buffers:
            reminders.offer_or_update("k", "x", now)
            reminders.offer_or_update("k", "y", now)
            reminders.offer_or_update("k", "y", now)
            envelope = reminders.try_poll()
            assert envelope is not None
            envelope.extend()
            envelope.release()
            reminders.contains("k")
            reminders.read("k")
            reminders.drop("k")
        assert len(buffers) == 9
        assert max(buffers) <= 100

    def test_what_workers_do_reads_a_few_pages(self, million: psycopg.Connection[Any]) -> None:
        insert(million, 40, "now() - interval '1 minute'", "due-")
        with isolated_registry():
            delayed_task(kind=KIND)(lambda: None)
            kinds = WorkerOptions().served_kinds()
        store = Store("default", Identity())
        with counted() as buffers:
            leased = store.lease(kinds, [10], store.identity.new_lock_uuid(), keeper=None)  # type: ignore[arg-type]
            assert len(store.extend(leased.deliveries).ours) == 10
            done, failed = leased.deliveries[:5], leased.deliveries[5:]
            for delivery in failed:
                fail(delivery, "error", "error")
            failed[0].outcome = "dead"
            assert len(store.finish(done).ours) == 5
            assert len(store.settle(failed).ours) == 5
            store.reclaim(kinds, store.identity.lock_prefix)
        assert len(buffers) == 5
        assert max(buffers) <= 600


PLANS = re.compile(
    r"\{(SORT|INCREMENTALSORT|SEQSCAN|BITMAPHEAPSCAN|HASHJOIN|MERGEJOIN|INDEXSCAN|INDEXONLYSCAN|TIDSCAN)\b"
)


@pytest.mark.large
def test_every_plan_of_a_poll_is_an_index_scan_in_order(
    statistics: str, million: psycopg.Connection[Any], django_db_blocker: Any
) -> None:
    with django_db_blocker.unblock(), connect() as raw:
        insert(million, 50, "now() - interval '1 minute'", "due-")
        plans: list[set[str]] = []
        indexes = dict(raw.execute("SELECT oid::bigint, relname FROM pg_class WHERE relname LIKE 'delayed_queue%'"))

        def note(diagnostic: psycopg.errors.Diagnostic) -> None:
            if diagnostic.message_primary == "plan:":
                detail = diagnostic.message_detail or ""
                used = {indexes.get(int(oid), oid) for oid in re.findall(r":indexid (\d+)", detail)}
                plans.append(set(PLANS.findall(detail)) | used)

        raw.add_notice_handler(note)
        raw.execute("SET client_min_messages = log")
        raw.execute("SET debug_pretty_print = off")
        raw.execute("SET debug_print_plan = on")
        rows = raw.execute(
            "SELECT * FROM delayed_queue_poll(%s, 10, 1000, 'plan', NULL, NULL, true, '{0,0,0}')", [KIND]
        ).fetchall()
        assert len(rows) == 11
        rows = raw.execute(
            "SELECT * FROM delayed_queue_poll(%s, 100, 1000, 'plan', NULL, NULL, false, '{}')", [KIND]
        ).fetchall()
        assert len(rows) == 41
        raw.execute("SELECT delayed_queue_ack(%s, %s)", [[row[0] for row in rows[:-1]], ["plan"] * 40])
        raw.execute("SET debug_print_plan = off")
    scans = [plan for plan in plans if plan]
    assert {"INDEXSCAN", "delayed_queue_due"} in [plan - {"INDEXONLYSCAN"} for plan in scans]
    assert {"TIDSCAN"} in scans
    for plan in scans:
        assert plan <= {"INDEXSCAN", "INDEXONLYSCAN", "delayed_queue_due", "delayed_queue_pkey", "TIDSCAN"}


@pytest.mark.django_db(transaction=True)
def test_a_session_that_knew_the_table_nearly_empty_is_not_lost_when_it_is_full(
    other_connection: psycopg.Connection[Any],
) -> None:
    """Plans that were kept from then made 500 acknowledgements take 13 s."""
    reminders = queue()
    now = datetime.now(UTC)
    reminders.offer_or_update("one", "x", now + timedelta(days=1))
    other_connection.execute("ALTER TABLE delayed_queue SET (autovacuum_enabled = off)")
    other_connection.execute("VACUUM ANALYZE delayed_queue")

    def everything() -> None:
        reminders.offer_or_update("k", "x", now)
        reminders.offer_or_update("behind", "x", now + timedelta(seconds=2))
        first, second = reminders.try_poll_many(1), reminders.read("behind")
        assert second is not None
        assert first[0].extend()
        assert first[0].release()
        assert reminders.contains("behind")
        assert second.acknowledge()
        assert reminders.drop("k")
        reminders.offer_or_update("k", "x", now)
        assert reminders.try_poll_many(1).acknowledge() == 1

    for _ in range(12):
        everything()
    insert(other_connection, 50_000, "now() + interval '1 day'", "future-")
    with counted() as buffers:
        everything()
    other_connection.execute("ALTER TABLE delayed_queue RESET (autovacuum_enabled)")
    assert max(buffers) <= 150


@pytest.mark.large
@pytest.mark.django_db(transaction=True)
def test_a_poll_does_not_read_what_was_delivered_while_a_long_transaction_holds_the_horizon(
    other_connection: psycopg.Connection[Any],
) -> None:
    """After 20,000 messages a scan from the start reads over 500 buffers, and more with every message."""
    other_connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other_connection.execute("SELECT count(*) FROM delayed_queue")
    reminders = queue()
    batch = 500
    for number in range(40):
        at = datetime.now(UTC) - timedelta(seconds=30) + timedelta(milliseconds=number * 100)
        reminders.offer_batch([ScheduledMessage(f"{number}-{n}", "x", at) for n in range(batch)])
        assert reminders.try_poll_many(batch).acknowledge() == batch
    at = datetime.now(UTC) - timedelta(seconds=1)
    reminders.offer_batch([ScheduledMessage(f"last-{n}", "x", at + timedelta(milliseconds=n)) for n in range(100)])
    assert len(reminders.try_poll_many(10)) == 10  # a sweep, because the batch came from here
    with counted() as bounded:
        assert len(reminders.try_poll_many(10)) == 10
    with counted() as swept:
        assert len(queue().try_poll_many(10)) == 10
    other_connection.execute("ROLLBACK")
    assert max(bounded) <= 350
    assert min(swept) >= 500 + max(bounded)


@pytest.mark.django_db(transaction=True)
def test_an_offer_due_now_does_not_read_it_either(other_connection: psycopg.Connection[Any]) -> None:
    """The look for one that precedes it goes back ten seconds."""
    other_connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other_connection.execute("SELECT count(*) FROM delayed_queue")
    reminders = queue()
    for number in range(10):
        at = datetime.now(UTC) - timedelta(seconds=60)
        reminders.offer_batch([ScheduledMessage(f"{number}-{n}", "x", at) for n in range(500)])
        assert reminders.try_poll_many(500).acknowledge() == 500
    with counted() as buffers:
        reminders.offer_or_update("k", "x", datetime.now(UTC))
    other_connection.execute("ROLLBACK")
    assert max(buffers) <= 60
