"""The waker: what the fetcher waits on. A NOTIFY, another thread of the process, or the time."""

from __future__ import annotations

import logging
import os
import select
import time
from typing import Any

import psycopg
from django.db import Error as DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from delayed_queue import sessions
from delayed_queue.bells import CHANNEL, LARGEST_SELECTABLE
from delayed_queue.conf import settings

logger = logging.getLogger("delayed_queue.workers")


class Waker:
    """Listens on the fetcher's own connection: one fewer for each process. What arrives during a statement is kept."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._line: psycopg.Connection[Any] | None = None
        self._heard_of: set[str] = set()

    def start_listening(self, connection: BaseDatabaseWrapper) -> bool:
        """True if it listens from now on; the caller then looks once more before it waits."""
        line = connection.connection
        if not settings.LISTEN or line is None or line is self._line:
            return False
        self._line = None
        try:
            if not sessions.is_direct(connection):
                return False
            with connection.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
        except DatabaseError as error:
            logger.debug("Cannot listen: %s", error)  # the next lease will find out, and try again
            return False
        self._line = connection.connection
        return True

    def wake(self) -> None:
        """From any thread."""
        try:
            os.write(self._writer, b"!")
        except BlockingIOError:
            pass  # it is awake, and has not looked yet
        except OSError:
            pass  # it has stopped

    def wait(self, until: float) -> set[str]:
        """Wait for the moment, or to be woken. Returns the kinds that were announced; "" stands for all."""
        while (remaining := until - time.monotonic()) > 0:
            heard = self.hear()
            if heard:
                return heard
            descriptors = [self._reader]
            if self._line is not None:
                descriptors.append(self._line.fileno())
            readable = _wait_readable(descriptors, remaining)
            if self._reader in readable:
                self._empty_pipe()
                return self.hear()
        return self.hear()

    def hear(self) -> set[str]:
        """What was announced since the last time, without waiting."""
        line = self._line
        if line is None:
            return set()
        try:
            return {notify.payload for notify in line.notifies(timeout=0)}
        except (psycopg.Error, OSError):
            self._line = None
            return {""}  # the line is lost: the next lease finds out, and connects anew

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)

    def _empty_pipe(self) -> None:
        try:
            while len(os.read(self._reader, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass


def _wait_readable(descriptors: list[int], seconds: float) -> list[int]:
    """select() has microseconds; poll() only milliseconds, but knows descriptors above 1023."""
    if max(descriptors) <= LARGEST_SELECTABLE:
        return select.select(descriptors, [], [], seconds)[0]
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(seconds * 1000)]
