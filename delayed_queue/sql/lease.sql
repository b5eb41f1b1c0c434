-- Lease due messages of many kinds for one worker process, so that no kind starves another.
--
-- Fair    The kinds come in the order of who was served longest ago. Each gets an equal share of the room that is left,
--         what one does not use is shared by those after it, and what is over at the end goes to those that had more.
--         A kind with a million due messages and one with a single one are both served by the same call.
-- Each    kind is a delayed_queue_poll() of its own, with its index, guard, plan and heads. One statement with a LATERAL
--         for each kind was 0.25 ms for 20 idle kinds, this is 1 ms; but a worker asks for all of them only once in a poll
--         period, and otherwise for those that are due or were announced.
-- Limits  Controls are locked in one order, before anything is leased, so that two workers cannot hold more than a limit
--         between them, nor wait for each other in a circle. Where nothing is controlled that is one look at an empty table.
--
-- Rows with a place are the rows of the poll of that kind, the progress row included. A row with a negative place is about
-- a kind with controls: the clock in microseconds, when there is a token again (NULL: that is not what it waits for), 1 if
-- a limit counts what runs, so that slots must be freed when it is over, plus 2 if it is paused; and how many more may
-- start now. A limit of 0 is a pause.
CREATE OR REPLACE FUNCTION delayed_queue_lease(
    p_kinds text[],
    p_pools integer[],          -- of each kind: which of the rooms it takes from
    p_rooms integer[],          -- how many may be leased of all kinds of a pool
    p_leases bigint[],          -- of each kind, milliseconds
    p_max_attempts integer[],   -- of each kind, for messages without a maximum of their own; NULL: none
    p_lock_uuid text,
    p_now bigint,               -- NULL: the database's clock
    p_bounded boolean[],        -- of each kind, for its poll
    p_heads text[]              -- of each kind, for its poll, as the text of an array
) RETURNS TABLE (
    place integer,
    id bigint,
    key text,
    payload bytea,
    priority smallint,
    attempt integer,
    due_at bigint,
    scheduled_at_initially bigint,
    created_at bigint,
    progress bigint[]
)
LANGUAGE plpgsql
SET lock_timeout = '3s'  -- for controls that someone has in an open transaction: sooner than the worker gives up on the line
AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT bigint := coalesce(p_now, floor(extract(epoch FROM statement_timestamp()) * 1000));
    v_now_us CONSTANT bigint := coalesce(p_now * 1000, floor(extract(epoch FROM statement_timestamp()) * 1000000));
    v_controlled CONSTANT boolean := EXISTS (SELECT FROM delayed_queue_control);
    v_left integer[] := p_rooms;
    v_kinds_left integer[] := array_fill(0, ARRAY[cardinality(p_rooms)]);
    v_hungry integer[] := '{}';     -- places of kinds that took all of their share
    v_granted integer[];            -- of each kind, what controls allow; NULL: anything
    v_pool integer;
    v_share integer;
    v_leased integer;
    v_place integer;
    v_again boolean := false;
BEGIN
    IF v_controlled THEN
        v_granted := delayed_queue_grant(p_kinds, v_now);
    END IF;
    FOR v_place IN 1 .. cardinality(p_kinds) LOOP
        v_kinds_left[p_pools[v_place]] := v_kinds_left[p_pools[v_place]] + 1;
        v_hungry := v_hungry || v_place;
    END LOOP;

    LOOP
        DECLARE
            v_asked CONSTANT integer[] := v_hungry;
        BEGIN
            v_hungry := '{}';
            FOREACH v_place IN ARRAY v_asked LOOP
                v_pool := p_pools[v_place];
                v_share := ceil(v_left[v_pool]::numeric / v_kinds_left[v_pool]);
                v_kinds_left[v_pool] := v_kinds_left[v_pool] - 1;
                v_share := least(v_share, v_granted[v_place]);
                CONTINUE WHEN v_share <= 0;

                RETURN QUERY
                SELECT v_place, polled.*
                FROM delayed_queue_poll(
                    p_kinds[v_place], v_share, p_leases[v_place], p_lock_uuid, p_now, p_max_attempts[v_place],
                    p_bounded[v_place], p_heads[v_place]::bigint[]
                ) AS polled;
                GET DIAGNOSTICS v_leased = ROW_COUNT;
                v_leased := v_leased - 1;  -- the last one is the progress
                v_left[v_pool] := v_left[v_pool] - v_leased;
                IF v_controlled AND v_leased > 0 THEN
                    PERFORM delayed_queue_count(p_kinds[v_place], v_leased, p_lock_uuid, p_leases[v_place], v_now);
                    v_granted := delayed_queue_grant(p_kinds, v_now);  -- kinds of a namespace may share a limit
                END IF;
                IF v_leased = v_share THEN
                    v_hungry := v_hungry || v_place;
                END IF;
            END LOOP;
        END;
        EXIT WHEN v_again OR v_hungry = '{}';
        v_again := true;
        v_kinds_left := array_fill(0, ARRAY[cardinality(p_rooms)]);
        FOREACH v_place IN ARRAY v_hungry LOOP
            v_kinds_left[p_pools[v_place]] := v_kinds_left[p_pools[v_place]] + 1;
        END LOOP;
    END LOOP;

    IF v_controlled THEN
        RETURN QUERY
        SELECT -held.place, NULL::bigint, NULL::text, NULL::bytea, NULL::smallint, NULL::integer, NULL::bigint,
            NULL::bigint, NULL::bigint, ARRAY[v_now_us, held.again_at, held.flags, v_granted[held.place]]
        FROM (
            SELECT kinds.place::integer AS place,
                CASE WHEN bool_or(control.paused) OR coalesce(min(control.max_running), 1) <= 0 THEN NULL
                    ELSE max(control.tokens_at
                        + ceil((1 - control.tokens) * control.rate_period / control.rate)::bigint)
                        FILTER (WHERE control.tokens < 1)
                END AS again_at,
                least(count(control.max_running), 1)::bigint + CASE WHEN bool_or(control.paused OR control.max_running = 0) THEN 2 ELSE 0 END AS flags
            FROM unnest(p_kinds) WITH ORDINALITY AS kinds (kind, place)
            JOIN delayed_queue_control control
                ON control.name = CASE control.scope
                    WHEN 'kind' THEN kinds.kind ELSE delayed_queue_namespace(kinds.kind) END
            GROUP BY kinds.place
        ) AS held
        WHERE held.flags > 0 OR coalesce(v_granted[held.place], 1) <= 0;
    END IF;
END
$$;
