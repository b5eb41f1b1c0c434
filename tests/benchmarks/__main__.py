"""make bench"""

from __future__ import annotations

import itertools
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

import django
import psycopg

django.setup()

from django.db import connection
from rich.console import Console

from delayed_queue import BytesSerializer, DelayedQueue, ScheduledMessage
from tests.benchmarks import raw
from tests.benchmarks.measuring import Comparison, compare, show

PAYLOAD = b"x" * 40
OFFERS = 200
BATCH = 100_000
DRAINED = 20_000
LEASED_AT_ONCE = 500
FUTURE = 1_000_000


class Benchmarks:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.queue: DelayedQueue[bytes] = DelayedQueue("bench", BytesSerializer(), acquire_timeout=60)
        parameters = connection.get_connection_params()
        kept = {name: parameters[name] for name in ("host", "port", "user", "password", "dbname") if name in parameters}
        self.raw: psycopg.Connection[Any] = psycopg.connect(**kept, autocommit=True)

    def run(self) -> list[Comparison]:
        found = []
        steps = [
            self.single_offers,
            self.batches_if_absent,
            self.batches_or_update,
            self.drains,
            self.drain_beside_a_million,
        ]
        for step in steps:
            with self.console.status(step.__name__.replace("_", " ")):
                found.append(step())
            self.console.print(f"  {found[-1].name}: {found[-1].ratio:.2f}")
        self.wal_of_a_life()
        return found

    def single_offers(self) -> Comparison:
        at = datetime.now(UTC) + timedelta(hours=1)
        at_ms = raw.now_ms() + 3_600_000

        keys = (f"key-{i}" for i in itertools.count())

        def by_hand() -> None:
            for _ in range(OFFERS):
                raw.offer(self.raw, self.queue.kind, next(keys), PAYLOAD, at_ms)

        def by_queue() -> None:
            for _ in range(OFFERS):
                self.queue.offer_if_not_exists(next(keys), PAYLOAD, at)

        return compare("single offer, autocommit", OFFERS, 0.80, by_hand, by_queue, self.empty, turns=40)

    def batches_if_absent(self) -> Comparison:
        return self._batches("offer_batch, ON CONFLICT DO NOTHING", raw.DO_NOTHING, can_update=False)

    def batches_or_update(self) -> Comparison:
        return self._batches("offer_batch, ON CONFLICT DO UPDATE", raw.DO_UPDATE, can_update=True)

    def _batches(self, name: str, conflict: str, can_update: bool) -> Comparison:
        at = datetime.now(UTC) + timedelta(hours=1)
        keys = [f"key-{i}" for i in range(BATCH)]
        messages = [ScheduledMessage(key, PAYLOAD, at, can_update=can_update) for key in keys]
        payloads, ats = [PAYLOAD] * BATCH, [raw.now_ms() + 3_600_000] * BATCH

        def by_hand() -> None:
            raw.offer_many(self.raw, self.queue.kind, keys, payloads, ats, conflict)

        def by_queue() -> None:
            self.queue.offer_batch(messages)

        return compare(name, BATCH, 0.70, by_hand, by_queue, self.empty)

    def drains(self) -> Comparison:
        def by_hand() -> None:
            while raw.lease_and_ack(self.raw, self.queue.kind, LEASED_AT_ONCE):
                pass

        return compare("lease + ack by 500", DRAINED, 0.85, by_hand, self.drain, self.fill_with_due)

    def drain_beside_a_million(self) -> Comparison:
        """Not against raw: against itself on an otherwise empty table."""
        rounds = iter(["empty", "full"] * 3)

        def before() -> None:
            self.empty()
            if next(rounds) == "full":
                self.insert(FUTURE, "now() + interval '1 day'", "future-")
            self.insert(DRAINED, "now() - interval '1 minute'", "due-")
            self.settle()

        return compare("lease + ack beside 1,000,000 future", DRAINED, 0.90, self.drain, self.drain, before)

    def wal_of_a_life(self) -> None:
        self.empty()
        at = datetime.now(UTC) - timedelta(seconds=1)
        started = self._wal()
        for start in range(0, DRAINED, LEASED_AT_ONCE):
            self.queue.offer_batch([ScheduledMessage(f"key-{start + i}", PAYLOAD, at) for i in range(LEASED_AT_ONCE)])
        self.drain()
        self.console.print(
            f"  WAL of a message over its life: {(self._wal() - started) / DRAINED:,.0f} B (at most 1,350)"
        )

    def drain(self) -> None:
        while batch := self.queue.try_poll_many(LEASED_AT_ONCE):
            batch.acknowledge()

    def empty(self) -> None:
        self.raw.execute("TRUNCATE delayed_queue")
        self.settle()

    def fill_with_due(self) -> None:
        self.empty()
        self.insert(DRAINED, "now() - interval '1 minute'", "due-")
        self.settle()

    def settle(self) -> None:
        """Neither autovacuum nor a checkpoint shall fall into one side's time."""
        self.raw.execute("VACUUM ANALYZE delayed_queue")
        self.raw.execute("CHECKPOINT")

    def insert(self, count: int, at: str, prefix: str) -> None:
        self.raw.execute(
            f"""
            INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
            SELECT '{prefix}' || i, %(kind)s, %(payload)s, at + i, at + i, 0
            FROM generate_series(1, %(count)s) AS i, (SELECT (extract(epoch FROM {at}) * 1000)::bigint) AS t (at)
            """,
            {"kind": self.queue.kind, "payload": PAYLOAD, "count": count},
        )

    def _wal(self) -> int:
        (position,) = self.raw.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()  # type: ignore[misc]
        return int(position)


def main() -> int:
    console = Console()
    name = connection.settings_dict["NAME"]
    connection.settings_dict.setdefault("TEST", {})["NAME"] = "delayed_queue_bench"
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    benchmarks = Benchmarks(console)
    try:
        good = show(console, benchmarks.run())
    finally:
        benchmarks.raw.close()
        connection.creation.destroy_test_db(name, verbosity=0)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
