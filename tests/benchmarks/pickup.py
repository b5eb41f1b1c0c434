"""How soon an idle worker begins with what is offered for now.

From the return of ``offer()``, which is after the commit, to the first line of the handler; and
from the call of ``offer()``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from tests.benchmarks.measuring import Figure, percentiles
from tests.benchmarks.table import Table
from tests.benchmarks.tasks import timed
from tests.benchmarks.workers import Workers

OFFERS = 300
SHORTEST_PAUSE, LONGEST_PAUSE = 0.010, 0.030


def run(table: Table) -> Iterator[Figure]:
    table.empty()
    chance = random.Random(1)
    called, returned = [], []
    with Workers(table, timed.kind, processes=1) as workers:
        for number in range(OFFERS):
            time.sleep(chance.uniform(SHORTEST_PAUSE, LONGEST_PAUSE))
            called.append(time.time_ns())
            timed.offer(number)
            returned.append(time.time_ns())
        table.check_delivered(OFFERS)
        began = workers.times()
    yield from percentiles("pickup after offer()", _milliseconds(began, returned), {50: 2.0, 95: 4.0})
    yield from percentiles("pickup from its call", _milliseconds(began, called), {50: None, 95: None})


def _milliseconds(began: dict[int, int], since: list[int]) -> list[float]:
    return [(began[number] - moment) / 1e6 for number, moment in enumerate(since)]
