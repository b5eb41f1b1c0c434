"""How fast idle workers get through a backlog that appears at one moment, against two processes that do it by hand.

50,000 messages wait for a paused kind. The clock runs from the moment the pause is lifted until the table holds none of
them; that of the raw processes, from telling them to until both found nothing more. A drain is over in less than a
second, and the same one takes up to five times as long a moment later on a machine whose cores are shared. Hence the
turns: raw, workers, raw, workers, each on a table made anew, and a round's rate is that of its median turn, on both
sides. With the sum of the turns one that was disturbed outweighed the others, and workers seemed to be faster than
raw, which they cannot be: a ratio above one still means that the machine was busy, and that the run is of no use.
What is compared with itself beside future messages takes turns as well, but fills the table with them once in a round.

Transactions are counted over the whole life of the workers, their start and end included, in a drain of its own: a
backend tells what it has committed when it ends, or seconds later.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from tests.benchmarks.measuring import ROUNDS, Comparison, Figure, compare, comparison, seconds_of
from tests.benchmarks.table import Table
from tests.benchmarks.tasks import async_, async_without_history, sync, sync_without_history
from tests.benchmarks.workers import RawWorkers, Workers

DRAINED = 50_000
LEASED_AT_ONCE = 500
TURNS = 5
FUTURE = 1_000_000
PROCESSES = 2
TASKS = (sync, sync_without_history, async_, async_without_history)


def run(table: Table) -> Iterator[Comparison | Figure]:
    for task in TASKS:
        yield from drains(table, task.kind)
        yield transactions(table, task.kind)
    yield drain_beside_a_million(table)


def drains(table: Table, kind: str) -> Iterator[Comparison | Figure]:
    cpu = 0.0

    def before() -> None:
        table.pause(kind)  # while it is filled, and while the raw processes have their turn
        table.fill(kind, DRAINED)

    with Workers(table, kind, PROCESSES) as workers:

        def by_workers() -> None:
            nonlocal cpu
            cpu -= workers.cpu_seconds()
            drain(table)
            cpu += workers.cpu_seconds()

        by_hand = RawWorkers(kind, LEASED_AT_ONCE)
        try:
            name = f"2 workers, {kind}"
            yield compare(name, DRAINED, 0.45, by_hand.drain, by_workers, before, TURNS, before_each_turn=True)
        finally:
            by_hand.close()
            table.resume()
    table.check_delivered(0 if kind.endswith("without history") else DRAINED)
    yield Figure(f"{kind}: processor time for a message", cpu / (ROUNDS * TURNS * DRAINED) * 1e6, " us")


def transactions(table: Table, kind: str) -> Figure:
    table.pause(kind)
    table.fill(kind, DRAINED)
    before = table.transactions()
    with Workers(table, kind, PROCESSES):
        drain(table)
    return Figure(f"{kind}: transactions for a message", (table.transactions() - before) / DRAINED, "", 0.05)


def drain_beside_a_million(table: Table) -> Comparison:
    """Not against raw: against itself on an otherwise empty table."""
    kind = sync.kind
    rates = []
    with Workers(table, kind, PROCESSES):
        for _ in range(ROUNDS):
            medians = []
            for future in (0, FUTURE):
                table.empty()
                table.insert(kind, future, "now() + interval '1 day'", "future-")
                seconds = []
                for _ in range(TURNS):
                    table.pause(kind)
                    table.forget_deliveries()
                    table.insert(kind, DRAINED, "now() - interval '1 minute'", "due-")
                    table.settle()
                    seconds.append(seconds_of(lambda: drain(table)))
                medians.append(statistics.median(seconds))
            rates.append((DRAINED / medians[0], DRAINED / medians[1]))
    return comparison("2 workers, beside 1,000,000 future", rates, 0.90)


def drain(table: Table) -> None:
    table.resume()
    table.wait_until_drained(DRAINED)
