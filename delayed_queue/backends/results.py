"""From the row of a result to Django's value for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from delayed_queue.backends.framework import TaskError, TaskResult, TaskResultStatus, task_backends
from delayed_queue.tasks.calls import load_call

if TYPE_CHECKING:
    from delayed_queue.models import StoredResult


def as_task_result(
    row: StoredResult, func: Callable[..., Any], takes_context: bool, alias: str
) -> TaskResult[..., Any]:
    args, kwargs = load_call(row.call.encode())
    result = TaskResult(
        task=task_backends[alias].task_class(
            func=func,
            priority=row.priority,
            backend=alias,
            queue_name=row.queue_name,
            run_after=row.run_after,
            takes_context=takes_context,
        ),
        id=row.id,
        status=TaskResultStatus[row.status],
        enqueued_at=row.enqueued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        last_attempted_at=row.last_attempted_at,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[TaskError(exception_class_path=error["class"], traceback=error["traceback"]) for error in row.errors],
        worker_ids=list(row.worker_ids),
    )
    object.__setattr__(result, "_return_value", row.value)
    return result
