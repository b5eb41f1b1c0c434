-- Make the partitions of delayed_queue_delivery for today and p_ahead days after it (UTC), and drop those that are wholly
-- older than p_retention_days. Returns what was done: 'made delayed_queue_delivery_20260101', 'dropped ...'.
--
-- One     Any number of processes may call it; one works, the others return with nothing. What was left undone because a lock
--         was not free is done by a later call: there are days until it matters, and then there is the default partition.
-- Acks    They insert into the parent and today's partition. Making a partition takes locks beside which that goes on: SHARE
--         UPDATE EXCLUSIVE on the parent, where CREATE TABLE ... PARTITION OF takes ACCESS EXCLUSIVE, and ACCESS EXCLUSIVE on
--         the default partition, which an insert does not touch unless its day is missing. Dropping one needs ACCESS
--         EXCLUSIVE on the parent, and who waits for that holds up all that come after: hence lock_timeout, which is the
--         longest that an ack can be held up by it, and the drops come last, as locks are kept until the end. (DETACH ...
--         CONCURRENTLY does not work in a function, nor beside a default partition.)
-- Order   The parent, then the default partition, as an insert locks them.
-- Default What fell into it for want of a partition is moved in the step that makes the partition, also for days gone by;
--         what is older than the retention is deleted from it.
CREATE OR REPLACE FUNCTION delayed_queue_make_partitions(
    p_ahead integer,
    p_retention_days integer,
    p_now bigint DEFAULT NULL   -- milliseconds; NULL: the database's clock
) RETURNS text[]
LANGUAGE plpgsql
SET lock_timeout = '100ms'
AS $$
DECLARE
    v_day_ms CONSTANT bigint := 86400000;
    v_parent CONSTANT regclass := 'delayed_queue_delivery';
    v_now CONSTANT bigint := coalesce(p_now, floor(extract(epoch FROM statement_timestamp()) * 1000));
    v_today CONSTANT bigint := v_now / v_day_ms;
    v_oldest CONSTANT bigint := v_now - p_retention_days * v_day_ms;
    v_done text[] := '{}';
    v_schema name;
    v_owner name;
    v_default text;
    v_table text;
    v_name text;
    v_date text;
    v_day bigint;
    v_days bigint[];
    v_rows bigint;
BEGIN
    IF p_ahead IS NULL OR p_ahead < 0 OR p_retention_days IS NULL OR p_retention_days < 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'The days ahead and the days of retention must be 0 or more, not %s and %s.', p_ahead, p_retention_days
        );
    END IF;
    IF NOT pg_try_advisory_xact_lock(hashtext('delayed_queue_make_partitions'), v_parent::oid::integer) THEN
        RETURN v_done;
    END IF;

    SELECT n.nspname, pg_get_userbyid(c.relowner) INTO v_schema, v_owner
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = v_parent;
    v_default := format('%I.delayed_queue_delivery_default', v_schema);

    BEGIN
        EXECUTE format('DELETE FROM %s WHERE finished_at < $1', v_default) USING v_oldest;
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        IF v_rows > 0 THEN
            v_done := v_done || format('deleted %s from delayed_queue_delivery_default', v_rows);
        END IF;
        EXECUTE format('SELECT array(SELECT DISTINCT finished_at / $1 FROM %s WHERE finished_at < $2 * $1)', v_default)
        INTO v_days USING v_day_ms, v_today;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        RETURN '{}';  -- the steps below need the same table
    END;

    FOR v_day IN SELECT unnest(v_days) UNION SELECT generate_series(v_today, v_today + p_ahead) ORDER BY 1 LOOP
        v_date := to_char(to_timestamp(v_day * v_day_ms / 1000) AT TIME ZONE 'UTC', 'YYYYMMDD');
        v_name := 'delayed_queue_delivery_' || v_date;
        v_table := format('%I.%I', v_schema, v_name);
        CONTINUE WHEN to_regclass(v_table) IS NOT NULL;
        BEGIN
            EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', v_parent);
            EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', v_default);
            EXECUTE format(
                'CREATE TABLE %s (LIKE %s INCLUDING ALL EXCLUDING IDENTITY EXCLUDING INDEXES)', v_table, v_parent
            );
            IF v_owner <> current_user THEN  -- a member of the owner's role; another member must be able to drop it
                EXECUTE format('ALTER TABLE %s OWNER TO %I', v_table, v_owner);
            END IF;
            EXECUTE format(
                'WITH moved AS (DELETE FROM %s WHERE finished_at >= $1 AND finished_at < $2 RETURNING *)
                INSERT INTO %s SELECT * FROM moved',
                v_default, v_table
            ) USING v_day * v_day_ms, (v_day + 1) * v_day_ms;
            -- Under a name of its own, because the one that ATTACH would give it is longer than 30 characters.
            EXECUTE format('CREATE INDEX %I ON %s (hashtext(key))', 'delayed_queue_dlv_' || v_date, v_table);
            EXECUTE format(
                'ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)',
                v_parent, v_table, v_day * v_day_ms, (v_day + 1) * v_day_ms
            );
            v_done := v_done || ('made ' || v_name);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            EXIT;  -- the others need the same locks
        END;
    END LOOP;

    FOR v_name, v_table IN
        SELECT c.relname, c.oid::regclass
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = v_parent
            AND substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO \(''(-?\d+)''\)')::bigint <= v_oldest
        ORDER BY c.relname
    LOOP
        BEGIN
            EXECUTE format('DROP TABLE %s', v_table);
            v_done := v_done || ('dropped ' || v_name);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            EXIT;
        END;
    END LOOP;
    RETURN v_done;
END
$$;
