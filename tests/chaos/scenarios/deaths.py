"""Processes that are killed: from outside, and by what they handle."""

from __future__ import annotations

import os
import random
import signal
import time

from tests.chaos.tasks import asynchronous, atomic, deadly, plain, slow
from tests.chaos.trial import Trial
from tests.chaos.waiting import wait_until
from tests.chaos.workers import is_alive

LEASE = 60  # what is back sooner was given back by the supervisor


def killed_children(trial: Trial) -> None:
    """SIGKILL of worker processes, again and again: what they held comes back at once, not when its lease is over."""
    kills, pause = trial.pick((3, 0.8), (12, 2.0))
    workers = trial.start_workers("--threads", 4, "--lease", LEASE, processes=2)
    over = kills * pause
    for task in (plain, atomic, asynchronous):
        trial.load.offer(task, trial.pick(200, 3000), over=over)
    trial.load.offer(slow, int(8 * over), 0.3, over=over)
    ledger = trial.ledger()
    for _ in range(kills):
        time.sleep(pause)
        wait_until(workers.children, "a process to kill")
        victim = random.choice(workers.children())
        ledger.hit(victim)
        os.kill(victim, signal.SIGKILL)
    trial.check_recovery()
    ledger.wait_until_settled()
    twice = ledger.check()
    latest = _latest_return(trial, [blow.pid for blow in ledger.blows])
    trial.note(f"{kills} kills, {len(trial.load)} messages, {twice} twice")
    trial.note(f"what was running was started anew after {latest:.1f} s at the latest")
    assert latest < LEASE / 2


def _latest_return(trial: Trial, killed: list[int]) -> float:
    """Seconds from the kill of a process, that is from the line of history about it, to the next start elsewhere."""
    statement = """
        SELECT coalesce(max(extract(epoch FROM again.at) * 1000 - lost.finished_at), 0)::float8 / 1000
        FROM chaos_ledger started
        JOIN delayed_queue_delivery lost USING (kind, key, attempt)
        CROSS JOIN LATERAL (
            SELECT min(at) AS at FROM chaos_ledger later
            WHERE later.kind = started.kind AND later.key = started.key AND later.id > started.id
                AND later.what = 'start'
        ) AS again
        WHERE started.what = 'start' AND started.pid = ANY (%s) AND lost.outcome = 'lost'
    """
    return float(trial.server.value(statement, killed))


def killed_supervisor(trial: Trial) -> None:
    """SIGKILL of the supervisor: its processes notice, finish what they run, give back the rest and leave."""
    rounds = trial.pick(1, 4)
    for task in (plain, atomic, asynchronous):
        trial.load.offer(task, trial.pick(200, 3000), over=4.0 * rounds)
    trial.load.offer(slow, 16 * rounds, 1.0, over=4.0 * rounds)
    longest = 0.0
    for _ in range(rounds):
        workers = trial.start_workers("--threads", 4, processes=2)
        children = workers.children()
        _wait_until_busy(trial)
        workers.signal(signal.SIGKILL)
        workers.wait()
        longest = max(
            longest,
            wait_until(lambda pids=children: not any(map(is_alive, pids)), "the orphans leave"),  # type: ignore[misc]
        )
    trial.start_workers("--threads", 4, processes=2)
    trial.check_recovery()
    ledger = trial.ledger()
    ledger.wait_until_settled()
    assert ledger.check() == 0
    assert trial.server.value("SELECT max(attempt) FROM chaos_ledger") == 1, "none was cut short"
    trial.note(f"orphans left within {longest:.1f} s, {len(trial.load)} messages, none twice, no attempt spent")


def _wait_until_busy(trial: Trial) -> None:
    running = """
        SELECT count(*) FROM delayed_queue q JOIN chaos_ledger started ON started.lock_uuid = q."lockUuid"
            AND started.key = q."pKey" WHERE started.what = 'start'
    """
    wait_until(lambda: trial.server.value(running), "something runs", every=0.01)


def deadly_message(trial: Trial) -> None:
    """A message that kills its process each time is dead after its maximum, and says why; the others do not suffer."""
    workers = trial.start_workers("--threads", 4, "--lease", LEASE)
    count = trial.pick(1, 3)
    over = trial.pick(3.0, 20.0)
    fatal = trial.load.offer(deadly, count, over=over / 2)
    for task in (plain, atomic, asynchronous):
        trial.load.offer(task, trial.pick(200, 2000), over=over)
    trial.load.offer(slow, int(4 * over), 0.3, over=over)
    ledger = trial.ledger()
    ledger.wait_until_settled()
    trial.check_recovery()
    ledger.wait_until_settled()
    ledger.hit_by("deadly")
    twice = ledger.check(dead=fatal)

    dead = trial.server.ask("SELECT key, reason, attempts, error FROM delayed_queue_dead ORDER BY key")
    for key, reason, attempts, error in dead:
        assert (reason, attempts) == ("exhausted", 3), (key, reason, attempts)
        assert "process died (signal 9)" in error, error
    starts = trial.server.ask("SELECT key, count(*) FROM chaos_ledger WHERE kind = 'deadly' GROUP BY key ORDER BY key")
    assert starts == [(key, 3) for key in fatal]
    assert workers.children(), "and the work goes on"
    most = trial.server.value("SELECT max(attempt) FROM delayed_queue_delivery WHERE kind <> 'deadly'")
    trial.note(f"{count} dead after 3 attempts each; {twice} others twice, {most} attempts at the most")
