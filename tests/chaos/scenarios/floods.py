"""A kind with a multitude of due messages, beside one with a single one."""

from __future__ import annotations

import time
from statistics import median

from tests.chaos.tasks import single
from tests.chaos.trial import Trial
from tests.chaos.waiting import wait_until

PROMISED = 0.1
PROBES = 10

FLOOD = """
    INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
    SELECT 'flood-' || n, 'flood', '{"args":[],"kwargs":{}}', now.ms - 1000, now.ms - 1000, now.ms
    FROM generate_series(1, %s) AS n, (SELECT floor(extract(epoch FROM now()) * 1000)::bigint AS ms) AS now
"""
LEFT = """SELECT count(*) FROM (SELECT FROM delayed_queue WHERE "pKind" = 'flood' LIMIT 1) AS any_left"""
LATENESS = """
    SELECT extract(epoch FROM at)::float8 - due_at / 1000.0::float8
    FROM chaos_ledger JOIN delayed_queue_delivery USING (kind, key) WHERE kind = 'single' ORDER BY at
"""


def flood_beside_one(trial: Trial) -> None:
    """Many due messages of one kind do not delay the one of another."""
    count = trial.pick(50_000, 1_000_000)
    trial.server.ask(FLOOD, count)
    trial.server.ask("ANALYZE delayed_queue")
    trial.start_workers("--threads", 4)
    wait_until(lambda: trial.server.value("SELECT sum(handled) FROM delayed_queue_worker") is not None, "they work")
    for _ in range(trial.pick(1, PROBES)):
        time.sleep(0.3)
        (key,) = trial.load.offer(single, 1)
        handled = "SELECT count(*) FROM chaos_ledger WHERE key = %s"
        wait_until(lambda: trial.server.value(handled, key), "the one is delivered", every=0.01)  # noqa: B023
        assert trial.server.value(LEFT), "the one waited for the end of the flood"
    seconds = [late for (late,) in trial.server.ask(LATENESS)]
    trial.note(f"{count:,} due; the one of another kind delivered after {seconds[0] * 1000:.0f} ms")
    if not trial.is_short:
        trial.note(f"{PROBES} times: median {median(seconds) * 1000:.0f}, worst {max(seconds) * 1000:.0f} ms")
        assert median(seconds) < PROMISED
