"""A long transaction pins the xmin horizon: nothing that was delivered meanwhile can be removed from the table."""

from __future__ import annotations

import time

from tests.chaos.tasks import plain
from tests.chaos.trial import Trial
from tests.chaos.waiting import wait_until

WAVES = 3
TRICKLE = 100
PERIOD = 0.5

BLOCKS = """
    SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read
    FROM pg_statio_user_tables WHERE relname = 'delayed_queue'
"""


def pinned_horizon(trial: Trial) -> None:
    """Under load, what a message costs does not grow with what was delivered since the transaction began."""
    count, lasting = trial.pick((3_000, 0.0), (30_000, 60.0))
    trial.start_workers("--threads", 4, "--poll-period", PERIOD, processes=2)
    with trial.server.connect() as pinning:
        pinning.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pinning.execute("SELECT count(*) FROM delayed_queue")
        began = time.monotonic()
        _wave(trial, count)  # not measured: part of its figures is reported only during the next one
        waves = []
        for number in range(1, WAVES + 1):
            waves.append(_wave(trial, count))
            trial.server.ask("ANALYZE delayed_queue")  # as autovacuum would, each minute: nothing in it is alive
            time.sleep(max(0.0, began + lasting * number / WAVES - time.monotonic()))
        trial.check_recovery()
        if not trial.is_short:
            _measure_a_trickle(trial)
        ledger = trial.ledger()
        ledger.wait_until_settled()
        pinning.execute("COMMIT")
    assert ledger.check() == 0
    costs, rates = zip(*waves, strict=True)
    trial.note(f"{WAVES} waves of {count:,}, blocks for each message: {', '.join(f'{cost:.0f}' for cost in costs)}")
    trial.note(f"messages in a second: {', '.join(f'{rate:,.0f}' for rate in rates)}")
    assert costs[-1] < 2 * costs[0], "a message costs more and more"
    assert trial.is_short or rates[-1] > rates[0] / 2, "they are slower and slower"


def _wave(trial: Trial, count: int) -> tuple[float, float]:
    """So many due at once: the blocks of the queue that were looked at for each, and how many a second were handled."""
    before = trial.server.value(BLOCKS)
    trial.load.offer(plain, count)
    # Not by counting the queue's rows: that reads the whole bloated table, and would be in the figure.
    done, all_of_them = "SELECT count(*) FROM delayed_queue_delivery", len(trial.load)
    seconds = wait_until(lambda: trial.server.value(done) >= all_of_them, "the wave is over")
    time.sleep(3 * PERIOD)  # a backend reports its figures with its next statement, once in a second
    return (trial.server.value(BLOCKS) - before) / count, count / seconds


def _measure_a_trickle(trial: Trial) -> None:
    """One at a time: each poll comes back short, and so looks from the start (docs/design/polling.md). No promise."""
    before = trial.server.value(BLOCKS)
    for _ in range(TRICKLE):
        trial.load.offer(plain, 1)
        time.sleep(0.02)
    time.sleep(3 * PERIOD)
    trial.note(f"one at a time after that: {(trial.server.value(BLOCKS) - before) / TRICKLE:,.0f} blocks for each")
