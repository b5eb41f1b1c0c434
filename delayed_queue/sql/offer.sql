-- Offer one message. Returns CREATED, UPDATED or IGNORED. With p_max_wait or p_delay also when it is due, 'UPDATED
-- 1767225600000', or if it was ignored, the time that was asked for.
--
-- Index   the unique one on ("pKey", "pKind").
-- Guard   INSERT ... ON CONFLICT is atomic: a row that vanishes between its two steps is waited for and inserted by
--         PostgreSQL itself, where INSERT, then SELECT FOR UPDATE, then UPDATE needs a loop of its own.
-- Created "firstOfferedAt" is NULL on a row that was never updated, which tells an insert from an update.
-- Delay   With p_delay the time is the clock's plus the delay, so that a host whose clock is wrong schedules right. An
--         expiry in p_expires_after counts from the time asked for, be it p_at or the clock plus the delay; it is an
--         argument of its own because beside a delay both a moment and a time after it make sense.
-- Wake-up A message due within p_horizon, before the next poll of anyone would see it, is announced, unless another will
--         wake the pollers in time (is_preceded.sql): NOTIFY takes a lock of the whole cluster at commit. In a
--         transaction that is not asked, because when it commits the other may be gone.
-- Cost    The same as the bare INSERT ... ON CONFLICT DO NOTHING, prepared (both 55 us without waiting for the disk);
--         the statement written out and planned at each call takes twice that.
CREATE OR REPLACE FUNCTION delayed_queue_offer(
    p_kind text,
    p_key text,
    p_payload bytea,
    p_at bigint,
    p_can_update boolean,
    p_horizon bigint,           -- milliseconds; NULL: announce nothing
    p_now bigint,               -- NULL: the database's clock
    p_priority smallint DEFAULT 0,
    p_max_attempts smallint DEFAULT NULL,
    p_expires_at bigint DEFAULT NULL,
    p_max_wait bigint DEFAULT NULL,  -- milliseconds; never later than this after the first offer
    p_id bigint DEFAULT NULL,        -- NULL: the next one
    p_in_transaction boolean DEFAULT false, -- of the caller's, which may commit much later
    p_delay bigint DEFAULT NULL,            -- milliseconds; p_at is ignored
    p_expires_after bigint DEFAULT NULL     -- milliseconds; p_expires_at is ignored
) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_now bigint := coalesce(p_now, floor(date_part('epoch', statement_timestamp()) * 1000 + 0.0005));
    v_at bigint;
    v_outcome text;
BEGIN
    IF p_delay IS NOT NULL THEN
        p_at := v_now + p_delay;
    END IF;
    IF p_expires_after IS NOT NULL THEN
        p_expires_at := p_at + p_expires_after;
    END IF;

    IF p_can_update THEN
        INSERT INTO delayed_queue AS q (
            id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt",
            priority, "maxAttempts", "expiresAt"
        )
        VALUES (
            coalesce(p_id, nextval('delayed_queue_id_seq')), p_key, p_kind, p_payload,
            least(p_at, v_now + p_max_wait), least(p_at, v_now + p_max_wait), v_now,
            p_priority, p_max_attempts, p_expires_at
        )
        ON CONFLICT ("pKey", "pKind") DO UPDATE SET
            payload = p_payload,
            "scheduledAt" = least(p_at, coalesce(q."firstOfferedAt", q."createdAt") + p_max_wait),
            "scheduledAtInitially" = least(p_at, coalesce(q."firstOfferedAt", q."createdAt") + p_max_wait),
            priority = p_priority,
            "maxAttempts" = p_max_attempts,
            "expiresAt" = p_expires_at,
            "lockUuid" = NULL,
            "createdAt" = greatest(v_now, q."createdAt" + 1),
            attempts = 0,
            "lastError" = NULL,
            "firstOfferedAt" = coalesce(q."firstOfferedAt", q."createdAt")
        WHERE (q.payload, q."scheduledAtInitially", q.priority, q."maxAttempts", q."expiresAt") IS DISTINCT FROM (
            p_payload, least(p_at, coalesce(q."firstOfferedAt", q."createdAt") + p_max_wait),
            p_priority, p_max_attempts, p_expires_at
        )
        RETURNING CASE WHEN q."firstOfferedAt" IS NULL THEN 'CREATED' ELSE 'UPDATED' END, q."scheduledAt"
        INTO v_outcome, v_at;
    ELSE
        INSERT INTO delayed_queue AS q (
            id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt",
            priority, "maxAttempts", "expiresAt"
        )
        VALUES (
            coalesce(p_id, nextval('delayed_queue_id_seq')), p_key, p_kind, p_payload,
            least(p_at, v_now + p_max_wait), least(p_at, v_now + p_max_wait), v_now,
            p_priority, p_max_attempts, p_expires_at
        )
        ON CONFLICT ("pKey", "pKind") DO NOTHING
        RETURNING 'CREATED', q."scheduledAt"
        INTO v_outcome, v_at;
    END IF;

    IF v_at <= v_now + p_horizon THEN
        IF p_in_transaction OR NOT delayed_queue_is_preceded(p_kind, p_priority, p_key, v_at, v_now) THEN
            PERFORM pg_notify('delayed_queue', p_kind);
        END IF;
    END IF;
    RETURN CASE WHEN coalesce(p_max_wait, p_delay) IS NULL THEN coalesce(v_outcome, 'IGNORED')
        ELSE coalesce(v_outcome, 'IGNORED') || ' ' || coalesce(v_at, p_at) END;
END
$$;
