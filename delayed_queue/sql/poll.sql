-- Lease up to p_limit due messages of one kind, highest priority first, then by time, then by id.
--
-- Index   delayed_queue_due (hashtext("pKind"), priority, "scheduledAt", id). One range scan on time for each priority that is
--         present, so that what is not due is never read, whatever its priority. Ordering by priority over one scan of an
--         index that leads with it walks over every future row of a higher priority: 70-145 ms at 1,000,000 rows.
-- Guard   Rows are locked with SKIP LOCKED, then updated by ctid: at most p_limit, and each by one poller only.
--         UPDATE ... WHERE id IN (SELECT ... LIMIT n FOR UPDATE SKIP LOCKED) is not limited to n under stale statistics.
-- Plan    The settings below leave the planner one plan, so that statistics of another day cannot change it, and
--         plpgsql keeps it for the session (also behind PgBouncer). With UPDATE ... FROM cte and statistics from an
--         empty table a poll walked the whole primary key: 40,000 buffers; this one reads about 25.
-- Heads   While a long transaction holds the xmin horizon, the index entries of what was delivered cannot be removed,
--         and a scan from the start reads all of them: 1,304 buffers for 10 rows after 50,000 messages. A poller
--         therefore hands back where it stopped, by priority, and a bounded pass starts there (17 buffers). What landed
--         behind a head since then is found by a sweep, which reads from the start: when the bounded pass comes back
--         short, in the same call, and whenever the poller asks for one (p_bounded false).
--
-- The last row has no id but the progress: the clock in microseconds, when the next message is due if fewer than p_limit
-- were, how many were moved to the dead on the way (expired, or out of attempts), and the heads for the next poll.
CREATE OR REPLACE FUNCTION delayed_queue_poll(
    p_kind text,
    p_limit integer,
    p_lease bigint,             -- milliseconds
    p_lock_uuid text,
    p_now bigint,               -- NULL: the database's clock
    p_max_attempts integer,     -- for messages without a maximum of their own; NULL: none
    p_bounded boolean,
    p_heads bigint[]            -- priority, "scheduledAt" and id of each, highest priority first
) RETURNS TABLE (
    id bigint,
    key text,
    payload bytea,
    priority smallint,
    attempt integer,
    due_at bigint,              -- "scheduledAt" as it stood before this lease
    scheduled_at_initially bigint,
    created_at bigint,
    progress bigint[]
)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_kind_hash CONSTANT integer := hashtext(p_kind);
    v_lowest CONSTANT bigint := -9223372036854775808;
    v_most_buried CONSTANT integer := 1000;  -- in one call, so that it stays short; the caller comes again
    v_now_us bigint := coalesce(p_now * 1000, floor(extract(epoch FROM statement_timestamp()) * 1000000));
    v_now bigint := coalesce(p_now, v_now_us / 1000);
    v_bounded boolean := p_bounded AND p_heads <> '{}';
    v_wanted integer := p_limit;
    v_buried integer := 0;
    v_full boolean := false;        -- leased all that was wanted, or buried all that one call may
    v_known integer := 1;           -- p_heads from this index on have not been come to in this pass
    v_above smallint := 101;        -- and this pass has done every priority from here up
    v_heads bigint[] := '{}';
    v_priority smallint;
    v_from_at bigint;
    v_from_id bigint;
    v_tids tid[];
    v_dues bigint[];
    v_ids bigint[];
    v_dead boolean;
    v_found integer;
    v_gone integer;
    v_at bigint;
    v_next bigint;
BEGIN
    <<passes>>
    LOOP
        LOOP
            v_priority := p_heads[v_known];  -- NULL past the last
            IF v_bounded THEN
                EXIT WHEN v_priority IS NULL;
                v_from_at := p_heads[v_known + 1];
                v_from_id := p_heads[v_known + 2];
                v_known := v_known + 3;
            ELSE
                -- An unknown priority is looked for between the known ones only: a look at a known one's own entries
                -- might read all its dead ones.
                SELECT q.priority INTO v_priority
                FROM delayed_queue q
                WHERE hashtext(q."pKind") = v_kind_hash AND q."pKind" = p_kind
                    AND q.priority < v_above AND q.priority > coalesce(v_priority, -101::smallint)
                ORDER BY q.priority DESC LIMIT 1;
                IF NOT FOUND THEN
                    v_priority := p_heads[v_known];
                    EXIT WHEN v_priority IS NULL;
                    v_known := v_known + 3;
                END IF;
                v_above := v_priority;
                v_from_at := v_lowest;
                v_from_id := 0;
            END IF;

            -- Take what is due. More than once only where dead messages stood among them.
            LOOP
                SELECT array_agg(due.ctid), array_agg(due."scheduledAt"), array_agg(due.id), bool_or(due.dead), count(*)
                INTO v_tids, v_dues, v_ids, v_dead, v_found
                FROM (
                    SELECT q.ctid, q."scheduledAt", q.id,
                        q."expiresAt" <= v_now
                        OR q.attempts >= coalesce(q."maxAttempts", p_max_attempts)
                        AND q."scheduledAt" <> q."scheduledAtInitially" AS dead
                    FROM delayed_queue q
                    WHERE hashtext(q."pKind") = v_kind_hash AND q."pKind" = p_kind
                        AND q.priority = v_priority AND q."scheduledAt" <= v_now
                        AND (q."scheduledAt", q.id) >= (v_from_at, v_from_id)
                    ORDER BY q."scheduledAt", q.id
                    LIMIT v_wanted
                    FOR UPDATE SKIP LOCKED
                ) due;
                EXIT WHEN v_found = 0;
                v_from_at := v_dues[v_found];
                v_from_id := v_ids[v_found];
                v_gone := 0;

                IF v_dead THEN
                    WITH gone AS (
                        DELETE FROM delayed_queue q
                        WHERE q.ctid = ANY (v_tids) AND (
                            q."expiresAt" <= v_now
                            OR q.attempts >= coalesce(q."maxAttempts", p_max_attempts)
                            AND q."scheduledAt" <> q."scheduledAtInitially"
                        )
                        RETURNING q.*
                    )
                    INSERT INTO delayed_queue_dead (
                        kind, key, payload, priority, attempts, max_attempts, scheduled_at_initially, created_at,
                        first_offered_at, expires_at, reason, error, died_at
                    )
                    SELECT gone."pKind", gone."pKey", gone.payload, gone.priority, gone.attempts, gone."maxAttempts",
                        gone."scheduledAtInitially", gone."createdAt", gone."firstOfferedAt", gone."expiresAt",
                        CASE WHEN gone."expiresAt" <= v_now THEN 'expired' ELSE 'exhausted' END,
                        gone."lastError", v_now
                    FROM gone;
                    GET DIAGNOSTICS v_gone = ROW_COUNT;
                    v_buried := v_buried + v_gone;
                END IF;

                RETURN QUERY
                UPDATE delayed_queue q
                SET "scheduledAt" = greatest(v_now + p_lease, q."scheduledAtInitially" + 1),
                    "lockUuid" = p_lock_uuid,
                    attempts = CASE WHEN q."scheduledAt" = q."scheduledAtInitially" THEN 1 ELSE q.attempts + 1 END
                FROM unnest(v_tids, v_dues) AS due (ctid, at)
                WHERE q.ctid = due.ctid
                RETURNING q.id, q."pKey"::text, q.payload, q.priority, q.attempts, due.at, q."scheduledAtInitially",
                    q."createdAt", NULL::bigint[];
                v_wanted := v_wanted - (v_found - v_gone);
                v_full := v_wanted = 0 OR v_buried >= v_most_buried;
                EXIT WHEN v_full OR v_gone = 0;
            END LOOP;

            IF v_full THEN
                v_heads := v_heads || ARRAY[v_priority, v_from_at, v_from_id];
                EXIT passes;
            END IF;
            v_heads := v_heads || ARRAY[v_priority, v_now, 0];  -- nothing due is left here
        END LOOP;

        EXIT passes WHEN NOT v_bounded;
        v_bounded := false;
        v_known := 1;
        v_heads := '{}';
    END LOOP;

    IF NOT v_full THEN
        FOR i IN 1 .. cardinality(v_heads) BY 3 LOOP
            SELECT q."scheduledAt" INTO v_at
            FROM delayed_queue q
            WHERE hashtext(q."pKind") = v_kind_hash AND q."pKind" = p_kind
                AND q.priority = v_heads[i] AND q."scheduledAt" > v_now
            ORDER BY q."scheduledAt", q.id LIMIT 1;
            v_next := least(v_next, v_at);  -- NULL where there is none
        END LOOP;
    END IF;

    -- Priorities that this call did not come to keep the heads they had.
    progress := ARRAY[v_now_us, v_next, v_buried] || v_heads || p_heads[v_known:];
    RETURN NEXT;
END
$$;
