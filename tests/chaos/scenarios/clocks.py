"""Hosts whose clocks are wrong: the database's clock is the only one that counts."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.chaos.server import PROJECT
from tests.chaos.shifted import shifted_environment
from tests.chaos.tasks import asynchronous, atomic, plain
from tests.chaos.trial import Trial

MINUTES = 10
EARLY = 0.05  # times are whole milliseconds, and the statement that writes the ledger is not the one that leased

OFFER = """
import sys, time, django
django.setup()
from tests.chaos.tasks import plain
plain.using(key=sys.argv[1], delay=float(sys.argv[2])).offer()
print(time.time())
"""


def shifted_clocks(trial: Trial) -> None:
    """Workers and offering hosts ten minutes ahead and behind: nothing is early, late, or delivered twice."""
    shifts = {sign: shifted_environment(trial.server.environment(), sign * MINUTES * 60) for sign in (1, -1)}
    for environment in shifts.values():
        trial.start_workers("--threads", 4, "--lease", 5, env=environment)
    over = trial.pick(3.0, 15.0)
    for task in (plain, atomic, asynchronous):
        trial.load.offer(task, trial.pick(200, 2000), over=over)
    delay = 2.0
    for sign, environment in shifts.items():
        key = f"from-a-host-{'ahead' if sign > 0 else 'behind'}"
        offer = [sys.executable, "-c", OFFER, key, str(delay)]
        said = subprocess.run(offer, cwd=PROJECT, env=environment, check=True, capture_output=True, text=True).stdout
        assert abs(float(said) - time.time() - sign * MINUTES * 60) < 60, "its clock is off"
        trial.load.offered[plain.kind].add(key)
    trial.check_recovery()
    ledger = trial.ledger()
    ledger.wait_until_settled()
    assert ledger.check() == 0
    off = trial.server.ask("""
        SELECT DISTINCT round((host_clock - extract(epoch FROM at)) / 60) FROM chaos_ledger ORDER BY 1
    """)
    assert off == [(-MINUTES,), (MINUTES,)], f"both hosts have worked, with clocks off by {off}"
    earliest, latest = trial.server.ask("""
        SELECT min(seconds), max(seconds) FROM (
            SELECT extract(epoch FROM at)::float8 - due_at / 1000.0::float8 AS seconds
            FROM chaos_ledger JOIN delayed_queue_delivery USING (kind, key)
        ) AS late
    """)[0]
    trial.note(f"{len(trial.load)} messages by hosts 10 minutes ahead and behind, {latest:.1f} s late at the most")
    assert earliest > -EARLY, f"one was delivered {-earliest:.3f} s early"
    assert latest < 60, f"one was delivered {latest:.0f} s late"
