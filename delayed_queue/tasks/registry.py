"""Which task serves which kind, in this process."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import autodiscover_modules

from delayed_queue.errors import InvalidInput

if TYPE_CHECKING:
    from delayed_queue.tasks.task import Task

_tasks: dict[str, Task[..., Any]] = {}


def register(task: Task[..., Any]) -> None:
    """Let the task serve its kind and its aliases."""
    found = {kind: _tasks[kind] for kind in task.kinds if kind in _tasks}
    for kind, other in found.items():
        if _name(other) != _name(task):
            raise InvalidInput(
                f"The kind {kind!r} has two handlers: {_where(other)} and {_where(task)}. "
                "Give one of them another kind=, or take the alias away."
            )
    # The same function again is its module being reloaded; what it served before and does not now is forgotten.
    for other in found.values():
        for kind in other.kinds:
            _tasks.pop(kind, None)
    for kind in task.kinds:
        _tasks[kind] = task


def tasks_by_kind() -> dict[str, Task[..., Any]]:
    """Every kind that is served here, aliases included, with its task."""
    return dict(_tasks)


def find(kind: str) -> Task[..., Any] | None:
    return _tasks.get(kind)


def discover() -> None:
    """Import the ``tasks`` module of every installed app, which registers what is in it."""
    autodiscover_modules("tasks")


@contextmanager
def isolated_registry() -> Iterator[None]:
    """For tests: an empty registry inside the block, and the one from before after it."""
    before = dict(_tasks)
    _tasks.clear()
    try:
        yield
    finally:
        _tasks.clear()
        _tasks.update(before)


def _name(task: Task[..., Any]) -> tuple[str, str, int]:
    """The line, too: a second function of the same name in a module is another function."""
    function = inspect.unwrap(task.function)
    return function.__module__, function.__qualname__, function.__code__.co_firstlineno


def _where(task: Task[..., Any]) -> str:
    module, name, line = _name(task)
    return f"{module}.{name} ({inspect.unwrap(task.function).__code__.co_filename}:{line})"
