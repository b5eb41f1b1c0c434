"""Migration operations for what Django's own cannot say."""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations import RunSQL

from delayed_queue.sql import FUNCTIONS, function_source


class RunPostgreSQL(RunSQL):
    """RunSQL that leaves other databases of a project alone, as ``required_db_vendor`` does for models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)


def install_functions(*names: str) -> RunPostgreSQL:
    """Create or replace these functions, or all, as they are in this release.

    A migration thus installs the newest text, not the one of its own day. That is safe because plpgsql looks up columns
    when a function first runs, after all migrations, and it means that each function is written once.
    """
    chosen = [name for name in FUNCTIONS if not names or name in names]
    return RunPostgreSQL(
        [function_source(name) for name in chosen],
        [f"DROP FUNCTION IF EXISTS delayed_queue_{name}" for name in reversed(chosen)],
    )
