-- Wake every worker after a change of pauses and limits, whoever made it: a command, the admin, somebody in psql. The empty
-- payload is no kind, and so concerns all.
CREATE OR REPLACE FUNCTION delayed_queue_control_changed() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('delayed_queue', '');
    RETURN NULL;
END
$$;
