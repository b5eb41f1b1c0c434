"""The statements that need no function: a look-up by a unique index, or one plan whatever the statistics say.

``%(now)s`` is the injected clock in milliseconds, or NULL for the database's. statement_timestamp() moves on inside a
transaction, unlike now(), and is stable within a statement, unlike clock_timestamp(), so that an index can use it.
"""

from __future__ import annotations

NOW = "coalesce(%(now)s::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint)"

OFFER = """
    SELECT delayed_queue_offer(%s, %s, %s, %s, %s, %s, %s)
"""
OFFER_WITH_OPTIONS = """
    SELECT delayed_queue_offer(%s, %s, %s, %s, %s, %s, %s, %s::smallint, %s::smallint, %s, %s, NULL, %s, %s, %s)
"""

# Messages of a batch with no key twice and nothing to be decided by message. Ids are in the order of the arrays, so
# that what is due at the same time is delivered as it was given; rows are inserted, and so locked, in the order of the
# keys. Which keys were created or updated comes back only if not all were created.
_OFFER_MANY = f"""
    WITH clock AS (SELECT {NOW} AS now),
    offered AS (
        INSERT INTO delayed_queue AS q (
            id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt",
            priority, "maxAttempts", "expiresAt"
        )
        SELECT m.id, m.key, %(kind)s, m.payload, m.at, m.at, clock.now, m.priority, m.max_attempts, m.expires_at
        FROM clock, (
            SELECT coalesce(given_id, nextval('delayed_queue_id_seq')) AS id, given.*
            FROM unnest(
                %(ids)s::bigint[], %(keys)s::text[], %(payloads)s::bytea[], %(ats)s::bigint[],
                %(priorities)s::smallint[], %(max_attempts)s::smallint[], %(expires_ats)s::bigint[]
            ) AS given (given_id, key, payload, at, priority, max_attempts, expires_at)
            OFFSET 0  -- before they are sorted
        ) AS m
        ORDER BY m.key COLLATE "C"
        ON CONFLICT ("pKey", "pKind") {{on_conflict}}
        RETURNING q."pKey" AS key, q."firstOfferedAt" IS NULL AS created, q."scheduledAt" AS at, q.priority
    ),
    outcomes AS (
        SELECT array_agg(key) FILTER (WHERE created) AS created, array_agg(key) FILTER (WHERE NOT created) AS updated
        FROM offered
    ),
    first AS (
        SELECT offered.* FROM offered, clock
        WHERE offered.at <= clock.now + %(horizon)s::bigint
        ORDER BY offered.at LIMIT 1
    )
    SELECT
        CASE WHEN cardinality(created) = cardinality(%(keys)s::text[]) THEN NULL ELSE coalesce(created, '{{{{}}}}') END,
        coalesce(updated, '{{{{}}}}'),
        (
            SELECT pg_notify('delayed_queue', %(kind)s) FROM first, clock
            WHERE %(in_transaction)s
                OR NOT delayed_queue_is_preceded(%(kind)s, first.priority, first.key, first.at, clock.now)
        )
    FROM outcomes
"""
OFFER_MANY_IF_ABSENT = _OFFER_MANY.format(on_conflict="DO NOTHING")
OFFER_MANY_OR_UPDATE = _OFFER_MANY.format(
    on_conflict="""DO UPDATE SET
            payload = EXCLUDED.payload,
            "scheduledAt" = EXCLUDED."scheduledAt",
            "scheduledAtInitially" = EXCLUDED."scheduledAtInitially",
            priority = EXCLUDED.priority,
            "maxAttempts" = EXCLUDED."maxAttempts",
            "expiresAt" = EXCLUDED."expiresAt",
            "lockUuid" = NULL,
            "createdAt" = greatest(EXCLUDED."createdAt", q."createdAt" + 1),
            attempts = 0,
            "lastError" = NULL,
            "firstOfferedAt" = coalesce(q."firstOfferedAt", q."createdAt")
        WHERE (q.payload, q."scheduledAtInitially", q.priority, q."maxAttempts", q."expiresAt") IS DISTINCT FROM (
            EXCLUDED.payload, EXCLUDED."scheduledAtInitially", EXCLUDED.priority,
            EXCLUDED."maxAttempts", EXCLUDED."expiresAt"
        )"""
)

# For a batch with delays, which count from one moment.
CLOCK = f"SELECT {NOW}"

RESERVE_IDS = "SELECT array_agg(nextval('delayed_queue_id_seq')) FROM generate_series(1, %s)"

OFFER_EACH = """
    SELECT delayed_queue_offer_each(
        %(kind)s, %(ids)s::bigint[], %(keys)s::text[], %(payloads)s::bytea[], %(ats)s::bigint[],
        %(can_updates)s::boolean[],
        %(priorities)s::smallint[], %(max_attempts)s::smallint[], %(expires_ats)s::bigint[], %(max_waits)s::bigint[],
        %(horizon)s::bigint, %(now)s::bigint, %(in_transaction)s
    )
"""

POLL = """
    SELECT * FROM delayed_queue_poll(%s, %s, %s, %s, %s, %s, %s, %s::bigint[])
"""

ACK = "SELECT delayed_queue_ack(%s::bigint[], %s::text[])"

# The very version that was read ("createdAt" grows with each update), unless somebody holds it leased.
ACK_READ = f"""
    DELETE FROM delayed_queue
    WHERE id = %(id)s AND "createdAt" = %(created_at)s AND "scheduledAtInitially" = %(scheduled_at_initially)s
        AND ("lockUuid" IS NULL OR "scheduledAt" <= {NOW})
"""

RELEASE = f"""
    WITH clock AS (SELECT {NOW} AS now),
    released AS (
        UPDATE delayed_queue q
        SET "lockUuid" = NULL,
            "scheduledAt" = greatest(clock.now + %(delay)s::bigint, q."scheduledAtInitially" + 1),
            "lastError" = coalesce(%(error)s, q."lastError"),
            attempts = q.attempts - %(refund)s
        FROM clock
        WHERE q.id = %(id)s AND q."lockUuid" = %(lock_uuid)s
        RETURNING q."pKind", q."pKey", q.priority, q."scheduledAt"
    )
    SELECT released.priority, released."scheduledAt",
        CASE WHEN released."scheduledAt" <= clock.now + %(horizon)s::bigint
                AND (%(in_transaction)s OR NOT delayed_queue_is_preceded(
                    released."pKind", released.priority, released."pKey", released."scheduledAt", clock.now
                ))
            THEN pg_notify('delayed_queue', released."pKind")
        END
    FROM released, clock
"""

EXTEND = f"""
    UPDATE delayed_queue
    SET "scheduledAt" = greatest({NOW} + %(lease)s::bigint, "scheduledAtInitially" + 1)
    WHERE id = %(id)s AND "lockUuid" = %(lock_uuid)s
    RETURNING priority, "scheduledAt"
"""

BURY = f"""
    WITH gone AS (
        DELETE FROM delayed_queue WHERE id = %(id)s AND "lockUuid" = %(lock_uuid)s RETURNING *
    )
    INSERT INTO delayed_queue_dead (
        kind, key, payload, priority, attempts, max_attempts, scheduled_at_initially, created_at, first_offered_at,
        expires_at, reason, error, died_at
    )
    SELECT "pKind", "pKey", payload, priority, attempts, "maxAttempts", "scheduledAtInitially", "createdAt",
        "firstOfferedAt", "expiresAt", %(reason)s, %(error)s, {NOW}
    FROM gone
"""

DROP = f"""
    DELETE FROM delayed_queue WHERE "pKey" = %(key)s AND "pKind" = %(kind)s
    RETURNING "lockUuid" IS NOT NULL AND "scheduledAt" > {NOW}
"""

DROP_ALL = 'DELETE FROM delayed_queue WHERE hashtext("pKind") = hashtext(%(kind)s) AND "pKind" = %(kind)s'

CONTAINS = 'SELECT EXISTS (SELECT FROM delayed_queue WHERE "pKey" = %s AND "pKind" = %s)'

READ = f"""
    SELECT id, payload, attempts, "scheduledAt", "scheduledAtInitially", "createdAt", {NOW}
    FROM delayed_queue WHERE "pKey" = %(key)s AND "pKind" = %(kind)s
"""

# The message with its state, or else the newest dead one of the key. "attempts" counts leases since the last offer, of
# the JVM library's too, which leaves the counter as it was and the two times equal.
SNAPSHOT = f"""
    WITH clock AS (SELECT {NOW} AS now),
    alive AS (
        SELECT
            CASE WHEN q."lockUuid" IS NULL THEN CASE WHEN q."scheduledAt" <= clock.now THEN 'ready' ELSE 'scheduled' END
                WHEN q."scheduledAt" <= clock.now THEN 'stalled' ELSE 'running' END,
            q.payload, q."scheduledAt", q."scheduledAtInitially",
            CASE WHEN q."scheduledAt" = q."scheduledAtInitially" THEN 0 ELSE q.attempts END,
            q.priority, q."maxAttempts", q."expiresAt", q."lastError", NULL::text, NULL::bigint
        FROM delayed_queue q, clock WHERE q."pKey" = %(key)s AND q."pKind" = %(kind)s
    )
    SELECT * FROM alive
    UNION ALL (
        SELECT 'dead', payload, NULL, scheduled_at_initially, attempts, priority, max_attempts, expires_at, error,
            reason, died_at
        FROM delayed_queue_dead WHERE kind = %(kind)s AND key = %(key)s AND NOT EXISTS (SELECT FROM alive)
        ORDER BY died_at DESC, id DESC LIMIT 1
    )
"""

# Counts every message of the kind: for people and tests, not for a loop.
STATS = f"""
    WITH clock AS MATERIALIZED (SELECT {NOW} AS now)
    SELECT
        count(*) FILTER (WHERE "lockUuid" IS NULL AND "scheduledAt" > clock.now),
        count(*) FILTER (WHERE "lockUuid" IS NULL AND "scheduledAt" <= clock.now),
        count(*) FILTER (WHERE "lockUuid" IS NOT NULL AND "scheduledAt" > clock.now),
        count(*) FILTER (WHERE "lockUuid" IS NOT NULL AND "scheduledAt" <= clock.now),
        (SELECT count(*) FROM delayed_queue_dead WHERE kind = %(kind)s),
        min("scheduledAt") FILTER (WHERE "lockUuid" IS NULL AND "scheduledAt" <= clock.now),
        min("scheduledAt") FILTER (WHERE "lockUuid" IS NULL AND "scheduledAt" > clock.now)
    FROM clock LEFT JOIN delayed_queue ON hashtext("pKind") = hashtext(%(kind)s) AND "pKind" = %(kind)s
"""

# What workers do, in batches.

LEASE = """
    SELECT * FROM delayed_queue_lease(
        %s::text[], %s::integer[], %s::integer[], %s::bigint[], %s::integer[], %s, %s, %s::boolean[], %s::text[]
    )
"""

FINISH = """
    SELECT delayed_queue_finish(
        %s::bigint[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::boolean[], %s
    )
"""

SETTLE = "SELECT delayed_queue_settle(%s::jsonb, %s, %s, %s)"

EXTEND_MANY = "SELECT delayed_queue_extend(%s::bigint[], %s::text[], %s::bigint[], %s)"

RECLAIM = "SELECT delayed_queue_reclaim(%s::text[], %s, %s, %s::bigint[], %s, %s, %s)"

# Who waits for a slot hears of it.
FREE_SLOTS = """
    WITH freed AS (
        UPDATE delayed_queue_slot slot SET running = slot.running - given.freed
        FROM unnest(%(lock_uuids)s::text[], %(kinds)s::text[], %(counts)s::integer[]) AS given (lock_uuid, kind, freed)
        WHERE slot.lock_uuid = given.lock_uuid AND slot.kind = given.kind
        RETURNING slot.kind
    )
    SELECT pg_notify('delayed_queue', kind) FROM (SELECT DISTINCT kind FROM freed) AS kinds WHERE %(notify)s
"""

BEAT = f"""
    INSERT INTO delayed_queue_worker AS worker (
        id, host, pid, kinds, threads, state, running, buffered, handled, failed, started_at, beat_at, version
    )
    VALUES (
        %(id)s, %(host)s, %(pid)s, %(kinds)s::jsonb, %(threads)s, %(state)s, %(running)s, %(buffered)s, %(handled)s,
        %(failed)s, {NOW}, {NOW}, %(version)s
    )
    ON CONFLICT (id) DO UPDATE SET
        state = EXCLUDED.state, running = EXCLUDED.running, buffered = EXCLUDED.buffered, handled = EXCLUDED.handled,
        failed = EXCLUDED.failed, beat_at = EXCLUDED.beat_at
"""

KEEP_SLOTS = f"""
    UPDATE delayed_queue_slot SET expires_at = {NOW} + %(lease)s::bigint WHERE starts_with(lock_uuid, %(lock_prefix)s)
"""

LEAVE = "DELETE FROM delayed_queue_worker WHERE id = %s"

RECORD_LOST = f"""
    INSERT INTO delayed_queue_delivery (
        kind, key, attempt, outcome, due_at, started_at, duration_us, finished_at, worker_id
    )
    SELECT lost.kind, lost.key, lost.attempt, 'lost', lost.due_at, least(lost.started_at, {NOW}), lost.duration, {NOW},
        %(worker)s
    FROM jsonb_to_recordset(%(lost)s::jsonb) AS lost (
        kind text, key text, attempt integer, due_at bigint, started_at bigint, duration bigint
    )
"""

# Prepared where that is safe (sessions.py). Only calls of functions, which look after their own plans: a plan of the
# others that was made while the table was nearly empty would stay in the session when it is full.
PREPARED = frozenset({OFFER, OFFER_WITH_OPTIONS, POLL, ACK, LEASE, FINISH, SETTLE, EXTEND_MANY})
