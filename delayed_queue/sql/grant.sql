-- What controls allow: of each kind, how many more of it may start now. NULL: nothing limits it. Locks the controls that
-- count, in one order, so that two workers cannot take the same slot. Called only where there are controls.
--
-- A limit on how many run at once is counted by slots: a row for each lease call and kind, freed by the worker as its
-- handlers end, and void when the lease is over, so that a worker that died blocks nobody. Counting leased messages
-- instead would need an index on them, 8 % more WAL for everyone, and would miss a handler whose message was taken away.
-- A rate is a bucket of tokens in the control's row; it holds what may start in one period.
CREATE OR REPLACE FUNCTION delayed_queue_grant(p_kinds text[], p_now bigint) RETURNS integer[]
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM FROM delayed_queue_control control
    WHERE (control.max_running IS NOT NULL OR control.rate IS NOT NULL) AND EXISTS (
        SELECT FROM unnest(p_kinds) AS kinds (kind)
        WHERE control.name = CASE control.scope WHEN 'kind' THEN kinds.kind ELSE delayed_queue_namespace(kinds.kind) END
    )
    ORDER BY control.id FOR NO KEY UPDATE;

    -- A clock that was set back adds nothing, and counts from there.
    UPDATE delayed_queue_control
    SET tokens = least(rate, tokens + greatest(0, p_now - tokens_at)::double precision * rate / rate_period),
        tokens_at = p_now
    WHERE rate IS NOT NULL AND tokens < rate AND tokens_at <> p_now
        AND CASE scope WHEN 'kind' THEN name = ANY (p_kinds)
            ELSE name IN (SELECT delayed_queue_namespace(kind) FROM unnest(p_kinds) AS kinds (kind)) END;

    RETURN ARRAY(
        SELECT min(
            CASE WHEN control.paused THEN 0
            ELSE least(
                control.max_running - (
                    SELECT coalesce(sum(slot.running), 0) FROM delayed_queue_slot slot
                    WHERE slot.expires_at > p_now
                        AND CASE control.scope WHEN 'kind' THEN slot.kind ELSE slot.namespace END = control.name
                ),
                floor(least(coalesce(control.tokens, control.rate), control.rate))
            ) END
        )::integer
        FROM unnest(p_kinds) WITH ORDINALITY AS kinds (kind, place)
        LEFT JOIN delayed_queue_control control
            ON control.name = CASE control.scope
                WHEN 'kind' THEN kinds.kind ELSE delayed_queue_namespace(kinds.kind) END
        GROUP BY kinds.place
        ORDER BY kinds.place
    );
END
$$;
