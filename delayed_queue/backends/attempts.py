"""One attempt at one task: what is written to its result before its function is called, and after.

The result says what the function did; what becomes of the message is the worker's to say, by the exception that comes
out of the handler. Where the two could differ, as after a crash, StoredResult.objects.look() believes the message.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from delayed_queue.backends.framework import (
    DEFAULT_TASK_QUEUE_NAME,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from delayed_queue.backends.results import as_task_result
from delayed_queue.conf import settings
from delayed_queue.errors import error_text
from delayed_queue.tasks.deliveries import current_delivery
from delayed_queue.tasks.keys import fresh_key
from delayed_queue.tasks.verdicts import DeadLetter, Snooze

if TYPE_CHECKING:
    from delayed_queue.backends.served import BackendTask

logger = logging.getLogger("delayed_queue")

# A task without a limit of attempts would have a result without a limit of length. The newest tell most.
MOST_ERRORS = 20


class Attempt:
    def __init__(self, task: BackendTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._task = task
        self._call = (list(args), dict(kwargs))
        self._delivery = current_delivery()
        self._database: str = task.options.database or settings.DATABASE
        self._is_stored = False
        self._result: TaskResult[..., Any] | None = None

    @property
    def result(self) -> TaskResult[..., Any]:
        assert self._result is not None, "start() makes it"  # noqa: S101
        return self._result

    @property
    def args(self) -> list[Any]:
        context: list[Any] = [TaskContext(task_result=self.result)] if self._task.takes_context else []
        return [*context, *self._call[0]]

    # Before

    def start(self) -> bool:
        """False if the task is done: its result was written, and only the acknowledgement was lost with its worker."""
        from delayed_queue.models import StoredResult

        delivery, task = self._delivery, self._task
        if delivery is not None:
            row = StoredResult.objects.start(
                delivery.key, delivery.kind, worker_of(delivery.lock_uuid), delivery.lock_uuid, using=self._database
            )
            if row is not None:
                if row.is_done:
                    return False
                self._is_stored = True
                # An alias that was renamed meanwhile is that of the settings now.
                alias = row.backend if row.backend in task_backends.settings else task.alias
                self._result = as_task_result(row, task.func, task.takes_context, alias)
        if self._result is None:
            self._result = self._unstored()
        self._send(task_started)
        return True

    def _unstored(self) -> TaskResult[..., Any]:
        """For a message that enqueue() did not offer, such as a schedule's, or whose result was pruned."""
        delivery, task = self._delivery, self._task
        worker_ids: list[str] = []
        if delivery is not None:
            worker_ids = [worker_of(delivery.lock_uuid)] * delivery.attempt  # so that context.attempt is right
        return TaskResult(
            task=task_backends[task.alias].task_class(
                func=task.func,
                priority=0,
                backend=task.alias,
                queue_name=task.namespace if "|" in task.kind else DEFAULT_TASK_QUEUE_NAME,
                run_after=None,
                takes_context=task.takes_context,
            ),
            id=fresh_key() if delivery is None else delivery.key,
            status=TaskResultStatus.RUNNING,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=self._call[0],
            kwargs=self._call[1],
            backend=task.alias,
            errors=[],
            worker_ids=worker_ids,
        )

    # After

    def succeed(self, value: Any) -> None:
        try:
            normal = normalize_json(value)
            text = json.dumps(normal)
        except Exception as error:
            # It ran to its end. To run it again would repeat what it did, and end in the same way.
            self.fail(error, is_final=True)
            raise DeadLetter(f"What {self._task.kind} returned cannot be kept: {error}") from error
        object.__setattr__(self.result, "_return_value", normal)
        if self._finish(TaskResultStatus.SUCCESSFUL, return_value=text):
            self._send(task_finished)

    def fail(self, error: BaseException, is_final: bool = False) -> None:
        """Never raises: the error of the function is what the worker must see."""
        try:
            if isinstance(error, Snooze):
                self._finish(TaskResultStatus.READY)
                return
            self.result.errors.append(_told(error))
            del self.result.errors[:-MOST_ERRORS]
            is_final = is_final or isinstance(error, DeadLetter) or self._is_last
            if self._finish(TaskResultStatus.FAILED if is_final else TaskResultStatus.READY) and is_final:
                self._send(task_finished)
        except Exception:
            logger.exception("The failure of %s could not be written to its result", self.result.id)

    def time_out(self) -> None:
        from delayed_queue.workers.executor import TaskTimeout

        self.fail(TaskTimeout(f"the function ran for more than {self._task.timeout:g} s"))

    @property
    def _is_last(self) -> bool:
        most = self._task.max_attempts
        return self._delivery is None or (most is not None and self._delivery.attempt >= most)

    def _finish(self, status: TaskResultStatus, return_value: str | None = None) -> bool:
        """False if the message is another worker's by now, which has written, or will write, what came of it."""
        from delayed_queue.models import StoredResult

        finished_at = None
        if self._is_stored and self._delivery is not None:
            row = StoredResult.objects.finish(
                self.result.id,
                self._delivery.lock_uuid,
                status=str(status),
                return_value=return_value,
                errors=[
                    {"class": error.exception_class_path, "traceback": error.traceback} for error in self.result.errors
                ],
                using=self._database,
            )
            if row is None:
                return False
            finished_at = row.finished_at
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", finished_at)
        return True

    def _send(self, signal: Any) -> None:
        signal.send_robust(type(task_backends[self.result.backend]), task_result=self.result)


def worker_of(lock_uuid: str) -> str:
    """The id of the worker that holds a lease, as in the table of workers and in the history."""
    return str(int(lock_uuid[:18].replace("-", ""), 16))


def _told(error: BaseException) -> TaskError:
    text = "".join(traceback.format_exception(type(error), error, _from_the_function(error.__traceback__)))
    return TaskError(
        exception_class_path=f"{type(error).__module__}.{type(error).__qualname__}", traceback=error_text(text)
    )


def _from_the_function(frames: TracebackType | None) -> TracebackType | None:
    """How the worker came to call it is of no interest. All of them where it was not the function that raised."""
    frame = frames
    while frame is not None:
        if frame.tb_frame.f_globals.get("__name__") == "delayed_queue.backends.served":
            return frame.tb_next
        frame = frame.tb_next
    return frames
