"""Rounds of raw and queue in turn, so that a noisy moment hits both; the figure is the median of the rounds' ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

ROUNDS = 3


@dataclass(frozen=True)
class Comparison:
    name: str
    raw: float
    queue: float
    ratio: float
    target: float
    unit: str = "/s"


def compare(
    name: str,
    count: int,
    target: float,
    raw: Callable[[], None],
    queue: Callable[[], None],
    before: Callable[[], None],
    turns: int = 1,
) -> Comparison:
    """``raw`` and ``queue`` each do ``count`` things a turn; ``before`` makes the table fit for either.

    Where a single thing waits for the disk, which has good and bad moments, they take many short turns in a round.
    """
    rates: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        seconds = [0.0, 0.0]
        for turn in range(turns):
            for side, work in enumerate((raw, queue)):
                if turn == 0:
                    before()
                seconds[side] += _seconds(work)
        rates.append((count * turns / seconds[0], count * turns / seconds[1]))
    return Comparison(
        name,
        statistics.median(raw_rate for raw_rate, _ in rates),
        statistics.median(queue_rate for _, queue_rate in rates),
        statistics.median(queue_rate / raw_rate for raw_rate, queue_rate in rates),
        target,
    )


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def show(console: Console, comparisons: list[Comparison]) -> bool:
    table = Table(title=f"delayed_queue against raw psycopg, medians of {ROUNDS}", title_justify="left")
    table.add_column("work")
    for heading in ("raw", "queue", "ratio", "at least"):
        table.add_column(heading, justify="right")
    for found in comparisons:
        good = found.ratio >= found.target
        table.add_row(
            found.name,
            f"{found.raw:,.0f}{found.unit}",
            f"{found.queue:,.0f}{found.unit}",
            f"[{'green' if good else 'red'}]{found.ratio:.2f}",
            f"{found.target:.2f}",
        )
    console.print(table)
    return all(found.ratio >= found.target for found in comparisons)
