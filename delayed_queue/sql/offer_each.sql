-- Offer messages one by one, in the given order, in one statement: for batches in which a key stands twice, some may
-- update and others not, or some have a longest wait. What has none of that is one INSERT (statements.py), three times
-- as fast.
--
-- Guard   The caller gives the keys in order, and every batch in the same one, so that two batches cannot lock each other
--         out. NOTIFY is sent once: PostgreSQL folds equal ones of a transaction.
CREATE OR REPLACE FUNCTION delayed_queue_offer_each(
    p_kind text,
    p_keys text[],
    p_payloads bytea[],
    p_ats bigint[],
    p_can_updates boolean[],
    p_priorities smallint[],
    p_max_attempts smallint[],
    p_expires_ats bigint[],
    p_max_waits bigint[],
    p_horizon bigint,
    p_now bigint
) RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_outcomes text[] := '{}';
BEGIN
    FOR i IN 1 .. cardinality(p_keys) LOOP
        v_outcomes[i] := delayed_queue_offer(
            p_kind, p_keys[i], p_payloads[i], p_ats[i], p_can_updates[i], p_horizon, p_now,
            p_priorities[i], p_max_attempts[i], p_expires_ats[i], p_max_waits[i]
        );
    END LOOP;
    RETURN v_outcomes;
END
$$;
