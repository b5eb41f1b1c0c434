"""SIGTERM, once and twice, while handlers run and more is leased."""

from __future__ import annotations

import signal
import time

from tests.chaos.tasks import slow
from tests.chaos.trial import Trial
from tests.chaos.waiting import wait_until
from tests.chaos.workers import Workers

QUICK, MANY = 0.005, 400  # so many so quick ones make a worker lease ahead
THREADS = 2


def polite_stop(trial: Trial) -> None:
    """SIGTERM: what runs finishes, what was leased ahead is given back, and no attempt is spent."""
    workers, leased = _busy_workers(trial, seconds=1.5)
    workers.stop()
    finished = trial.server.value("SELECT count(*) FROM chaos_ledger WHERE what = 'start'")
    assert trial.server.value("SELECT count(*) FROM chaos_ledger WHERE what = 'effect'") == finished
    left = _check_nothing_is_leased_or_spent(trial)
    trial.note(f"{leased} leased when told to stop, {THREADS} of them running; {left} left with no attempt spent")
    _finish(trial)


def impatient_stop(trial: Trial) -> None:
    """SIGTERM twice: it ends at once, and what ran is given back as well, with no attempt spent."""
    workers, leased = _busy_workers(trial, seconds=30.0)
    workers.signal(signal.SIGTERM)
    time.sleep(0.3)
    began = time.monotonic()
    workers.signal(signal.SIGTERM)
    assert workers.wait() == 0
    seconds = time.monotonic() - began
    left = _check_nothing_is_leased_or_spent(trial)
    started = trial.server.value("SELECT count(*) FROM chaos_ledger WHERE what = 'start'")
    assert left == MANY + 60 - (started - THREADS)
    trial.note(f"ended {seconds:.1f} s after the second signal, {leased} leased; {left} left with no attempt spent")
    assert seconds < 20, "it did not wait for its handlers"


def overdue_stop(trial: Trial) -> None:
    """SIGTERM to handlers that outlive the shutdown timeout: they are given back, and no attempt is spent."""
    workers, leased = _busy_workers(trial, 30.0, "--shutdown-timeout", 1)
    began = time.monotonic()
    workers.stop()
    seconds = time.monotonic() - began
    left = _check_nothing_is_leased_or_spent(trial)
    trial.note(f"ended after {seconds:.1f} s, {leased} leased; {left} left with no attempt spent")
    assert seconds < 25, "it did not wait for its handlers"


def _busy_workers(trial: Trial, seconds: float, *arguments: object) -> tuple[Workers, int]:
    """A command that runs as many slow ones as it can, and how many it has leased."""
    workers = trial.start_workers("--threads", THREADS, "--batch", 100, "--kinds", "slow,single", *arguments)
    trial.load.offer(slow, MANY, QUICK)
    long_ones = trial.load.offer(slow, 60, seconds)
    running = "SELECT count(*) FROM chaos_ledger WHERE what = 'start' AND key = ANY (%s)"
    wait_until(lambda: trial.server.value(running, long_ones) >= THREADS, "the long ones run", every=0.01)
    return workers, int(trial.server.value('SELECT count(*) FROM delayed_queue WHERE "lockUuid" IS NOT NULL'))


def _check_nothing_is_leased_or_spent(trial: Trial) -> int:
    left = trial.server.ask('SELECT "pKey", attempts, "lockUuid" FROM delayed_queue')
    assert left
    for key, attempts, lock_uuid in left:
        assert lock_uuid is None, f"{key} is still leased"
        assert attempts == 0, f"{key} has spent {attempts} attempts"
    assert trial.server.value("SELECT count(*) FROM delayed_queue_dead") == 0
    return len(left)


def _finish(trial: Trial) -> None:
    """The next command does what is left, each once."""
    trial.start_workers("--threads", 30)
    trial.check_recovery()
    ledger = trial.ledger()
    ledger.wait_until_settled()
    assert ledger.check() == 0
