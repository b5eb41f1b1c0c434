"""How late an otherwise idle worker is: from a message's due time to the first line of its handler.

Both times are of one host, so that the database's clock is the handler's. Times of messages are whole milliseconds.
Then the queue is left alone, and what the worker asks of the database and of its processor meanwhile is counted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from delayed_queue import TaskCall
from delayed_queue.clocks import from_ms
from tests.benchmarks.measuring import Figure, percentiles
from tests.benchmarks.table import Table
from tests.benchmarks.tasks import timed
from tests.benchmarks.workers import Workers

MESSAGES = 500
SECONDS = 20.0
IDLE_SECONDS = 20.0
# After so long an idle backend has told what it did (PGSTAT_IDLE_INTERVAL is 10 s): none of that falls into the count.
SILENCE_OF_BACKENDS = 11.0


def run(table: Table) -> Iterator[Figure]:
    table.empty()
    with Workers(table, timed.kind, processes=1) as workers:
        yield from lateness(workers)
        table.check_delivered(MESSAGES)
        yield from idleness(table, workers)


def lateness(workers: Workers) -> Iterator[Figure]:
    chance = random.Random(1)  # the same times in each run
    first = time.time_ns() // 1_000_000 + 1000
    due = [first + round(chance.uniform(0, SECONDS * 1000)) for _ in range(MESSAGES)]
    timed.offer_many([TaskCall([number], at=from_ms(at)) for number, at in enumerate(due)])
    time.sleep(SECONDS + 2)
    began = workers.times()
    late = [began[number] / 1e6 - at for number, at in enumerate(due)]
    yield from percentiles("lateness", late, {50: 1.5, 95: 3.0, 99: 6.0})


def idleness(table: Table, workers: Workers) -> Iterator[Figure]:
    time.sleep(SILENCE_OF_BACKENDS)
    transactions, cpu = table.transactions(), workers.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    own = 2  # those of the counting
    done = table.transactions() - transactions - own
    yield Figure("statements of an idle worker", done / IDLE_SECONDS, "/s", 1.0)
    yield Figure("time of its processor", (workers.cpu_seconds() - cpu) / IDLE_SECONDS * 100, " %")
