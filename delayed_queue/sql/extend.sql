-- The heartbeat: hold leased messages for their lease's time from now on. Returns the ids that are still held.
--
-- Index   the primary key, one probe for each. Planned at each call, as delayed_queue_ack().
-- Guard   (id, "lockUuid"), the fence. Rows are locked in the given order: that of the keys.
CREATE OR REPLACE FUNCTION delayed_queue_extend(
    p_ids bigint[],
    p_lock_uuids text[],
    p_leases bigint[],          -- milliseconds
    p_now bigint                -- NULL: the database's clock
) RETURNS bigint[]
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_now CONSTANT bigint := coalesce(p_now, floor(extract(epoch FROM statement_timestamp()) * 1000));
    v_held bigint[];
BEGIN
    WITH held AS (
        UPDATE delayed_queue q
        SET "scheduledAt" = greatest(v_now + beat.lease, q."scheduledAtInitially" + 1)
        FROM unnest(p_ids, p_lock_uuids, p_leases) AS beat (id, lock_uuid, lease)
        WHERE q.id = beat.id AND q."lockUuid" = beat.lock_uuid
        RETURNING q.id
    )
    SELECT array_agg(held.id) INTO v_held FROM held;
    RETURN v_held;
END
$$;
