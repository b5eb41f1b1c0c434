-- What workers have done: delete the messages, each only if its lease is still the one given, and write their history, in
-- one call. Returns the places in the arrays, from 1, of those that were deleted; negative ones are of messages that
-- someone has locked just now, to be tried again: one transaction that is open must not hold up what is behind it.
--
-- Index   the primary key, then by ctid, as delayed_queue_ack().
-- Guard   (id, "lockUuid"), the fence; SKIP LOCKED.
-- Figure  A line of history adds 251 B of WAL to a message's own, of which 79 are the index on its key.
CREATE OR REPLACE FUNCTION delayed_queue_finish(
    p_ids bigint[],
    p_lock_uuids text[],
    p_due_ats bigint[],
    p_started_ats bigint[],
    p_durations bigint[],       -- microseconds
    p_recorded boolean[],       -- whether there is a line of history
    p_worker bigint
) RETURNS integer[]
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET lock_timeout = '3s'         -- of the table, that is: for a migration, say
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now CONSTANT bigint := floor(extract(epoch FROM statement_timestamp()) * 1000);
    v_tids tid[];
    v_places integer[];
BEGIN
    SELECT array_agg(held.ctid), array_agg(done.place) INTO v_tids, v_places
    FROM unnest(p_ids, p_lock_uuids) WITH ORDINALITY AS done (id, lock_uuid, place)
    CROSS JOIN LATERAL (
        SELECT q.ctid FROM delayed_queue q
        WHERE q.id BETWEEN done.id AND done.id AND q."lockUuid" = done.lock_uuid
        ORDER BY q.id LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS held;

    IF true = ANY (p_recorded) THEN
        WITH gone AS (
            DELETE FROM delayed_queue q
            USING unnest(v_tids, v_places) AS held (ctid, place)
            WHERE q.ctid = held.ctid
            RETURNING q."pKind", q."pKey", q.attempts, held.place
        )
        INSERT INTO delayed_queue_delivery (
            kind, key, attempt, outcome, due_at, started_at, duration_us, finished_at, worker_id
        )
        SELECT "pKind", "pKey", attempts, 'done', p_due_ats[place],
            least(p_started_ats[place], v_now),  -- the worker's reckoning of our clock may be ahead by a moment
            p_durations[place], v_now, p_worker
        FROM gone WHERE p_recorded[place];
    ELSE
        DELETE FROM delayed_queue q WHERE q.ctid = ANY (v_tids);
    END IF;

    IF coalesce(cardinality(v_places), 0) < cardinality(p_ids) THEN
        v_places := v_places || ARRAY(
            SELECT -done.place::integer
            FROM unnest(p_ids, p_lock_uuids) WITH ORDINALITY AS done (id, lock_uuid, place)
            CROSS JOIN LATERAL (
                SELECT FROM delayed_queue q
                WHERE q.id BETWEEN done.id AND done.id AND q."lockUuid" = done.lock_uuid
                ORDER BY q.id LIMIT 1
            ) AS locked
        );
    END IF;
    RETURN v_places;
END
$$;
