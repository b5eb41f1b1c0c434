"""Many at once: threads that start at a barrier, and processes of their own, on the real database."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import psycopg
import pytest
from django.db import connection, connections, transaction

from delayed_queue import BatchEnvelope, DelayedQueue, OfferOutcome, RetryConfig, ScheduledMessage
from tests.conftest import NOON, connect

pytestmark = pytest.mark.django_db(transaction=True)

R = TypeVar("R")
CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED
NEVER_AGAIN = RetryConfig(retries=0)  # so that a deadlock is a failure


def queue() -> DelayedQueue[str]:
    return DelayedQueue("races", retry=NEVER_AGAIN)


def together(*work: Callable[[], R]) -> list[R]:
    """Run them in threads that begin at the same moment; the results are in the order of the work."""
    barrier = threading.Barrier(len(work))
    results: dict[int, Any] = {}

    def run(number: int, function: Callable[[], R]) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(10)
            results[number] = function()
        except BaseException as error:
            results[number] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for result in results.values():
        if isinstance(result, BaseException):
            raise result
    return [results[number] for number in range(len(work))]


def test_each_message_is_polled_by_one_thread_only() -> None:
    reminders = queue()
    at = datetime.now(UTC) - timedelta(seconds=1)
    reminders.offer_batch([ScheduledMessage(f"k{n}", "x", at, priority=n % 3) for n in range(600)])

    def consume() -> list[str]:
        keys = []
        while batch := reminders.try_poll_many(7):
            keys += [envelope.key for envelope in batch]
            assert batch.acknowledge() == len(batch)
        return keys

    delivered = Counter(key for keys in together(*[consume] * 4) for key in keys)
    assert len(delivered) == 600
    assert set(delivered.values()) == {1}


CONSUMER = """
import json, os, sys
import django
django.setup()
from delayed_queue import DelayedQueue
queue = DelayedQueue("races")
sys.stdin.readline()
keys = []
while batch := queue.try_poll_many(5):
    keys += [envelope.key for envelope in batch]
    batch.acknowledge()
print(json.dumps(keys))
"""


def test_each_message_is_polled_by_one_process_only() -> None:
    at = datetime.now(UTC) - timedelta(seconds=1)
    queue().offer_batch([ScheduledMessage(f"k{n}", "x", at) for n in range(400)])
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "PYTHONPATH": os.getcwd(),
    }
    consumers = [
        subprocess.Popen(
            [sys.executable, "-c", CONSUMER],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for consumer in consumers:
        assert consumer.stdin is not None
        consumer.stdin.write("go\n")
        consumer.stdin.flush()
    delivered: Counter[str] = Counter()
    for consumer in consumers:
        output, _ = consumer.communicate(timeout=60)
        assert consumer.returncode == 0
        delivered.update(json.loads(output))
    assert len(delivered) == 400
    assert set(delivered.values()) == {1}


def database_url() -> str:
    parameters = connection.get_connection_params()
    user, password = parameters.get("user", ""), parameters.get("password", "")
    query = urlencode({name: parameters[name] for name in ("host", "port") if parameters.get(name)})
    return f"postgres://{quote(user)}:{quote(str(password or ''))}@/{parameters['dbname']}?{query}"


def test_of_racing_first_offers_one_creates() -> None:
    for number in range(20):
        key = f"k{number}"
        outcomes = together(*[lambda key=key: queue().offer_if_not_exists(key, "x", NOON)] * 4)
        assert sorted(outcome.name for outcome in outcomes) == ["CREATED", "IGNORED", "IGNORED", "IGNORED"]


def test_of_racing_updates_each_that_says_so_changed_the_row() -> None:
    for number in range(20):
        key = f"k{number}"
        offers = [
            (lambda key=key, payload=str(n): queue().offer_or_update(key, payload, NOON))  # type: ignore[misc]
            for n in range(4)
        ]
        outcomes = together(*offers)
        assert sorted(outcome.name for outcome in outcomes) == ["CREATED", "UPDATED", "UPDATED", "UPDATED"]


def test_an_offer_that_races_with_an_acknowledgement_is_never_lost() -> None:
    """Either it was still there and the same, or it is created anew; after both, the answer fits the table."""
    for number in range(40):
        key = f"k{number}"
        reminders = queue()
        reminders.offer_or_update(key, "x", NOON)
        envelope = reminders.try_poll()
        assert envelope is not None
        payload = random.choice("xy")
        outcome, acknowledged = together(
            lambda key=key, payload=payload: queue().offer_or_update(key, payload, NOON), envelope.acknowledge
        )
        found = (outcome, acknowledged, reminders.contains(key))
        assert found in {(CREATED, True, True), (IGNORED, True, False), (UPDATED, False, True)}
        reminders.drop(key)


def test_an_offer_that_races_with_a_drop_neither_fails_nor_spins() -> None:
    reminders = queue()

    def drops() -> int:
        return sum(bool(queue().drop("k")) for _ in range(100))

    def offers() -> int:
        return [queue().offer_or_update("k", str(n), NOON) for n in range(100)].count(CREATED)

    created, dropped = together(offers, drops)
    assert created - dropped == reminders.contains("k")


def test_batches_that_share_keys_do_not_deadlock() -> None:
    def offer(seed: int) -> None:
        choice = random.Random(seed)
        for turn in range(15):
            keys = [f"k{n}" for n in range(60)] + [f"k{n}" for n in range(0, 60, choice.randint(2, 9))]
            choice.shuffle(keys)
            messages = [
                ScheduledMessage(key, f"{seed}-{turn}", NOON, can_update=bool(seed % 2) or choice.random() < 0.5)
                for key in keys
            ]
            queue().offer_batch(messages)

    together(*[lambda seed=seed: offer(seed) for seed in range(4)])


def test_batches_of_offers_and_acknowledgements_do_not_deadlock() -> None:
    def offer() -> None:
        for turn in range(30):
            keys = [f"k{n}" for n in range(80)]
            random.shuffle(keys)
            queue().offer_batch([ScheduledMessage(key, str(turn), NOON) for key in keys])

    def consume() -> None:
        for _ in range(30):
            batch: BatchEnvelope[str] = queue().try_poll_many(40)
            batch.acknowledge()

    together(offer, consume, consume)


def test_a_poll_does_not_wait_for_a_message_that_someone_is_changing(
    other_connection: psycopg.Connection[Any],
) -> None:
    reminders = queue()
    reminders.offer_or_update("changing", "x", NOON)
    reminders.offer_or_update("free", "x", NOON + timedelta(seconds=1))
    with other_connection.transaction():
        other_connection.execute("SELECT * FROM delayed_queue WHERE \"pKey\" = 'changing' FOR UPDATE")
        with transaction.atomic():
            connection.cursor().execute("SET LOCAL lock_timeout = '100ms'")
            assert [envelope.key for envelope in reminders.try_poll_many(5)] == ["free"]
    assert [envelope.key for envelope in reminders.try_poll_many(5)] == ["changing"]


def test_an_update_and_an_acknowledgement_of_one_message_exclude_each_other(
    other_connection: psycopg.Connection[Any],
) -> None:
    """The update is not committed yet when the acknowledgement comes, which waits for it and is refused."""
    reminders = queue()
    reminders.offer_or_update("k", "old", NOON)
    envelope = reminders.try_poll()
    assert envelope is not None
    other_connection.execute("BEGIN")
    other_connection.execute("SELECT delayed_queue_offer(%s, 'k', 'new', 0, true, NULL, NULL)", [reminders.kind])
    acknowledged: list[bool] = []

    def acknowledge() -> None:
        acknowledged.append(envelope.acknowledge())
        connections.close_all()

    thread = threading.Thread(target=acknowledge)
    thread.start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%delayed_queue_ack%'"
    deadline = time.monotonic() + 20
    with connect() as watcher:
        while watcher.execute(waits).fetchone() == (0,):
            assert time.monotonic() < deadline
    other_connection.execute("COMMIT")
    thread.join(10)
    assert acknowledged == [False]
    assert reminders.contains("k")
