"""``@delayed_task``: make a function a task, and register it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

from delayed_queue.clocks import Duration
from delayed_queue.retry import Backoff
from delayed_queue.tasks.registry import register
from delayed_queue.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")


@overload
def delayed_task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def delayed_task(
    *,
    kind: str | None = None,
    namespace: str | None = None,
    max_attempts: int | None = 10,
    backoff: Backoff = ...,
    lease: Duration = 60,
    timeout: Duration | None = None,
    atomic: bool = False,
    priority: int = 0,
    expires: Duration | None = None,
    journal: str | None = None,
    aliases: Iterable[str] = (),
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def delayed_task(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Bare, or with options:

    - ``kind``: what its messages are stored under, ``module.function`` where not given; ``namespace``: put before it
    - ``max_attempts``: deliveries before a message is dead; None for no limit; ``backoff``: the wait between them
    - ``lease``: how long a worker holds a message without renewing; ``timeout``: how long the function may run
    - ``atomic``: the function and the acknowledgement of its message are one transaction
    - ``priority``, ``expires`` (after the due time): of its messages, where an offer does not say otherwise
    - ``journal``: which deliveries are kept in the history: "all", "failures" or "none"
    - ``aliases``: further kinds that it serves, such as that of before a rename

    Durations are timedeltas or seconds.
    """

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        task = Task(function, **options)
        register(task)
        return task

    return decorate if function is None else decorate(function)
