"""What a careful person would write by hand with psycopg, for one purpose only: the yardstick."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any

import psycopg

INSERT = """
    INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
    VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT ("pKey", "pKind") DO NOTHING
"""

INSERT_MANY = """
    INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
    SELECT key, %s, payload, at, at, %s FROM unnest(%s::text[], %s::bytea[], %s::bigint[]) AS m (key, payload, at)
    ON CONFLICT ("pKey", "pKind")
"""
DO_NOTHING = "DO NOTHING"
DO_UPDATE = """DO UPDATE SET payload = EXCLUDED.payload, "scheduledAt" = EXCLUDED."scheduledAt",
    "scheduledAtInitially" = EXCLUDED."scheduledAtInitially", "lockUuid" = NULL, "createdAt" = EXCLUDED."createdAt"
"""

LEASE = """
    WITH due AS (
        SELECT id, "scheduledAt" FROM delayed_queue
        WHERE hashtext("pKind") = hashtext(%(kind)s) AND "pKind" = %(kind)s
            AND priority = 0 AND "scheduledAt" <= %(now)s
        ORDER BY "scheduledAt", id LIMIT %(batch)s FOR UPDATE SKIP LOCKED
    )
    UPDATE delayed_queue q SET "scheduledAt" = %(until)s, "lockUuid" = %(lock_uuid)s, attempts = attempts + 1
    FROM due WHERE q.id = due.id
    RETURNING q.id, q."pKey", q.payload, q.attempts, due."scheduledAt", q."scheduledAtInitially"
"""
ACK = 'DELETE FROM delayed_queue WHERE id = ANY(%s) AND "lockUuid" = %s'


def now_ms() -> int:
    return int(time.time() * 1000)


def offer(connection: psycopg.Connection[Any], kind: str, key: str, payload: bytes, at: int) -> None:
    connection.execute(INSERT, (key, kind, payload, at, at, now_ms()))


def offer_many(
    connection: psycopg.Connection[Any],
    kind: str,
    keys: Sequence[str],
    payloads: Sequence[bytes],
    ats: Sequence[int],
    conflict: str,
    chunk: int = 5000,
) -> None:
    with connection.transaction():
        for start in range(0, len(keys), chunk):
            part = slice(start, start + chunk)
            parameters = (kind, now_ms(), list(keys[part]), list(payloads[part]), list(ats[part]))
            connection.execute(INSERT_MANY + conflict, parameters)


def lease_and_ack(connection: psycopg.Connection[Any], kind: str, batch: int) -> int:
    lock_uuid = str(uuid.uuid4())
    now = now_ms()
    parameters = {"kind": kind, "now": now, "batch": batch, "until": now + 60_000, "lock_uuid": lock_uuid}
    rows = connection.execute(LEASE, parameters).fetchall()
    if rows:
        connection.execute(ACK, ([row[0] for row in rows], lock_uuid))
    return len(rows)


def main(parameters: str, kind: str, batch: str) -> None:
    """A process that drains once for each line on its input, and says so when it is ready and when it is done."""
    with psycopg.connect(**json.loads(parameters), autocommit=True) as connection:
        print("ready", flush=True)
        for _ in sys.stdin:
            while lease_and_ack(connection, kind, int(batch)):
                pass
            print("drained", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
