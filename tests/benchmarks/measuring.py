"""Rounds of raw and queue in turn, so that a noisy moment hits both; the figure is the median of the rounds' ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
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
    ratios: tuple[float, ...] = ()
    unit: str = "/s"

    @property
    def is_good(self) -> bool:
        return self.ratio >= self.target

    def __str__(self) -> str:
        return f"{self.name}: {self.ratio:.2f} (rounds: {', '.join(f'{ratio:.2f}' for ratio in self.ratios)})"


@dataclass(frozen=True)
class Figure:
    """Something that should be small. Without a target it is there to be looked at."""

    name: str
    value: float
    unit: str
    most: float | None = None

    @property
    def is_good(self) -> bool:
        return self.most is None or self.value <= self.most

    def __str__(self) -> str:
        return f"{self.name}: {_number(self.value)}{self.unit}"


def compare(
    name: str,
    count: int,
    target: float,
    raw: Callable[[], None],
    queue: Callable[[], None],
    before: Callable[[], None],
    turns: int = 1,
    before_each_turn: bool = False,
) -> Comparison:
    """``raw`` and ``queue`` each do ``count`` things a turn; ``before`` makes the table fit for either.

    Where a single thing waits for the disk, which has good and bad moments, they take many short turns in a round, and
    its rate is that of all of them. Where each turn has a table of its own (``before_each_turn``), it is that of the
    median turn: see drain.py.
    """
    rates: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        seconds: tuple[list[float], list[float]] = ([], [])
        for turn in range(turns):
            for side, work in enumerate((raw, queue)):
                if turn == 0 or before_each_turn:
                    before()
                seconds[side].append(seconds_of(work))
        of_a_turn = statistics.median if before_each_turn else statistics.fmean
        rates.append((count / of_a_turn(seconds[0]), count / of_a_turn(seconds[1])))
    return comparison(name, rates, target)


def comparison(name: str, rates: Sequence[tuple[float, float]], target: float) -> Comparison:
    """Of the rounds' rates, those of raw first."""
    ratios = tuple(queue_rate / raw_rate for raw_rate, queue_rate in rates)
    return Comparison(
        name,
        statistics.median(raw_rate for raw_rate, _ in rates),
        statistics.median(queue_rate for _, queue_rate in rates),
        statistics.median(ratios),
        target,
        ratios,
    )


def seconds_of(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def percentiles(name: str, milliseconds: Sequence[float], most: dict[int, float | None]) -> list[Figure]:
    """p50 and so on, each with the most that it may be; and the longest."""
    cuts = statistics.quantiles(milliseconds, n=100, method="inclusive")
    found = [Figure(f"{name}, p{percent}", cuts[percent - 1], " ms", limit) for percent, limit in most.items()]
    return [*found, Figure(f"{name}, longest", max(milliseconds), " ms")]


def show(console: Console, found: Sequence[Comparison | Figure]) -> bool:
    """False if one of them is worse than its target."""
    comparisons = [one for one in found if isinstance(one, Comparison)]
    figures = [one for one in found if isinstance(one, Figure)]
    if comparisons:
        console.print(_comparisons(comparisons))
    if figures:
        console.print(_figures(figures))
    return all(one.is_good for one in found)


def _comparisons(comparisons: Sequence[Comparison]) -> Table:
    title = f"delayed_queue against raw psycopg, or against itself, medians of {ROUNDS} rounds"
    table = Table(title=title, title_justify="left")
    table.add_column("work")
    for heading in ("raw", "queue", "ratio", "at least"):
        table.add_column(heading, justify="right")
    for found in comparisons:
        table.add_row(
            found.name,
            f"{found.raw:,.0f}{found.unit}",
            f"{found.queue:,.0f}{found.unit}",
            f"[{_colour(found)}]{found.ratio:.2f}",
            f"{found.target:.2f}",
        )
    return table


def _figures(figures: Sequence[Figure]) -> Table:
    table = Table(title="figures", title_justify="left")
    table.add_column("of")
    for heading in ("is", "at most"):
        table.add_column(heading, justify="right")
    for found in figures:
        most = "" if found.most is None else f"{_number(found.most)}{found.unit}"
        table.add_row(found.name, f"[{_colour(found)}]{_number(found.value)}{found.unit}", most)
    return table


def _colour(found: Comparison | Figure) -> str:
    return "green" if found.is_good else "red"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
