"""Lines to the database that went silent: a call that gets no answer is cut, so that its thread can connect anew.

A connection whose other side has vanished without a word (a firewall that forgot it, a proxy that hangs, a host that
lost its power) keeps a thread waiting for as long as the kernel likes: minutes, or for ever. tcp_user_timeout does not
help where something on the way still confirms the packets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("delayed_queue.workers")

# No statement of a worker takes longer, unless the database is in a state in which a new connection does no harm.
LONGEST_CALL = 7.0
CONNECT_TIMEOUT = 5

_calls: dict[int, tuple[float, BaseDatabaseWrapper]] = {}
_silences = 0  # how often a line of this process was found silent
_known = threading.local()


@contextlib.contextmanager
def watched(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """The statements inside the block are cut if they take too long. Where another line was, this one is made anew at
    once: to find out about each of them in turn took a worker 20 s.
    """
    if not connection.in_atomic_block and are_suspect():
        connection.close()
    me = threading.get_ident()
    _calls[me] = (time.monotonic(), connection)
    try:
        yield
    finally:
        _calls.pop(me, None)
        if connection.queries_logged:  # DEBUG: nobody would look at them, and each has arrays of ids
            connection.queries_log.clear()


def are_suspect() -> bool:
    """Whether a line was found silent since this thread last asked: its own may be, too, and nothing would say so."""
    before, _known.silences = getattr(_known, "silences", 0), _silences
    return before != _silences


def cut_silent_ones() -> None:
    global _silences
    for thread, (since, connection) in list(_calls.items()):
        if time.monotonic() - since < LONGEST_CALL or _calls.get(thread) != (since, connection):
            continue
        line = connection.connection
        if line is None or line.closed:
            continue
        logger.warning("The database has not answered for %d s; the connection is given up", LONGEST_CALL)
        _silences += 1
        with contextlib.suppress(Exception):  # the line may break at this very moment
            # Not close(): another thread is reading from it. It reads the end of the stream, and closes it itself.
            descriptor = os.dup(line.fileno())
            with socket.socket(fileno=descriptor) as line_socket:
                line_socket.shutdown(socket.SHUT_RDWR)


def keep_own(database: str) -> None:
    """A connection of this thread's own, where the project has a pool: a worker's parts would keep theirs for ever, and
    handlers get none.
    """
    connection = connections.create_connection(database)
    if connection.settings_dict["OPTIONS"].get("pool"):
        options = {name: value for name, value in connection.settings_dict["OPTIONS"].items() if name != "pool"}
        connection.settings_dict = connection.settings_dict | {"OPTIONS": options}
        connections[database] = connection


def prepare(database: str) -> None:
    """Connections that this process makes from now on do not wait for ever to be made."""
    options = connections[database].settings_dict["OPTIONS"]
    options.setdefault("connect_timeout", CONNECT_TIMEOUT)
