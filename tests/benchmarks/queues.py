"""What the queue's statements cost, called from one process, over the same ones by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from delayed_queue import BytesSerializer, DelayedQueue, ScheduledMessage
from tests.benchmarks import raw
from tests.benchmarks.measuring import Comparison, Figure, compare
from tests.benchmarks.table import PAYLOAD, Table

OFFERS = 200
BATCH = 100_000
DRAINED = 20_000
LEASED_AT_ONCE = 500
FUTURE = 1_000_000


def run(table: Table) -> Iterator[Comparison | Figure]:
    benchmarks = QueueBenchmarks(table)
    yield benchmarks.single_offers()
    yield benchmarks.batches_if_absent()
    yield benchmarks.batches_or_update()
    yield benchmarks.drains()
    yield benchmarks.drain_beside_a_million()
    yield benchmarks.wal_of_a_life()


class QueueBenchmarks:
    def __init__(self, table: Table) -> None:
        self.table = table
        self.raw = table.connection
        self.queue: DelayedQueue[bytes] = DelayedQueue("bench", BytesSerializer(), acquire_timeout=60)

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

        return compare("single offer, autocommit", OFFERS, 0.80, by_hand, by_queue, self.table.empty, turns=40)

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

        return compare(name, BATCH, 0.70, by_hand, by_queue, self.table.empty)

    def drains(self) -> Comparison:
        def by_hand() -> None:
            while raw.lease_and_ack(self.raw, self.queue.kind, LEASED_AT_ONCE):
                pass

        def before() -> None:
            self.table.fill(self.queue.kind, DRAINED)

        return compare("lease + ack by 500", DRAINED, 0.85, by_hand, self.drain, before)

    def drain_beside_a_million(self) -> Comparison:
        """Not against raw: against itself on an otherwise empty table."""
        rounds = iter(["empty", "full"] * 3)

        def before() -> None:
            self.table.empty()
            if next(rounds) == "full":
                self.table.insert(self.queue.kind, FUTURE, "now() + interval '1 day'", "future-")
            self.table.insert(self.queue.kind, DRAINED, "now() - interval '1 minute'", "due-")
            self.table.settle()

        return compare("lease + ack beside 1,000,000 future", DRAINED, 0.90, self.drain, self.drain, before)

    def wal_of_a_life(self) -> Figure:
        self.table.empty()
        at = datetime.now(UTC) - timedelta(seconds=1)
        started = self.table.wal()
        for start in range(0, DRAINED, LEASED_AT_ONCE):
            self.queue.offer_batch([ScheduledMessage(f"key-{start + i}", PAYLOAD, at) for i in range(LEASED_AT_ONCE)])
        self.drain()
        return Figure("WAL of a message over its life", (self.table.wal() - started) / DRAINED, " B", 1350)

    def drain(self) -> None:
        while batch := self.queue.try_poll_many(LEASED_AT_ONCE):
            batch.acknowledge()
