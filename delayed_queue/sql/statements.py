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
    SELECT delayed_queue_offer(%s, %s, %s, %s, %s, %s, %s, %s::smallint, %s::smallint, %s, %s, NULL, %s)
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

# Prepared where that is safe (sessions.py). Only calls of functions, which look after their own plans: a plan of the
# others that was made while the table was nearly empty would stay in the session when it is full.
PREPARED = frozenset({OFFER, OFFER_WITH_OPTIONS, POLL, ACK})
