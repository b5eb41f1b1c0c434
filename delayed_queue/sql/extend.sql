-- The heartbeat: hold leased messages for their lease's time from now on. Returns the places in the arrays, from 1, of
-- those that are held; negative ones are of messages that someone has locked just now, of which nothing is known.
--
-- Index   the primary key, then by ctid, as delayed_queue_ack().
-- Guard   (id, "lockUuid"), the fence; SKIP LOCKED, so that an open transaction costs nobody else's lease.
CREATE OR REPLACE FUNCTION delayed_queue_extend(
    p_ids bigint[],
    p_lock_uuids text[],
    p_leases bigint[],          -- milliseconds
    p_now bigint                -- NULL: the database's clock
) RETURNS integer[]
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
    v_tids tid[];
    v_places integer[];
BEGIN
    SELECT array_agg(held.ctid), array_agg(beat.place) INTO v_tids, v_places
    FROM unnest(p_ids, p_lock_uuids) WITH ORDINALITY AS beat (id, lock_uuid, place)
    CROSS JOIN LATERAL (
        SELECT q.ctid FROM delayed_queue q
        WHERE q.id BETWEEN beat.id AND beat.id AND q."lockUuid" = beat.lock_uuid
        ORDER BY q.id LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS held;
    UPDATE delayed_queue q
    SET "scheduledAt" = greatest(v_now + p_leases[held.place], q."scheduledAtInitially" + 1)
    FROM unnest(v_tids, v_places) AS held (ctid, place)
    WHERE q.ctid = held.ctid;

    IF coalesce(cardinality(v_places), 0) < cardinality(p_ids) THEN
        v_places := v_places || ARRAY(
            SELECT -beat.place::integer
            FROM unnest(p_ids, p_lock_uuids) WITH ORDINALITY AS beat (id, lock_uuid, place)
            CROSS JOIN LATERAL (
                SELECT FROM delayed_queue q
                WHERE q.id BETWEEN beat.id AND beat.id AND q."lockUuid" = beat.lock_uuid
                ORDER BY q.id LIMIT 1
            ) AS locked
            WHERE NOT beat.place = ANY (coalesce(v_places, '{}'))
        );
    END IF;
    RETURN v_places;
END
$$;
