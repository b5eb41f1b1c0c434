"""What ``manage.py check`` says about a project that uses the queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error
from django.db import connections

from delayed_queue.conf import SETTING, mistakes, settings

OLDEST_POSTGRESQL = 14


def check_settings(**kwargs: Any) -> list[CheckMessage]:
    found = mistakes(getattr(django_settings, SETTING, {}))
    return [Error(sentence, hint=hint, id="delayed_queue.E001") for sentence, hint in found]


def check_database(**kwargs: Any) -> list[CheckMessage]:
    if check_settings():
        return []
    alias = settings.DATABASE
    if alias not in django_settings.DATABASES:
        return [
            Error(
                f"{SETTING}['DATABASE'] is {alias!r}, which is not in DATABASES.",
                hint=f"Use one of: {', '.join(django_settings.DATABASES)}.",
                id="delayed_queue.E002",
            )
        ]
    if connections[alias].vendor != "postgresql":
        return [
            Error(
                f"The queue's database {alias!r} is {connections[alias].display_name}; it needs PostgreSQL.",
                hint=f"Add a PostgreSQL database to DATABASES and name it in {SETTING}['DATABASE'].",
                id="delayed_queue.E003",
            )
        ]
    return []


def check_server(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Only with ``check --database``, because it connects."""
    if check_settings() or check_database() or settings.DATABASE not in (databases or ()):
        return []
    connection = connections[settings.DATABASE]
    connection.ensure_connection()
    version = connection.connection.info.server_version // 10000
    if version >= OLDEST_POSTGRESQL:
        return []
    return [
        Error(
            f"The queue's database runs PostgreSQL {version}; it needs {OLDEST_POSTGRESQL} or newer.",
            id="delayed_queue.E004",
        )
    ]


def check_task_backend(
    alias: str, mistakes: Iterable[tuple[str, str | None]], database: str | None
) -> list[CheckMessage]:
    """Of a DelayedQueueBackend in TASKS, which finds the mistakes in its OPTIONS itself."""
    found: list[CheckMessage] = [Error(sentence, hint=hint, id="delayed_queue.E005") for sentence, hint in mistakes]
    if found or database is None:
        return found
    where = f"TASKS[{alias!r}]['OPTIONS']['database']"
    if database not in django_settings.DATABASES:
        return [
            Error(
                f"{where} is {database!r}, which is not in DATABASES.",
                hint=f"Use one of: {', '.join(django_settings.DATABASES)}.",
                id="delayed_queue.E006",
            )
        ]
    if connections[database].vendor != "postgresql":
        return [
            Error(
                f"{where} is {database!r}, which is {connections[database].display_name}; the queue needs PostgreSQL.",
                hint="Name a PostgreSQL database, or leave it out for that of the queue.",
                id="delayed_queue.E007",
            )
        ]
    return []
