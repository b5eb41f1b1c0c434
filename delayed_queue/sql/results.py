"""The statements on the results of Django's tasks. Each touches one row, by its primary key, but for the last two."""

from __future__ import annotations

from delayed_queue.sql.statements import NOW

# The result and its message, in one statement: both or none, at one round trip. After a lost answer it can be run
# again: where the row is there, the message was offered, and may be done by now.
ENQUEUE = """
    WITH stored AS (
        INSERT INTO delayed_queue_result (
            id, kind, backend, queue_name, priority, run_after, call, status, enqueued_at, errors, worker_ids
        )
        VALUES (
            %(id)s, %(kind)s, %(backend)s, %(queue_name)s, %(priority)s, %(run_after)s, %(call)s, 'READY',
            statement_timestamp(), '[]', '[]'
        )
        ON CONFLICT (id) DO NOTHING
        RETURNING enqueued_at, call
    )
    SELECT stored.enqueued_at, delayed_queue_offer(
        %(kind)s, %(id)s, convert_to(stored.call, 'UTF8'), %(at)s::bigint, false, %(horizon)s::bigint, %(now)s::bigint,
        p_priority => %(priority)s::smallint, p_in_transaction => %(in_transaction)s, p_delay => %(delay)s::bigint
    )
    FROM stored
"""

# What is done stays as it is, and comes back so.
START = """
    UPDATE delayed_queue_result
    SET status = CASE status WHEN 'SUCCESSFUL' THEN status ELSE 'RUNNING' END,
        started_at = CASE status WHEN 'SUCCESSFUL' THEN started_at ELSE coalesce(started_at, statement_timestamp()) END,
        last_attempted_at = CASE status WHEN 'SUCCESSFUL' THEN last_attempted_at ELSE statement_timestamp() END,
        finished_at = CASE status WHEN 'SUCCESSFUL' THEN finished_at END,
        worker_ids = CASE status WHEN 'SUCCESSFUL' THEN worker_ids
            ELSE worker_ids || jsonb_build_array(%(worker)s::text) END,
        lock_uuid = CASE status WHEN 'SUCCESSFUL' THEN lock_uuid ELSE %(lock_uuid)s END
    WHERE id = %(id)s AND kind = %(kind)s
    RETURNING *
"""

# The lease is the fence here, too: a handler that lost its message cannot write over what its successor wrote.
FINISH = """
    UPDATE delayed_queue_result
    SET status = %(status)s,
        finished_at = CASE WHEN %(status)s IN ('SUCCESSFUL', 'FAILED') THEN statement_timestamp() END,
        return_value = %(return_value)s,
        errors = %(errors)s::jsonb
    WHERE id = %(id)s AND lock_uuid = %(lock_uuid)s
    RETURNING *
"""

# What a handler wrote is believed if it is a success. Otherwise the message says more: a worker that was killed wrote
# nothing, and a dead message may have been re-driven. One that failed for good is still leased until the worker has
# settled it, and then its lease is the one that wrote the failure.
LOOK = f"""
    WITH found AS (
        SELECT r.*, q.id IS NOT NULL AS is_alive, q."lockUuid" AS held_by, q."scheduledAt" > {NOW} AS is_held
        FROM delayed_queue_result r LEFT JOIN delayed_queue q ON q."pKey" = r.id AND q."pKind" = r.kind
        WHERE r.id = %(id)s AND r.backend = %(backend)s
    ),
    derived AS (
        SELECT found.*, CASE
                WHEN status = 'SUCCESSFUL' THEN status
                WHEN NOT is_alive THEN 'FAILED'
                WHEN status = 'RUNNING' AND held_by IS NOT NULL AND is_held THEN 'RUNNING'
                WHEN status = 'FAILED' AND held_by = lock_uuid THEN 'FAILED'
                ELSE 'READY'
            END AS now_status
        FROM found
    )
    SELECT derived.id, derived.kind, backend, queue_name, derived.priority, run_after, call, enqueued_at, started_at,
        last_attempted_at, return_value, worker_ids, lock_uuid,
        now_status AS status,
        CASE WHEN now_status IN ('SUCCESSFUL', 'FAILED')
            THEN coalesce(finished_at, to_timestamp(dead.died_at / 1000.0)) END AS finished_at,
        CASE WHEN now_status <> 'FAILED' OR status = 'FAILED' THEN errors
            ELSE errors || jsonb_build_array(jsonb_build_object(
                'class', CASE WHEN dead.id IS NULL THEN %(dropped)s::text ELSE %(died)s::text END,
                'traceback', CASE WHEN dead.id IS NULL THEN 'The message was dropped.'
                    ELSE 'The message is dead (' || dead.reason || ').' || coalesce(E'\\n' || dead.error, '') END
            )) END AS errors
    FROM derived LEFT JOIN LATERAL (
        SELECT d.id, d.reason, d.error, d.died_at
        FROM delayed_queue_dead d
        WHERE derived.status IN ('READY', 'RUNNING') AND NOT derived.is_alive
            AND d.kind = derived.kind AND d.key = derived.id
            -- what the index can skip: those of other tasks that died before this one was offered
            AND d.died_at >= floor(extract(epoch FROM derived.enqueued_at) * 1000)
        ORDER BY d.died_at DESC LIMIT 1
    ) AS dead ON true
"""  # noqa: S608

# Ids begin with the time of their enqueueing, so that the primary key finds the old ones, and the table needs no index
# that every start and end of a task would have to move.
_OLD = """
    FROM delayed_queue_result r
    WHERE r.id > %(after)s AND r.id < %(before)s
        AND (r.finished_at IS NULL OR r.finished_at < to_timestamp(%(cutoff)s / 1000.0))
        AND NOT EXISTS (SELECT FROM delayed_queue q WHERE q."pKey" = r.id AND q."pKind" = r.kind)
        AND NOT EXISTS (
            SELECT FROM delayed_queue_dead d WHERE d.kind = r.kind AND d.key = r.id AND d.died_at >= %(cutoff)s
        )
"""
PRUNE = f"""
    WITH gone AS (
        DELETE FROM delayed_queue_result WHERE id = ANY(ARRAY(
            SELECT r.id {_OLD} ORDER BY r.id LIMIT %(limit)s FOR UPDATE OF r SKIP LOCKED
        ))
        RETURNING id
    )
    SELECT count(*), max(id) FROM gone
"""  # noqa: S608
WOULD_PRUNE = f"SELECT count(*), max(r.id) {_OLD}"
