"""DelayedQueueBackend: what Django asks of a backend for tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from delayed_queue.backends.framework import (
    DEFAULT_TASK_QUEUE_NAME,
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from delayed_queue.backends.options import BackendOptions, mistakes
from delayed_queue.backends.results import as_task_result
from delayed_queue.backends.served import BackendTask, served_task
from delayed_queue.checks import check_task_backend
from delayed_queue.conf import settings
from delayed_queue.errors import InvalidInput
from delayed_queue.kinds import NAMESPACE_SEPARATOR
from delayed_queue.tasks.calls import dump_call
from delayed_queue.tasks.keys import fresh_key
from delayed_queue.tasks.registry import find, register
from delayed_queue.validation import LONGEST_KIND

P = ParamSpec("P")
R = TypeVar("R")


class DelayedQueueBackend(BaseTaskBackend):
    """Each function is a kind of its own: ``module.function``, and ``queue|module.function`` in any queue but
    "default", so that a queue is a namespace. Made when a module with tasks is imported, and so without a model.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        # Told by check() and at enqueue: an exception here would end the import of the project before check() can run.
        self._mistakes = list(mistakes(alias, self.options))
        self._options = BackendOptions() if self._mistakes else BackendOptions(**self.options)

    @property
    def database(self) -> str:
        return self._options.database or str(settings.DATABASE)

    # Registering: at each Task that is made, be it by @task or by using()

    def validate_task(self, task: Task[..., Any]) -> None:
        super().validate_task(task)
        if self._mistakes:
            return
        for queue in self.queues or [task.queue_name]:
            kind = self.kind_of(task, queue)
            known = find(kind)
            if not isinstance(known, BackendTask) or not known.serves(task, self._options):
                self._serve(kind, task, known if isinstance(known, BackendTask) else None)

    def kind_of(self, task: Task[..., Any], queue: str) -> str:
        if queue == DEFAULT_TASK_QUEUE_NAME or not self.queues:
            kind = task.module_path
        elif NAMESPACE_SEPARATOR in queue:
            raise InvalidTask(f"The queue name {queue!r} contains '|', which ends a namespace. Use another character.")
        else:
            kind = f"{queue}{NAMESPACE_SEPARATOR}{task.module_path}"
        if len(kind) > LONGEST_KIND:
            raise InvalidTask(
                f"The function and its queue make the kind {kind!r} of {len(kind)} characters; {LONGEST_KIND} is the "
                "most. Shorten the name of the function, of its module or of the queue."
            )
        return kind

    def _serve(self, kind: str, task: Task[..., Any], known: BackendTask | None) -> None:
        if known is not None and known.alias != self.alias and known.func is task.func and _is_current(known):
            raise InvalidTask(
                f"The backends {known.alias!r} and {self.alias!r} both serve {task.module_path} in one queue, with "
                "different OPTIONS. Give them the same, or one of them other QUEUES."
            )
        try:
            register(BackendTask(kind, task, self.alias, self._options))
        except InvalidInput as error:
            raise InvalidTask(str(error)) from error

    # Enqueueing

    def enqueue(self, task: Task[P, R], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[P, R]:
        """Part of the caller's transaction, if there is one."""
        from delayed_queue.models import StoredResult

        for sentence, hint in self._mistakes:
            raise ImproperlyConfigured(f"{sentence} {hint or ''}".strip())
        self.validate_task(task)
        result: TaskResult[P, R] = TaskResult(
            task=task,
            id=fresh_key(),
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        kind = self.kind_of(task, task.queue_name)
        served = served_task(kind)
        enqueued_at = StoredResult.objects.enqueue(
            id=result.id,
            kind=kind,
            backend=self.alias,
            queue_name=task.queue_name,
            priority=int(task.priority),
            run_after=None if task.run_after is None else _aware(task.run_after),
            call=dump_call(kind, served.signature, result.args, result.kwargs),
            using=self.database,
        )
        object.__setattr__(result, "enqueued_at", enqueued_at)
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    # Results

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        from delayed_queue.models import StoredResult

        row = StoredResult.objects.look(result_id, self.alias, using=self.database)
        if row is None:
            raise TaskResultDoesNotExist(f"There is no result {result_id!r} of the backend {self.alias!r}.")
        try:
            served = served_task(row.kind)
        except ImportError as error:
            raise TaskResultDoesNotExist(f"The result {result_id!r} is of a task that is gone: {error}") from error
        return as_task_result(row, served.func, served.takes_context, self.alias)

    # aenqueue and aget_result are Django's: the same, in the thread that it keeps for database access.

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return check_task_backend(self.alias, self._mistakes, self._options.database)


def _is_current(known: BackendTask) -> bool:
    """Whether its backend is still in the settings, and as it was when it registered the task."""
    backend = task_backends[known.alias] if known.alias in task_backends.settings else None
    return isinstance(backend, DelayedQueueBackend) and backend._options == known.options


def _aware(moment: datetime) -> datetime:
    """Without USE_TZ times are those of TIME_ZONE."""
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment, timezone.get_default_timezone())
