-- The namespace of a kind, as kinds.namespace_of().
CREATE OR REPLACE FUNCTION delayed_queue_namespace(p_kind text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN strpos(p_kind, '|') > 0 THEN split_part(p_kind, '|', 1) ELSE 'default' END;
