-- Release at once what a process holds that is no more, or what was leased by a statement whose answer never came. The
-- process is known by the first half of its lock uuids.
--
-- What had started spends its attempt, and comes back with the error; what had only been leased comes back now, as if it
-- had not. Returns how many.
--
-- One of those that had started may be what killed the process. If it was the only one, it comes back in a moment. If not,
-- they come back one after the other, at random, the further apart the more often they have been through it: else they
-- would be leased together again, and die together, the innocent with the guilty.
--
-- Index   delayed_queue_due: for each kind and priority the time from now to the end of the longest lease. There is no
--         index on "lockUuid", which would cost every message 8 % more WAL for the sake of the few whose worker dies.
-- Guard   the lock uuid again, in the UPDATE.
CREATE OR REPLACE FUNCTION delayed_queue_reclaim(
    p_kinds text[],
    p_lock_prefix text,
    p_longest_lease bigint,     -- milliseconds
    p_started bigint[],         -- ids
    p_error text,
    p_worker bigint,
    p_now bigint                -- NULL: the database's clock
) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET lock_timeout = '3s'
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now CONSTANT bigint := coalesce(p_now, floor(extract(epoch FROM statement_timestamp()) * 1000));
    v_kind text;
    v_priority smallint;
    v_found integer;
    v_count integer := 0;
BEGIN
    FOREACH v_kind IN ARRAY p_kinds LOOP
        v_priority := 101;
        LOOP
            SELECT q.priority INTO v_priority
            FROM delayed_queue q
            WHERE hashtext(q."pKind") = hashtext(v_kind) AND q."pKind" = v_kind AND q.priority < v_priority
            ORDER BY q.priority DESC LIMIT 1;
            EXIT WHEN NOT FOUND;
            WITH held AS MATERIALIZED (
                SELECT leased.* FROM (
                    SELECT q.ctid AS tid, q.id, q."lockUuid" AS lock_uuid
                    FROM delayed_queue q
                    WHERE hashtext(q."pKind") = hashtext(v_kind) AND q."pKind" = v_kind AND q.priority = v_priority
                        AND q."scheduledAt" BETWEEN v_now AND v_now + p_longest_lease
                        AND starts_with(q."lockUuid", p_lock_prefix)
                    ORDER BY q."scheduledAt", q.id  -- which no other index gives
                ) AS leased
                UNION
                SELECT q.ctid, q.id, q."lockUuid"  -- what a handler has extended past that
                FROM unnest(p_started) AS started (id)
                CROSS JOIN LATERAL (
                    SELECT q.ctid, q.id, q."lockUuid" FROM delayed_queue q
                    WHERE q.id BETWEEN started.id AND started.id AND q."pKind" = v_kind AND q.priority = v_priority
                        AND starts_with(q."lockUuid", p_lock_prefix)
                    ORDER BY q.id LIMIT 1
                ) AS q
            ),
            released AS (
                UPDATE delayed_queue q
                SET "lockUuid" = NULL,
                    attempts = q.attempts - CASE WHEN started.id IS NULL THEN 1 ELSE 0 END,
                    "scheduledAt" = greatest(
                        v_now + CASE
                            WHEN started.id IS NULL THEN 0
                            WHEN cardinality(p_started) = 1 THEN 300
                            ELSE floor(random() * least(60000, 1000 + 3000 * cardinality(p_started) * (q.attempts - 1)))
                        END::bigint,
                        q."scheduledAtInitially" + 1
                    ),
                    "lastError" = CASE WHEN started.id IS NULL THEN q."lastError" ELSE coalesce(p_error, q."lastError") END
                FROM held LEFT JOIN unnest(p_started) AS started (id) ON started.id = held.id
                WHERE q.ctid = held.tid AND q."lockUuid" = held.lock_uuid
                RETURNING q.*, started.id IS NOT NULL AS had_started
            ),
            recorded AS (
                INSERT INTO delayed_queue_delivery (kind, key, attempt, outcome, due_at, finished_at, worker_id, error)
                SELECT "pKind", "pKey", attempts, 'lost', "scheduledAtInitially",
                    floor(extract(epoch FROM statement_timestamp()) * 1000), p_worker, p_error
                FROM released WHERE had_started
            )
            SELECT count(*) INTO v_found FROM released;
            IF v_found > 0 THEN
                v_count := v_count + v_found;
                PERFORM pg_notify('delayed_queue', v_kind);
            END IF;
        END LOOP;
    END LOOP;
    DELETE FROM delayed_queue_slot WHERE starts_with(lock_uuid, p_lock_prefix);
    RETURN v_count;
END
$$;
