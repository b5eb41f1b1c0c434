"""Trying again: database operations that failed for the moment, and messages whose handling failed."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from django.db import Error as DatabaseError

from delayed_queue.clocks import Duration, duration_ms, positive_ms
from delayed_queue.errors import InvalidInput, QueueUnavailable, is_connection_lost, is_transient

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

R = TypeVar("R")
logger = logging.getLogger("delayed_queue")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait after the n-th failure: ``initial * factor ** (n - 1)``, at most ``maximum``.

    ``jitter`` takes up to that part off, at random, so that what failed together does not come back together.
    """

    initial: Duration = 1.0
    factor: float = 2.0
    maximum: Duration = timedelta(hours=1)
    jitter: float = 0.5

    def __post_init__(self) -> None:
        positive_ms(self.initial, "initial")
        positive_ms(self.maximum, "maximum")
        if not self.factor >= 1:
            raise InvalidInput(f"factor must be at least 1, not {self.factor}.")
        if not 0 <= self.jitter <= 1:
            raise InvalidInput(f"jitter must be from 0 to 1, not {self.jitter}.")

    def seconds(self, failures: int) -> float:
        longest = duration_ms(self.maximum, "maximum") / 1000
        # A power that leaves the range of a float is certainly past the maximum.
        try:
            delay = min(longest, duration_ms(self.initial, "initial") / 1000 * self.factor ** (failures - 1))
        except OverflowError:
            delay = longest
        return delay * (1 - self.jitter * random.random())


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How often an operation outside any transaction is tried again after a transient error (R14)."""

    retries: int = 5
    backoff: Backoff = Backoff(initial=0.1, factor=2.0, maximum=5.0, jitter=0.5)
    total: Duration = 30.0


def with_retries(connection: BaseDatabaseWrapper, config: RetryConfig, operation: Callable[[], R]) -> R:
    """Run the operation, again and again while it fails for the moment."""
    started = time.monotonic()
    try:
        return operation()
    except Exception as error:
        return retry_after(error, started, connection, config, operation)


def retry_after(
    error: Exception,
    started: float,
    connection: BaseDatabaseWrapper,
    config: RetryConfig,
    operation: Callable[[], R],
) -> R:
    """Run an operation that began at the monotonic time ``started`` again after this error, unless that is for good.

    Inside the caller's transaction it is: a failure there has undone what the caller did before, and only the caller
    can do that again.
    """
    if in_transaction(connection) or not _may_pass(error, connection):
        raise error
    deadline = started + duration_ms(config.total, "total") / 1000
    for failures in range(1, config.retries + 1):
        _discard_if_lost(connection, error)
        delay = config.backoff.seconds(failures)
        if time.monotonic() + delay > deadline:
            break
        logger.warning("The database failed for the moment, trying again in %.1f s: %s", delay, error)
        time.sleep(delay)
        try:
            return operation()
        except Exception as failure:
            if not _may_pass(failure, connection):
                raise
            error = failure
    _discard_if_lost(connection, error)
    raise QueueUnavailable(f"The database {connection.alias!r} did not answer: {error}") from error


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction of the caller is open: atomic(), or autocommit switched off."""
    return connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)


def _may_pass(error: Exception, connection: BaseDatabaseWrapper) -> bool:
    return is_transient(error) or (isinstance(error, DatabaseError) and _is_closed(connection))


def _is_closed(connection: BaseDatabaseWrapper) -> bool:
    """Whatever the error said, as that of a session that was ended for idleness."""
    return connection.connection is not None and bool(connection.connection.closed)


def _discard_if_lost(connection: BaseDatabaseWrapper, error: Exception) -> None:
    if not is_connection_lost(error) and not _is_closed(connection):
        return
    connection.close()
    pool = getattr(connection, "pool", None)
    if pool is not None:
        # What cut this connection has likely cut its idle neighbours; each would cost a retry.
        pool.check()
