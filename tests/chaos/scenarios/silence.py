"""A line that goes silent: a proxy that hangs, a firewall that forgot the connection. Nothing says that it is lost."""

from __future__ import annotations

import time

from tests.chaos.proxy import Proxy
from tests.chaos.tasks import timed, timed_atomic
from tests.chaos.trial import Trial


def silent_line(trial: Trial) -> None:
    """A TCP proxy between workers and database goes silent, with no end and no reset; new connections work later."""
    proxy = Proxy(trial.server)
    trial.at_end.callback(proxy.close)
    lasting = trial.pick(3.0, 20.0)
    workers = trial.start_workers(
        "--threads", 4, processes=2, env={"CHAOS_HOST": "127.0.0.1", "CHAOS_PORT": proxy.port}
    )
    for task in (timed, timed_atomic):
        trial.load.offer(task, trial.pick(300, 3000), over=2 * lasting)
    time.sleep(lasting / 2)
    proxy.go_silent()
    time.sleep(lasting)
    proxy.heal()
    trial.check_recovery()
    # An answer that never came is a time-out for the handler, although its effect may have been stored.
    ledger = trial.ledger(failures=["retried"])
    ledger.wait_until_settled()
    twice = ledger.check()
    trial.note(f"silent for {lasting:g} s, {len(trial.load)} messages, {twice} twice")
    assert workers.children(), "and the work goes on"
