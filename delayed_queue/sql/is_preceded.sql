-- Whether another message of the kind and priority will wake the pollers in time for one that is due at p_at: one due no
-- later, but not yet. All pollers that sleep know of it, and have set their clocks by it. One that is due already proves
-- nothing: it may be leased by now, and who leased it may be asleep again when ours commits.
--
-- Index   delayed_queue_due; "IS TRUE" keeps the planner from the unique one, which a plan made while the table was nearly
--         empty would walk from end to end. Nothing before p_now is looked at: with the xmin horizon held, that would be
--         the entries of everything delivered since.
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
        WHERE hashtext(q."pKind") = hashtext(p_kind) AND (q."pKind" = p_kind) IS TRUE
            AND q.priority = p_priority AND q."scheduledAt" BETWEEN p_now + 100 AND p_at
            AND q."pKey" <> p_key
    );
END
$$;
