"""The statements that move dead messages back, and delete them. Only the clock and the conditions are put in."""

from __future__ import annotations

from delayed_queue.sql.statements import NOW

# A parameter that is NULL asks for nothing; the planner sees the values, and leaves such conditions out.
_CLOCK = f"clock AS MATERIALIZED (SELECT {NOW} AS now)"
_WANTED = """
    FROM clock, delayed_queue_dead d
    WHERE (%(kind)s::text IS NULL OR d.kind = %(kind)s::text)
        AND (%(key)s::text IS NULL OR d.key = %(key)s::text)
        AND (%(reason)s::text IS NULL OR d.reason = %(reason)s::text)
        AND (%(ids)s::bigint[] IS NULL OR d.id = ANY(%(ids)s::bigint[]))
        AND (%(older_than)s::bigint IS NULL OR d.died_at < clock.now - %(older_than)s::bigint)
        AND (%(younger_than)s::bigint IS NULL OR d.died_at >= clock.now - %(younger_than)s::bigint)
"""

# Newest first, so that of those with the same key it is the newest that goes back, also where they are in different
# chunks. Inserted first and deleted then, and only what was inserted: what meets a live message with its key stays
# where it is. Live rows are locked in the order in which acknowledgements lock them; dead ones that someone else works
# on are passed over.
REDRIVE = f"""
    WITH {_CLOCK},
    chosen AS (
        SELECT d.* {_WANTED} AND d.id < %(before)s
        ORDER BY d.id DESC LIMIT %(limit)s
        FOR UPDATE OF d SKIP LOCKED
    ),
    redriven AS (
        INSERT INTO delayed_queue (
            "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", priority, attempts,
            "maxAttempts", "expiresAt", "lastError", "firstOfferedAt"
        )
        SELECT key, kind, payload, clock.now, clock.now, clock.now, priority, 0,
            max_attempts, CASE WHEN expires_at > clock.now THEN expires_at END, error,
            coalesce(first_offered_at, created_at)
        FROM clock, (SELECT DISTINCT ON (kind, key) * FROM chosen ORDER BY kind, key, id DESC) AS newest
        ORDER BY kind, key
        ON CONFLICT ("pKey", "pKind") DO NOTHING
        RETURNING "pKey" AS key, "pKind" AS kind
    ),
    gone AS (
        DELETE FROM delayed_queue_dead WHERE id = ANY(ARRAY(
            SELECT max(chosen.id) FROM chosen JOIN redriven USING (kind, key) GROUP BY kind, key
        ))
        RETURNING id
    )
    SELECT chosen.kind, count(gone.id), count(*) - count(gone.id), min(chosen.id),
        CASE WHEN %(notify)s AND count(gone.id) > 0 THEN pg_notify('delayed_queue', chosen.kind) END
    FROM chosen LEFT JOIN gone USING (id)
    GROUP BY chosen.kind ORDER BY chosen.kind
"""  # noqa: S608

# The same without touching anything: a row is looked at as long as fewer than the limit have gone back before it.
WOULD_REDRIVE = f"""
    WITH {_CLOCK},
    found AS (
        SELECT d.id, d.kind,
            row_number() OVER (PARTITION BY d.kind, d.key ORDER BY d.id DESC) > 1
                OR EXISTS (SELECT FROM delayed_queue q WHERE q."pKey" = d.key AND q."pKind" = d.kind) AS blocked
        {_WANTED}
    ),
    counted AS (
        SELECT kind, blocked, count(*) FILTER (WHERE NOT blocked) OVER (
            ORDER BY id DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before
        FROM found
    )
    SELECT kind, count(*) FILTER (WHERE NOT blocked), count(*) FILTER (WHERE blocked)
    FROM counted WHERE before < %(limit)s
    GROUP BY kind ORDER BY kind
"""  # noqa: S608

DISCARD = f"""
    WITH {_CLOCK},
    gone AS (
        DELETE FROM delayed_queue_dead WHERE id = ANY(ARRAY(
            SELECT d.id {_WANTED} ORDER BY d.id LIMIT %(limit)s FOR UPDATE OF d SKIP LOCKED
        ))
        RETURNING id
    )
    SELECT count(*) FROM gone
"""  # noqa: S608
WOULD_DISCARD = f"WITH {_CLOCK} SELECT least(count(*), %(limit)s) {_WANTED}"
