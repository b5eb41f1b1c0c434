"""What a command was asked to run."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from delayed_queue.errors import InvalidInput
from delayed_queue.kinds import namespace_of
from delayed_queue.tasks import Task
from delayed_queue.tasks.registry import tasks_by_kind
from delayed_queue.workers.store import ServedKind


@dataclass(frozen=True)
class WorkerOptions:
    database: str = "default"
    threads: int = 8
    batch: int = 500
    lease: float | None = None  # seconds; None: as each task says
    poll_period: float | None = None
    shutdown_timeout: float = 30.0
    until_empty: bool = False
    kinds: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (
            ("threads", 1),
            ("batch", 1),
            ("lease", 0.1),
            ("poll_period", 0.01),
            ("shutdown_timeout", 0),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value < float("inf"):
                raise InvalidInput(f"{name} must be at least {least:g}, not {value!r}.")

    def served_kinds(self) -> list[ServedKind]:
        """New ones at each call, with nothing known about them."""
        chosen = choose(tasks_by_kind(), self.kinds, self.namespaces, self.exclude)
        return [
            ServedKind(kind, task, int((self.lease or task.lease) * 1000), pool=1 if task.is_async else 0)
            for kind, task in sorted(chosen.items())
        ]


def choose(
    tasks: dict[str, Task[..., Any]], kinds: Sequence[str], namespaces: Sequence[str], exclude: Sequence[str]
) -> dict[str, Task[..., Any]]:
    """Those of the kinds (or patterns, as ``shop.*``) and in the namespaces, where such are given, but the excluded."""
    for pattern in (*kinds, *exclude):
        if not any(_matches(kind, pattern) for kind in tasks):
            near = difflib.get_close_matches(pattern, tasks, n=1, cutoff=0.4)
            known = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(tasks)) or 'none'}."
            raise InvalidInput(f"No task serves the kind {pattern!r}. {known}")
    known_namespaces = {namespace_of(kind) for kind in tasks}
    for namespace in namespaces:
        if namespace not in known_namespaces:
            raise InvalidInput(
                f"No task is in the namespace {namespace!r}. Known: {', '.join(sorted(known_namespaces)) or 'none'}."
            )
    return {
        kind: task
        for kind, task in tasks.items()
        if (not kinds or any(_matches(kind, pattern) for pattern in kinds))
        and (not namespaces or namespace_of(kind) in namespaces)
        and not any(_matches(kind, pattern) for pattern in exclude)
    }


def _matches(kind: str, pattern: str) -> bool:
    return kind == pattern or fnmatchcase(kind, pattern)
