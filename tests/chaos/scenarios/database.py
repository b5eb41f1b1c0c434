"""The database: backends that are terminated, a server that crashes, one that has no room for another connection."""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack

import psycopg

from tests.chaos.ledger import Ledger
from tests.chaos.tasks import asynchronous, atomic, plain, slow
from tests.chaos.trial import Trial
from tests.chaos.workers import NAME, Workers

COUNT = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{NAME}'"
TERMINATE = COUNT.replace("count(*)", "count(pg_terminate_backend(pid))")
MOST = 25  # connections


def terminated_backends(trial: Trial) -> None:
    """pg_terminate_backend of all connections of the workers, again and again in a stream."""
    over = trial.pick(4.0, 20.0)
    workers, ledger = _stream(trial, over)
    before = workers.children()
    ended, terminated = time.monotonic() + over, 0
    with trial.server.connect() as connection:
        while time.monotonic() < ended:
            (count,) = connection.execute(TERMINATE).fetchone() or (0,)
            terminated += count
            time.sleep(0.4)
    _finish(trial, ledger, f"{terminated} backends terminated")
    assert workers.children() == before, "no process ended for it"


def crashed_server(trial: Trial) -> None:
    """PostgreSQL restarted with immediate shutdown, twice, under load."""
    over = trial.pick(4.0, 16.0)
    workers, ledger = _stream(trial, over)
    before = workers.children()
    for _ in range(2):
        time.sleep(over / 3)
        trial.server.crash_and_restart()
    _finish(trial, ledger, "2 crashes")
    assert workers.children() == before, "no process ended for it"


def exhausted_connections(trial: Trial) -> None:
    """Others take every connection that the server has, and the workers have lost theirs."""
    trial.server.configure(max_connections=MOST)
    trial.at_end.callback(trial.server.configure, max_connections=None)
    over = trial.pick(4.0, 16.0)
    workers, ledger = _stream(trial, over)
    before = workers.children()
    time.sleep(over / 4)
    with trial.server.connect() as observer, ExitStack() as others:
        ended = time.monotonic() + over / 2
        crowd = 0
        while time.monotonic() < ended:
            crowd += _take_all(trial, others)
            observer.execute(TERMINATE)
            time.sleep(0.02)
        (left,) = observer.execute(COUNT).fetchone() or (0,)
    _finish(trial, ledger, f"{crowd} of {MOST} connections held by others, {left} by workers")
    assert workers.children() == before, "no process ended for it"


def _take_all(trial: Trial, others: ExitStack) -> int:
    for count in itertools.count():
        try:
            connection = trial.server.connect("chaos-crowd")
        except psycopg.OperationalError:
            return count
        others.callback(connection.close)
    raise AssertionError("not reached")


def _stream(trial: Trial, over: float) -> tuple[Workers, Ledger]:
    workers = trial.start_workers("--threads", 4, processes=2)
    for task in (plain, atomic, asynchronous):
        trial.load.offer(task, int(50 * over), over=over)
    trial.load.offer(slow, int(4 * over), 0.2, over=over)
    # A statement whose answer was lost makes the handler fail, although it was done; an acknowledgement that was done,
    # and whose answer was lost, is no failure.
    return workers, trial.ledger(failures=["retried"])


def _finish(trial: Trial, ledger: Ledger, what: str) -> None:
    trial.check_recovery()
    ledger.wait_until_settled()
    twice = ledger.check()
    retried = "SELECT count(*) FROM delayed_queue_delivery WHERE outcome = 'retried'"
    trial.note(f"{what}, {len(trial.load)} messages, {trial.server.value(retried)} retried, {twice} twice")
