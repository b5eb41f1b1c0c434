"""What statements cost, counted by PostgreSQL itself, so that what else the server does is not in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection


@contextmanager
def explained(option: str, times: int = 1) -> Iterator[list[dict[str, Any]]]:
    """The top node of the plan of each statement in the block: it is run before, for EXPLAIN, and rolled back.

    ``times`` is 2 where the first time in a session would count, which reads the catalogs.
    """
    plans: list[dict[str, Any]] = []

    def explain_first(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        raw = connection.connection
        for _ in range(times):
            with raw.transaction(force_rollback=True):
                cursor = psycopg.Cursor(raw)
                cursor.execute(f"EXPLAIN (ANALYZE, {option}, FORMAT JSON) {sql}", params)
                (found,) = cursor.fetchone()[0]
        plans.append(found["Plan"])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain_first):
        yield plans
