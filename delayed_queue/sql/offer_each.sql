-- Offer messages one by one in one statement, for batches in which a key stands twice, some may update and others not, or
-- some have a longest wait. Returns what delayed_queue_offer() says of each. What has none of that is one INSERT
-- (statements.py), three times as fast.
--
-- Guard   They are taken in the order of their keys, and of one key in the order given, by every batch, so that two batches
--         cannot lock each other out. Ids are in the order given. NOTIFY is sent once: PostgreSQL folds equal ones.
CREATE OR REPLACE FUNCTION delayed_queue_offer_each(
    p_kind text,
    p_ids bigint[],             -- NULL: the next ones
    p_keys text[],
    p_payloads bytea[],
    p_ats bigint[],
    p_can_updates boolean[],
    p_priorities smallint[],
    p_max_attempts smallint[],
    p_expires_ats bigint[],
    p_max_waits bigint[],
    p_horizon bigint,
    p_now bigint,
    p_in_transaction boolean
) RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    v_outcomes text[] := array_fill(NULL::text, ARRAY[cardinality(p_keys)]);
    v_ids bigint[] := p_ids;
    i integer;
BEGIN
    IF v_ids IS NULL THEN
        v_ids := ARRAY(SELECT nextval('delayed_queue_id_seq') FROM generate_series(1, cardinality(p_keys)));
    END IF;
    FOR i IN SELECT m.place FROM unnest(p_keys) WITH ORDINALITY AS m (key, place) ORDER BY m.key COLLATE "C", m.place LOOP
        v_outcomes[i] := delayed_queue_offer(
            p_kind, p_keys[i], p_payloads[i], p_ats[i], p_can_updates[i], p_horizon, p_now,
            p_priorities[i], p_max_attempts[i], p_expires_ats[i], p_max_waits[i], v_ids[i], p_in_transaction
        );
    END LOOP;
    RETURN v_outcomes;
END
$$;
