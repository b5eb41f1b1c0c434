-- Delete leased messages, each only if its lease is still the one given. Returns the ids that were deleted.
--
-- Index   the primary key, one probe for each. Planned at each call, for the size that the table has then: a plan kept
--         from when it had one row walks all of it, 13 s for 500 of 300,000.
-- Guard   (id, "lockUuid"), the fence. Rows are locked in the given order; in the order of the keys a batch of acks and a
--         batch of offers cannot lock each other out.
CREATE OR REPLACE FUNCTION delayed_queue_ack(p_ids bigint[], p_lock_uuids text[])
RETURNS bigint[]
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_gone bigint[];
BEGIN
    WITH gone AS (
        DELETE FROM delayed_queue q
        USING unnest(p_ids, p_lock_uuids) AS ack (id, lock_uuid)
        WHERE q.id = ack.id AND q."lockUuid" = ack.lock_uuid
        RETURNING q.id
    )
    SELECT array_agg(gone.id) INTO v_gone FROM gone;
    RETURN v_gone;
END
$$;
