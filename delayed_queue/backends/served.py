"""BackendTask: a function of Django's tasks, as a task of the queue."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from delayed_queue.backends.attempts import Attempt
from delayed_queue.backends.framework import Task as FrameworkTask
from delayed_queue.backends.options import BackendOptions
from delayed_queue.kinds import NAMESPACE_SEPARATOR
from delayed_queue.tasks.deliveries import Delivery, current_delivery
from delayed_queue.tasks.options import check_function
from delayed_queue.tasks.registry import find
from delayed_queue.tasks.task import Task
from delayed_queue.twins import in_thread


class BackendTask(Task[..., Any]):
    """One for each kind, that is, for each function and queue. Workers run it as any other task."""

    def __init__(self, kind: str, task: FrameworkTask[..., Any], alias: str, options: BackendOptions) -> None:
        check_function(task.func)
        handler = self._async_handler(task.func) if inspect.iscoroutinefunction(task.func) else self._handler(task.func)
        if task.takes_context:  # which the caller does not give
            signature = inspect.signature(task.func)
            _, *others = signature.parameters.values()
            handler.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        super().__init__(handler, kind=kind, **options.of_task())
        self.func = task.func
        self.takes_context = task.takes_context
        self.alias = alias
        self.options = options

    def serves(self, task: FrameworkTask[..., Any], options: BackendOptions) -> bool:
        return self.func is task.func and self.takes_context == task.takes_context and self.options == options

    def _handler(self, func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def handle(*args: Any, **kwargs: Any) -> None:
            attempt = Attempt(self, args, kwargs)
            if not attempt.start():
                return
            try:
                value = func(*attempt.args, **kwargs)
            except KeyboardInterrupt:  # a person: the message is given back
                raise
            except BaseException as error:
                attempt.fail(error)
                raise
            attempt.succeed(value)

        return handle

    def _async_handler(self, func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        async def handle(*args: Any, **kwargs: Any) -> None:
            attempt = Attempt(self, args, kwargs)
            if not await in_thread(attempt.start):
                return
            try:
                value = await func(*attempt.args, **kwargs)
            except asyncio.CancelledError:
                if self._has_overrun(current_delivery()):
                    await in_thread(attempt.time_out)
                raise
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                await in_thread(attempt.fail, error)
                raise
            await in_thread(attempt.succeed, value)

        return handle

    def _has_overrun(self, delivery: Delivery | None) -> bool:
        """A cancellation is a time-out, or the end of the worker; that gives the message back, and is no failure."""
        if delivery is None or self.timeout is None:
            return False
        return time.monotonic() >= delivery.started + self.timeout


def served_task(kind: str) -> BackendTask:
    """That of the kind, after an import of its module if need be; ImportError if there is none."""
    path = kind.rpartition(NAMESPACE_SEPARATOR)[2]
    found = find(kind)
    if found is None:
        import_module(path.rpartition(".")[0])
        found = find(kind)
    if not isinstance(found, BackendTask):
        raise ImportError(f"{path} is no task of this backend.")
    return found
