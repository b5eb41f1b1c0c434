"""What can go wrong, and which of it passes by itself."""

from __future__ import annotations

import psycopg
from django.db import Error as DjangoDatabaseError
from django.db import InterfaceError, OperationalError

# Class 08 (connection) as a whole, and these: serialization failure, deadlock, too many connections, lock not
# available, and a server that is going down, crashed, or coming up. 57014 (statement timeout or a person's cancel) and
# 25006 (read-only after a failover) are no accident of the moment: trying again gives the same answer.
SERVER_IS_LEAVING = frozenset({"57P01", "57P02", "57P03"})
TRANSIENT_SQLSTATES = frozenset({"40001", "40P01", "53300", "55P03"}) | SERVER_IS_LEAVING


class DelayedQueueError(Exception):
    """The base of the errors of this package."""


class InvalidInput(DelayedQueueError, ValueError):
    """What was given cannot be taken; nothing was sent to the database."""


class UndecodablePayload(DelayedQueueError, ValueError):
    """The bytes of a payload are not what the serializer understands."""


class QueueUnavailable(DelayedQueueError):
    """The database did not answer, however often it was asked. The last error is the cause."""


LONGEST_ERROR_TEXT = 10_000


def error_text(error: object) -> str:
    """What is stored of an error: text that PostgreSQL can keep, and of a long one its end, which tells most."""
    if isinstance(error, BaseException) and not isinstance(error, UndecodablePayload):
        error = f"{type(error).__qualname__}: {error}"
    text = str(error).replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return text if len(text) <= LONGEST_ERROR_TEXT else "…" + text[-LONGEST_ERROR_TEXT:]


def is_transient(error: BaseException) -> bool:
    """Whether the same operation may succeed in a moment."""
    return is_connection_lost(error) or _sqlstate(error) in TRANSIENT_SQLSTATES


def is_connection_lost(error: BaseException) -> bool:
    """A server says why in an SQLSTATE; where there is none, the line was cut or could not be made."""
    if not isinstance(error, DjangoDatabaseError):
        return False
    sqlstate = _sqlstate(error)
    if sqlstate is None:
        return isinstance(error, OperationalError | InterfaceError)
    return sqlstate.startswith("08") or sqlstate in SERVER_IS_LEAVING


def _sqlstate(error: BaseException) -> str | None:
    return error.__cause__.sqlstate if isinstance(error.__cause__, psycopg.Error) else None
