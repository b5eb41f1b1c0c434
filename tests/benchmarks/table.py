"""The table under measurement, from outside: filled and emptied by hand, on a connection that is not the queue's."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from django.db import connection

LEFT = "SELECT id FROM delayed_queue WHERE id BETWEEN %s AND %s ORDER BY id LIMIT 1"
PAYLOAD = b'{"args": [1], "kwargs": {}}'.ljust(40)


def connection_parameters() -> dict[str, Any]:
    parameters = connection.get_connection_params()
    return {name: parameters[name] for name in ("host", "port", "user", "password", "dbname") if name in parameters}


class Table:
    def __init__(self) -> None:
        self.connection: psycopg.Connection[Any] = psycopg.connect(**connection_parameters(), autocommit=True)

    def close(self) -> None:
        self.connection.close()

    def empty(self) -> None:
        self.connection.execute("TRUNCATE delayed_queue, delayed_queue_delivery")
        self.settle()

    def fill(self, kind: str, count: int) -> None:
        """With messages that are due, and nothing else."""
        self.empty()
        self.insert(kind, count, "now() - interval '1 minute'", "due-")
        self.settle()

    def insert(self, kind: str, count: int, at: str, prefix: str) -> None:
        self.connection.execute(
            f"""
            INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
            SELECT '{prefix}' || i, %(kind)s, %(payload)s, at + i, at + i, 0
            FROM generate_series(1, %(count)s) AS i, (SELECT (extract(epoch FROM {at}) * 1000)::bigint) AS t (at)
            """,
            {"kind": kind, "payload": PAYLOAD, "count": count},
        )

    def settle(self) -> None:
        """Neither autovacuum nor a checkpoint shall fall into one side's time."""
        self.connection.execute("VACUUM ANALYZE delayed_queue")
        self.connection.execute("CHECKPOINT")

    def forget_deliveries(self) -> None:
        self.connection.execute("TRUNCATE delayed_queue_delivery")

    def pause(self, kind: str) -> None:
        self.connection.execute(
            "INSERT INTO delayed_queue_control (scope, name, paused) VALUES ('kind', %s, true) ON CONFLICT DO NOTHING",
            [kind],
        )

    def resume(self) -> None:
        """The row goes, rather than be set to false: the workers are measured in a queue without controls."""
        self.connection.execute("DELETE FROM delayed_queue_control")

    def wait_until_drained(self, count: int, timeout: float = 120.0) -> None:
        """Of what was inserted last, the very last is asked for first: a look at all of it takes time from the drain.

        All in one transaction, so that it is one in the count of them.
        """
        deadline = time.monotonic() + timeout
        with self.connection.transaction():
            (last,) = self._one("SELECT last_value FROM delayed_queue_id_seq")
            for first in (last, last - count + 1):
                while self._one(LEFT, [first, last]):
                    if time.monotonic() > deadline:
                        raise TimeoutError("The messages were not drained; the workers' log is above")
                    time.sleep(0.005)

    def deliveries(self) -> tuple[int, int]:
        """Lines of history, and how many messages they are of."""
        return self._one("SELECT count(*), count(DISTINCT key) FROM delayed_queue_delivery WHERE outcome = 'done'")

    def check_delivered(self, count: int) -> None:
        """Each exactly once, and settled: figures of work done twice, or of workers that fail, would be of no use."""
        deadline = time.monotonic() + 10
        while (left := self._one("SELECT count(*) FROM delayed_queue")[0]) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left or self.deliveries() != (count, count):
            raise RuntimeError(f"Of {count} messages {left} are left; (deliveries, messages): {self.deliveries()}")

    def workers(self) -> int:
        return int(self._one("SELECT count(*) FROM delayed_queue_worker")[0])

    def wal(self) -> int:
        """Bytes written so far."""
        return int(self._one("SELECT pg_current_wal_insert_lsn() - '0/0'")[0])

    def transactions(self) -> int:
        """Committed so far. Backends tell theirs late, but at the latest when they end: stop the workers before."""
        self._one("SELECT pg_stat_force_next_flush()")
        return int(self._one("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")[0])

    def _one(self, statement: str, parameters: Any = ()) -> Any:
        return self.connection.execute(statement, parameters).fetchone()
