-- Whether another message of the kind and priority, due no later than p_at, is there to wake the pollers.
--
-- Index   delayed_queue_due. Only the last 10 s before p_now are looked at, the longest time between two polls: with the
--         xmin horizon held, an open range would read the index entries of everything delivered since.
CREATE OR REPLACE FUNCTION delayed_queue_is_preceded(
    p_kind text,
    p_priority smallint,
    p_key text,
    p_at bigint,
    p_now bigint
) RETURNS boolean
LANGUAGE plpgsql STABLE  -- in a statement that offers many it sees what was there before
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM delayed_queue q
        WHERE hashtext(q."pKind") = hashtext(p_kind) AND q."pKind" = p_kind
            AND q.priority = p_priority AND q."scheduledAt" BETWEEN p_now - 10000 AND p_at
            AND q."pKey" <> p_key
    );
END
$$;
