from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from delayed_queue import DelayedQueue

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class FrozenClock:
    """A clock that moves when it is told to."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def queue(db: None, clock: FrozenClock) -> DelayedQueue[str]:
    return DelayedQueue("reminders", clock=clock, acquire_timeout=60)


@pytest.fixture
def row(db: None) -> Callable[[str], dict[str, Any] | None]:
    """The row of a key, by column name."""

    def read(key: str) -> dict[str, Any] | None:
        with connection.cursor() as cursor:
            cursor.execute('SELECT * FROM delayed_queue WHERE "pKey" = %s', [key])
            values = cursor.fetchone()
            return None if values is None else dict(zip([c.name for c in cursor.description], values, strict=True))

    return read


def connect() -> psycopg.Connection[Any]:
    """A connection to the test database that is not Django's."""
    parameters = connection.get_connection_params()
    kept = ("host", "port", "user", "password", "dbname", "options")
    return psycopg.connect(**{name: parameters[name] for name in kept if name in parameters}, autocommit=True)


@pytest.fixture
def other_connection(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    with connect() as other:
        yield other
