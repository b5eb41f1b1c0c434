-- What workers could not finish: retried, snoozed or given back, or dead; with the history, in one statement. A message
-- that has no attempt left is dead here and now, and not when its next time has come.
--
-- Each element of p_settled has: place, id, lock_uuid, outcome ('retried', 'snoozed', 'released', 'dead'), delay
-- (milliseconds), error (kept with the message), max_attempts (of its handler), reason (of its death, if it is dead),
-- summary (one line, for the history), due_at, started_at, duration (microseconds), recorded. A snooze and a release
-- spend no attempt.
--
-- Index   the primary key, then by ctid, as delayed_queue_ack().
-- Guard   (id, "lockUuid"), the fence; SKIP LOCKED.
-- Returns what became of each that was still leased so, by its place: its outcome, or 'locked' if someone has it locked
--         just now, to be tried again.
CREATE OR REPLACE FUNCTION delayed_queue_settle(
    p_settled jsonb,
    p_worker bigint,
    p_horizon bigint,           -- announce what is due so soon, in milliseconds; NULL: nothing
    p_now bigint                -- NULL: the database's clock
) RETURNS jsonb
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET lock_timeout = '3s'
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now CONSTANT bigint := coalesce(p_now, floor(extract(epoch FROM statement_timestamp()) * 1000));
    v_real_now CONSTANT bigint := floor(extract(epoch FROM statement_timestamp()) * 1000);
    v_result jsonb;
    v_told integer;
BEGIN
    WITH settled AS MATERIALIZED (
        SELECT s.* FROM jsonb_to_recordset(p_settled) AS s (
            place integer, id bigint, lock_uuid text, outcome text, delay bigint, error text, max_attempts integer,
            reason text, summary text, due_at bigint, started_at bigint, duration bigint, recorded boolean
        )
    ),
    held AS MATERIALIZED (
        SELECT settled.*, q.ctid AS tid, q."pKind" AS kind, q."pKey" AS key, q.attempts,
            greatest(v_now + coalesce(settled.delay, 0), q."scheduledAtInitially" + 1) AS at,
            CASE WHEN settled.outcome = 'retried' AND q.attempts >= coalesce(q."maxAttempts", settled.max_attempts)
                THEN 'dead' ELSE settled.outcome END AS became
        FROM settled
        CROSS JOIN LATERAL (
            SELECT q.ctid, q."pKind", q."pKey", q.attempts, q."maxAttempts", q."scheduledAtInitially"
            FROM delayed_queue q
            WHERE q.id BETWEEN settled.id AND settled.id AND q."lockUuid" = settled.lock_uuid
            ORDER BY q.id LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) AS q
    ),
    gone AS (
        DELETE FROM delayed_queue q USING held
        WHERE q.ctid = held.tid AND held.became = 'dead'
        RETURNING q.*, held.reason AS given_reason, held.error AS given_error
    ),
    buried AS (
        INSERT INTO delayed_queue_dead (
            kind, key, payload, priority, attempts, max_attempts, scheduled_at_initially, created_at, first_offered_at,
            expires_at, reason, error, died_at
        )
        SELECT "pKind", "pKey", payload, priority, attempts, "maxAttempts", "scheduledAtInitially", "createdAt",
            "firstOfferedAt", "expiresAt", coalesce(given_reason, 'exhausted'), coalesce(given_error, "lastError"), v_now
        FROM gone
    ),
    moved AS (
        UPDATE delayed_queue q
        SET "lockUuid" = NULL,
            "scheduledAt" = held.at,
            "lastError" = coalesce(held.error, q."lastError"),
            attempts = q.attempts - CASE WHEN held.became = 'retried' THEN 0 ELSE 1 END
        FROM held
        WHERE q.ctid = held.tid AND held.became <> 'dead'
    ),
    recorded AS (
        INSERT INTO delayed_queue_delivery (
            kind, key, attempt, outcome, due_at, started_at, duration_us, finished_at, worker_id, error
        )
        SELECT kind, key, attempts, became, due_at, least(started_at, v_real_now), duration, v_real_now, p_worker, summary
        FROM held WHERE recorded
    ),
    told AS (
        SELECT pg_notify('delayed_queue', soon.kind)
        FROM (SELECT DISTINCT kind FROM held WHERE became <> 'dead' AND at <= v_now + p_horizon) AS soon
    )
    SELECT jsonb_object_agg(settled.place, coalesce(held.became, 'locked')), (SELECT count(*) FROM told)
    INTO v_result, v_told
    FROM settled
    LEFT JOIN held ON held.place = settled.place
    LEFT JOIN LATERAL (
        SELECT true AS exists FROM delayed_queue q
        WHERE q.id BETWEEN settled.id AND settled.id AND q."lockUuid" = settled.lock_uuid
        ORDER BY q.id LIMIT 1
    ) AS there ON held.place IS NULL
    WHERE held.place IS NOT NULL OR there.exists;
    RETURN coalesce(v_result, '{}');
END
$$;
