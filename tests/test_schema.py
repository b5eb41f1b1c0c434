"""Section 2 of the contract: the table, its indexes, and migrations that go both ways."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection

import delayed_queue
from delayed_queue.models import DeadMessage, DelayedMessage
from delayed_queue.sql import FUNCTIONS, function_source

COLUMNS = [
    ("id", "bigint", "NO"),
    ("pKey", "character varying(200)", "NO"),
    ("pKind", "character varying(100)", "NO"),
    ("payload", "bytea", "NO"),
    ("scheduledAt", "bigint", "NO"),
    ("scheduledAtInitially", "bigint", "NO"),
    ("lockUuid", "character varying(36)", "YES"),
    ("createdAt", "bigint", "NO"),
    ("priority", "smallint", "NO"),
    ("attempts", "integer", "NO"),
    ("maxAttempts", "smallint", "YES"),
    ("expiresAt", "bigint", "YES"),
    ("lastError", "text", "YES"),
    ("firstOfferedAt", "bigint", "YES"),
]


@pytest.mark.django_db
def test_the_columns_are_those_of_the_contract_in_its_order() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END
            FROM pg_attribute a WHERE a.attrelid = 'delayed_queue'::regclass AND a.attnum > 0 ORDER BY a.attnum
            """
        )
        assert cursor.fetchall() == COLUMNS


@pytest.mark.django_db
def test_what_the_jvm_never_writes_is_nullable_or_has_a_default() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT column_name FROM information_schema.columns
            WHERE table_name = 'delayed_queue' AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'
            """
        )
        required = {name for (name,) in cursor.fetchall()}
    assert required == {"pKey", "pKind", "payload", "scheduledAt", "scheduledAtInitially", "createdAt"}


@pytest.mark.django_db
def test_the_unique_index_is_a_plain_one_on_the_key_and_the_kind() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT pg_get_indexdef(indexrelid) FROM pg_index
            WHERE indrelid = 'delayed_queue'::regclass AND indisunique AND NOT indisprimary
            """
        )
        ((definition,),) = cursor.fetchall()
    assert definition.endswith('USING btree ("pKey", "pKind")')


@pytest.mark.django_db
def test_the_table_is_vacuumed_before_a_fifth_of_it_is_dead() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE oid = 'delayed_queue'::regclass")
        ((options,),) = cursor.fetchall()
    assert sorted(options) == ["autovacuum_vacuum_scale_factor=0.01", "autovacuum_vacuum_threshold=1000"]


@pytest.mark.django_db
def test_names_fit_into_thirty_characters() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT indexname FROM pg_indexes WHERE tablename LIKE 'delayed_queue%'
            UNION SELECT conname FROM pg_constraint WHERE conrelid::regclass::text LIKE 'delayed_queue%'
            AND contype IN ('u', 'c')
            """
        )
        assert [name for (name,) in cursor.fetchall() if len(name) > 30] == []


def test_the_models_are_the_contracts() -> None:
    assert DelayedMessage._meta.db_table == "delayed_queue"
    assert DeadMessage._meta.db_table == "delayed_queue_dead"
    fields = [field.name for field in DelayedMessage._meta.get_fields()]
    assert fields == [
        "id", "key", "kind", "payload", "scheduled_at", "scheduled_at_initially", "lock_uuid", "created_at",
        "priority", "attempts", "max_attempts", "expires_at", "last_error", "first_offered_at",
    ]  # fmt: skip


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "delayed_queue", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True)
def test_the_migrations_can_be_reversed_and_leave_nothing() -> None:
    try:
        call_command("migrate", "delayed_queue", "zero", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute(
                """
                SELECT relname FROM pg_class WHERE relname LIKE 'delayed_queue%'
                UNION ALL SELECT proname FROM pg_proc WHERE proname LIKE 'delayed_queue%'
                """
            )
            assert cursor.fetchall() == []
    finally:
        call_command("migrate", "delayed_queue", verbosity=0)


def test_other_databases_of_a_project_are_left_alone(tmp_path: Path) -> None:
    databases = {"sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db.sqlite3")}}
    program = f"""
import django
from django.conf import settings
settings.configure(DATABASES={databases | {"default": {}}!r}, INSTALLED_APPS=["delayed_queue"])
django.setup()
from django.core.management import call_command
from django.db import connections
call_command("migrate", "delayed_queue", database="sqlite", verbosity=0, skip_checks=True)
print(connections["sqlite"].introspection.table_names())
"""
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "['django_migrations']"


@pytest.mark.django_db
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_functions_in_the_database_are_those_of_the_files(name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT prosrc FROM pg_proc WHERE proname = %s", [f"delayed_queue_{name}"])
        ((source,),) = cursor.fetchall()
    assert source.strip() in function_source(name)


def test_every_sql_file_is_installed() -> None:
    files = {path.stem for path in (Path(delayed_queue.__file__).parent / "sql").glob("*.sql")}
    assert files == set(FUNCTIONS)


@pytest.mark.django_db
def test_a_priority_out_of_range_is_refused_by_the_database_too() -> None:
    with pytest.raises(Exception, match="delayed_queue_priority"):
        DelayedMessage.objects.create(
            key="k", kind="k", payload=b"", scheduled_at=0, scheduled_at_initially=0, created_at=0, priority=101
        )
