"""What happens to one message: start, decode, call, and judge what came of it.

The executor changes the delivery and nothing else; settling it in the database is the acker's duty. Only an atomic task
is settled here, because its acknowledgement is part of its transaction.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any

from django.db import transaction

from delayed_queue import signals
from delayed_queue.clocks import duration_ms
from delayed_queue.errors import DelayedQueueError, UndecodablePayload, error_text
from delayed_queue.tasks.deliveries import Delivery, _current
from delayed_queue.tasks.verdicts import DeadLetter, Retry, Snooze
from delayed_queue.workers.lines import watched
from delayed_queue.workers.store import Store

LONGEST_SUMMARY = 300
LONGEST_WAIT_FOR_A_LOCK = 3.0


class LeaseLost(DelayedQueueError):
    """The message is another worker's by now; what this handler did in its transaction is undone."""


class MessageLocked(DelayedQueueError):
    """Someone updates the message in a transaction that does not end."""


class TaskTimeout(DelayedQueueError):
    """The handler ran for longer than its task allows."""


class Executor:
    def __init__(self, store: Store) -> None:
        self._store = store

    def execute(self, delivery: Delivery, before_settling: Callable[[], None] | None = None) -> None:
        """Run a plain handler in this thread."""
        delivery.started = time.monotonic()
        try:
            args, kwargs = self._begin(delivery)
            copy_context().run(self._call, delivery, args, kwargs, before_settling)
        except BaseException as error:  # sys.exit() in a handler does not end the worker
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                give_back(delivery)  # a person, in a test or a script: not the handler's doing
                raise
            judge(delivery, error)
        else:
            delivery.outcome = "done"
        delivery.duration_us = int((time.monotonic() - delivery.started) * 1_000_000)

    async def aexecute(self, delivery: Delivery) -> None:
        """Run an ``async def`` handler on this event loop. The caller gives it a context of its own: a task."""
        delivery.started = time.monotonic()
        try:
            args, kwargs = self._begin(delivery)
            _current.set(delivery)
            await delivery.task.function(*args, **kwargs)
        except (asyncio.CancelledError, KeyboardInterrupt):  # why, is known to who did it
            raise
        except BaseException as error:
            judge(delivery, error)
        else:
            delivery.outcome = "done"
        finally:
            delivery.duration_us = int((time.monotonic() - delivery.started) * 1_000_000)

    def _begin(self, delivery: Delivery) -> tuple[list[Any], dict[str, Any]]:
        if signals.delivery_started.receivers:
            signals.send(signals.delivery_started, delivery)
        return delivery.task.arguments(delivery.payload)

    def _call(
        self,
        delivery: Delivery,
        args: list[Any],
        kwargs: dict[str, Any],
        before_settling: Callable[[], None] | None,
    ) -> None:
        _current.set(delivery)
        if not delivery.task.atomic:
            delivery.task.function(*args, **kwargs)
            return
        with ExitStack() as until_committed, transaction.atomic(using=self._store.database):
            # The first to be called after the COMMIT: what the handler has left to do then may take its time.
            transaction.on_commit(until_committed.close, using=self._store.database)
            delivery.task.function(*args, **kwargs)
            if before_settling is not None:
                before_settling()
            delivery.outcome = "done"
            delivery.duration_us = int((time.monotonic() - delivery.started) * 1_000_000)
            until_committed.enter_context(watched(self._store.connection))  # no time-out ends a silent COMMIT any more
            self._finish_with_transaction(delivery)
        delivery.is_settled = True

    def _finish_with_transaction(self, delivery: Delivery) -> None:
        deadline = time.monotonic() + LONGEST_WAIT_FOR_A_LOCK
        while True:
            found = self._store.finish([delivery])
            if found.ours:
                return
            if found.lost:
                raise LeaseLost(f"The lease of {delivery.key} was lost before its handling ended; it is undone")
            if time.monotonic() > deadline:
                raise MessageLocked(f"Another transaction holds {delivery.key} locked; what was done is undone")
            time.sleep(0.01)


def judge(delivery: Delivery, error: BaseException) -> None:
    """What becomes of a message whose handler raised this."""
    delivery.is_settled = False
    delivery.exception = error
    try:
        _judge(delivery, error)
    except Exception as trouble:  # such as an exception whose own text cannot be made
        text = f"{type(error).__qualname__} (and {type(trouble).__qualname__} when it was to be written down)"
        fail(delivery, text, text)


def _judge(delivery: Delivery, error: BaseException) -> None:
    match error:
        case Snooze():
            delivery.outcome, delivery.delay_ms = "snoozed", duration_ms(error.delay, "delay")
        case LeaseLost():
            delivery.outcome, delivery.is_lost = "lost", True
        case DeadLetter():
            delivery.outcome, delivery.reason = "dead", "rejected"
            _keep(delivery, error_text(error.reason), error_text(error.reason))
        case UndecodablePayload():
            delivery.outcome, delivery.reason = "dead", "undecodable"
            _keep(delivery, error_text(error), error_text(error))
        case Retry():
            fail(delivery, error_text(error), error_text(error), error.delay)
        case _:
            fail(delivery, traceback_text(error), error_text(error))


def fail(delivery: Delivery, error: str, summary: str, delay: float | None = None) -> None:
    """To be retried; where no attempt is left, sql/settle.sql makes it dead."""
    delivery.outcome, delivery.reason = "retried", "exhausted"
    seconds = delivery.task.backoff.seconds(max(1, delivery.attempt)) if delay is None else delay
    delivery.delay_ms = int(seconds * 1000)
    _keep(delivery, error, summary)


def give_back(delivery: Delivery) -> None:
    """As if it had not been leased."""
    delivery.outcome, delivery.delay_ms, delivery.error, delivery.summary = "released", 0, None, None


def traceback_text(error: BaseException) -> str:
    """From the handler's own frame on: how the worker came to call it is of no interest."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") == __name__:
        frames = frames.tb_next
    return error_text("".join(traceback.format_exception(type(error), error, frames)).rstrip())


def _keep(delivery: Delivery, error: str, summary: str) -> None:
    delivery.error = error
    first_line = summary.strip().partition("\n")[0]
    delivery.summary = first_line if len(first_line) <= LONGEST_SUMMARY else first_line[:LONGEST_SUMMARY] + "…"
