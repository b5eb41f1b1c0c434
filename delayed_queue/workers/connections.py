"""The connections of handlers: kept from message to message, and never handed on broken.

Django closes a connection after each request unless CONN_MAX_AGE says otherwise. A thread that handles thousands of
messages keeps its own: connecting takes longer than most handlers. An age that the project has set is heeded.
"""

from __future__ import annotations

import select
import time

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from delayed_queue.workers import lines


def tidy() -> bool:
    """After a handler. False if it left a transaction open, and this thread must not run another one."""
    is_tidy = True
    for connection in connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        if connection.in_atomic_block:
            is_tidy = False
        elif connection.get_autocommit() != connection.settings_dict["AUTOCOMMIT"]:
            connection.close()
        elif connection.errors_occurred:
            with lines.watched(connection):
                is_usable = connection.is_usable()
            if is_usable:
                connection.errors_occurred = False
            else:
                connection.close()
        elif connection.settings_dict["OPTIONS"].get("pool"):
            connection.close()  # back to the pool
        elif connection.settings_dict["CONN_MAX_AGE"] and _is_obsolete(connection):
            connection.close()
        connection.health_check_done = False  # type: ignore[attr-defined]
    return is_tidy


def drop_severed() -> None:
    """Before a handler: a server that went away has left the end of the stream to read, and nothing else would be.

    So that a restart of the database does not cost every thread's next message an attempt. A line that went silent
    leaves nothing: those that were there when another one did are not trusted, as a handler might wait for ever.
    """
    is_suspect = lines.are_suspect()
    for connection in connections.all(initialized_only=True):
        line = connection.connection
        if line is None or connection.in_atomic_block or connection.vendor != "postgresql":
            continue
        if line.closed or is_suspect or _is_readable(line.fileno()):
            connection.close()


def _is_obsolete(connection: BaseDatabaseWrapper) -> bool:
    return connection.close_at is not None and time.monotonic() >= connection.close_at


def _is_readable(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))
