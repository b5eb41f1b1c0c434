"""Running the queue's statements on Django's connection, prepared where that is safe.

Django's own cursors put the values into the text of a statement, and PostgreSQL parses and plans it each time. For
what is called once for every message that is most of the cost: a single offer takes 270 us that way and 190 us
prepared, of which the commit is about 100. The statements go through Django's CursorWrapper all the same, so that its
logging, its wrappers and its errors are what people are used to.

Prepared statements live in a session, and behind a pooler in transaction mode the next transaction may be in
another one. A pooler is recognised: the backend that answers is not the one that greeted us. A connection that is used
only seldom, as by a web request with one of its own, is not asked for more than the statement itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from django.db import Error as DjangoDatabaseError

from delayed_queue.conf import settings
from delayed_queue.sql.statements import PREPARED

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

R = TypeVar("R")
USES_BEFORE_PREPARING = 5
PREPARED_STATEMENT_IS_GONE = "26000"


def run(connection: BaseDatabaseWrapper, fetch: Callable[[Any], R], statement: str, parameters: Any) -> R:
    """Execute the statement and fetch from its cursor."""
    if connection.health_check_enabled:  # type: ignore[attr-defined]
        connection.close_if_health_check_failed()
    session = _session(connection)
    if session.is_busy:  # an execute_wrapper, or a signal handler, has work of its own
        session = _Session(connection)
    cursor = connection.make_debug_cursor(session.cursor) if connection.queries_logged else session.wrapped_cursor
    session.is_busy = True
    try:
        if statement in PREPARED and (session.is_ours or (session.is_ours is None and session.decide())):
            # Only for this statement: what else runs on the connection is Django's to decide.
            session.connection.prepare_threshold = 0
            try:
                cursor.execute(statement, parameters)
            except DjangoDatabaseError as error:
                session.execute_unprepared_after(error, cursor, statement, parameters)
            finally:
                session.connection.prepare_threshold = None
        else:
            cursor.execute(statement, parameters)
        return fetch(session.cursor)
    finally:
        session.is_busy = False


def run_for_many(connection: BaseDatabaseWrapper, fetch: Callable[[Any], R], statement: str, parameters: Any) -> R:
    """As run(), for what may return much: the kept cursor would hold on to it until it is used again."""
    found = run(connection, fetch, statement, parameters)
    _session(connection).renew_cursor()
    return found


def is_direct(connection: BaseDatabaseWrapper) -> bool:
    """Whether the next transaction is in the same session, so that something can be left in it: no pooler between."""
    return _session(connection).is_direct()


def _session(connection: BaseDatabaseWrapper) -> _Session:
    if connection.connection is None or asyncio._get_running_loop() is not None:
        connection.ensure_connection()  # which refuses to work in an event loop
    session: _Session | None = connection.__dict__.get("_delayed_queue_session")
    if session is None or session.connection is not connection.connection:
        session = _Session(connection)
        connection._delayed_queue_session = session  # type: ignore[attr-defined]
    return session


class _Session:
    """One connection to the server, with a cursor that is kept, because making one costs as much as using it."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection: psycopg.Connection[Any] = connection.connection
        self._make_cursor = connection.make_cursor
        self.renew_cursor()
        self.is_busy = False
        self._uses = 0
        self._is_direct: bool | None = None
        self._django_errors = connection.wrap_database_errors
        # None: not known yet. A connection for which the project has set a threshold prepares by that.
        self.is_ours: bool | None = None if self.connection.prepare_threshold is None else False

    def renew_cursor(self) -> None:
        cursor: Any = psycopg.Cursor(self.connection)
        cursor.format = psycopg.pq.Format.BINARY  # numbers and payloads need not become text and numbers again
        self.cursor = cursor
        self.wrapped_cursor = self._make_cursor(cursor)

    def execute_unprepared_after(
        self, error: DjangoDatabaseError, cursor: Any, statement: str, parameters: Any
    ) -> None:
        """Someone has run DISCARD ALL or DEALLOCATE, and may again: this session is not prepared for any more."""
        if getattr(error.__cause__, "sqlstate", None) != PREPARED_STATEMENT_IS_GONE:
            raise error
        self.connection.prepare_threshold = None
        self.is_ours = False
        if self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            raise error
        cursor.execute(statement, parameters)

    def decide(self) -> bool:
        self._uses += 1
        if self._uses <= USES_BEFORE_PREPARING:
            return False
        self.is_ours = settings.PREPARE and self.is_direct()
        return self.is_ours

    def is_direct(self) -> bool:
        if self._is_direct is None:
            # A lost connection is found here as it is by any other statement, but this one is not in anyone's count.
            with self._django_errors:
                self.cursor.execute("SELECT pg_backend_pid()")
            self._is_direct = self.cursor.fetchone() == (self.connection.info.backend_pid,)
        return self._is_direct
