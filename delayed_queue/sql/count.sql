-- That many of the kind were leased: take their slots and tokens (see grant.sql).
CREATE OR REPLACE FUNCTION delayed_queue_count(
    p_kind text,
    p_leased integer,
    p_lock_uuid text,
    p_lease bigint,
    p_now bigint
) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_namespace CONSTANT text := delayed_queue_namespace(p_kind);
BEGIN
    UPDATE delayed_queue_control
    SET tokens = least(coalesce(tokens, rate), rate) - p_leased,
        tokens_at = CASE WHEN tokens < rate THEN tokens_at ELSE p_now END  -- a full bucket begins to fill now
    WHERE rate IS NOT NULL AND name = CASE scope WHEN 'kind' THEN p_kind ELSE v_namespace END;

    IF EXISTS (
        SELECT FROM delayed_queue_control
        WHERE max_running IS NOT NULL AND name = CASE scope WHEN 'kind' THEN p_kind ELSE v_namespace END
    ) THEN
        DELETE FROM delayed_queue_slot
        WHERE id IN (
            SELECT id FROM delayed_queue_slot WHERE running <= 0 OR expires_at <= p_now FOR UPDATE SKIP LOCKED
        );
        INSERT INTO delayed_queue_slot AS slot (lock_uuid, kind, namespace, running, expires_at)
        VALUES (p_lock_uuid, p_kind, v_namespace, p_leased, p_now + p_lease)
        ON CONFLICT (lock_uuid, kind) DO UPDATE SET running = slot.running + p_leased;
    END IF;
END
$$;
