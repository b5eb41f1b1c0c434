"""Waiting for the NOTIFY that an offer sends, on a connection that is there only for as long as the wait.

The synchronous bell listens on Django's own connection and stops listening before it gives it back; the asynchronous
one opens a connection of its own, because Django's belongs to a thread. Where nothing can be heard (the setting LISTEN
is off, or a transaction is open, in which LISTEN has no effect yet) both just wait; so they do behind a pooler, where
LISTEN would stay behind in a session that is another client's next.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psycopg
from django.db import Error as DjangoDatabaseError

from delayed_queue import sessions
from delayed_queue.conf import settings
from delayed_queue.errors import is_transient
from delayed_queue.retry import in_transaction

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

CHANNEL = "delayed_queue"
LARGEST_SELECTABLE = 1023  # select() has microseconds, poll() only milliseconds, but knows no descriptor above this


class Bell:
    def __init__(self, connection: BaseDatabaseWrapper, kind: str) -> None:
        self._connection = connection
        self._kind = kind
        self._listening: psycopg.Connection[Any] | None = None

    def start_listening(self) -> bool:
        """True if it listens from now on; the caller then looks once more before it waits."""
        if not settings.LISTEN or in_transaction(self._connection) or self._is_listening():
            return False
        try:
            if not sessions.is_direct(self._connection):
                return False
            with self._connection.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
        except DjangoDatabaseError as error:
            if not is_transient(error):
                raise
            return False  # the next look will find out, and try again
        self._listening = self._connection.connection
        return True

    def wait(self, seconds: float) -> None:
        """Return when it rings for the kind, or when the time is over."""
        deadline = time.monotonic() + seconds
        line = self._listening if self._is_listening() else None
        try:
            while (remaining := deadline - time.monotonic()) > 0:
                if line is None:
                    time.sleep(remaining)
                elif _rang_for(self._kind, line.notifies(timeout=0)):
                    return
                else:
                    _wait_readable(line.fileno(), remaining)
        except psycopg.Error:
            return  # the connection is lost; the next look will find out, and try again

    def _is_listening(self) -> bool:
        """Not after a reconnect: the operation that found the connection lost has a new one."""
        return self._listening is not None and self._listening is self._connection.connection

    def __enter__(self) -> Bell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_listening():
            with contextlib.suppress(DjangoDatabaseError), self._connection.cursor() as cursor:
                cursor.execute(f"UNLISTEN {CHANNEL}")


class AsyncBell:
    def __init__(self, connection: BaseDatabaseWrapper, kind: str) -> None:
        self._django_connection = connection
        self._kind = kind
        self._line: psycopg.AsyncConnection[Any] | None = None
        self._is_pooled = False

    async def start_listening(self) -> bool:
        if not settings.LISTEN or self._is_pooled or (self._line is not None and not self._line.broken):
            return False
        parameters = self._django_connection.get_connection_params()
        parameters.pop("cursor_factory", None)
        self._line = None  # a broken one would end each wait at once, for as long as there is no other
        try:
            self._line = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
            answering = await (await self._line.execute("SELECT pg_backend_pid()")).fetchone()
            self._is_pooled = answering != (self._line.info.backend_pid,)
            if not self._is_pooled:
                await self._line.execute(f"LISTEN {CHANNEL}")
                return True
        except psycopg.Error:
            pass  # without it, the poll period has to do
        await self._hang_up()
        return False

    async def wait(self, seconds: float) -> None:
        if self._line is None:
            await asyncio.sleep(seconds)
            return
        try:
            async for notify in self._line.notifies(timeout=max(0.0, seconds)):
                if notify.payload == self._kind:
                    return
        except psycopg.Error:
            return

    async def __aenter__(self) -> AsyncBell:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._hang_up()

    async def _hang_up(self) -> None:
        if self._line is not None:
            await self._line.close()
            self._line = None


def _rang_for(kind: str, notifies: Iterable[psycopg.Notify]) -> bool:
    heard = [notify.payload for notify in notifies]  # all of them, so that none is left over
    return kind in heard


def _wait_readable(descriptor: int, seconds: float) -> None:
    if descriptor <= LARGEST_SELECTABLE:
        select.select([descriptor], [], [], seconds)
    else:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(seconds * 1000)
