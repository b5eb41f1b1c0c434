"""A process that stands still for longer than its leases: swapped out, or a machine that was suspended."""

from __future__ import annotations

import os
import signal
import time

from tests.chaos.tasks import asynchronous, atomic, plain, slow
from tests.chaos.trial import Trial
from tests.chaos.waiting import wait_until

LEASE = 2


def stopped_process(trial: Trial) -> None:
    """SIGSTOP past the lease, then SIGCONT: others have done its work, and what it acknowledges is refused."""
    rounds = trial.pick(1, 4)
    ledger = trial.ledger()
    refused = 0
    sleeper = trial.start_workers("--threads", 4, "--lease", LEASE)
    (stopped,) = sleeper.children()
    for _ in range(rounds):
        for task in (plain, asynchronous):
            trial.load.offer(task, 50, over=2.0)
        trial.load.offer(slow, 8, 0.7)
        trial.load.offer(atomic, 8, 0.7)
        held = "SELECT count(*) FROM chaos_ledger WHERE what = 'start' AND pid = %s AND attempt = 1"
        before = trial.server.value(held, stopped)
        wait_until(lambda: trial.server.value(held, stopped) > before, "it runs something", every=0.01)  # noqa: B023
        ledger.hit(stopped)
        os.kill(stopped, signal.SIGSTOP)
        other = trial.start_workers("--threads", 4, "--lease", LEASE)
        _wait_until_settled_or_locked(trial)
        os.kill(stopped, signal.SIGCONT)
        ledger.wait_until_settled()
        other.stop()
        lost = "SELECT count(*) FROM delayed_queue_delivery WHERE outcome = 'lost'"
        wait_until(lambda: trial.server.value(lost) > refused, "a refused acknowledgement")  # noqa: B023
        refused = trial.server.value(lost)
    assert sleeper.children() == [stopped], "it lives"
    trial.check_recovery()
    ledger.wait_until_settled()
    twice = ledger.check()
    trial.note(f"{refused} acknowledgements refused, {twice} plain ones twice")


def _wait_until_settled_or_locked(trial: Trial) -> None:
    """By the others. One that was stopped between its statement and its commit keeps a row locked: that one waits."""
    deadline = time.monotonic() + 30
    free = "SELECT count(*) FROM (SELECT FROM delayed_queue FOR UPDATE SKIP LOCKED) AS free"
    wait_until(lambda: not trial.server.value(free) or time.monotonic() > deadline, "the others take over")
