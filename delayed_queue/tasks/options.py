"""The options of a task, checked where it is declared: a mistake is found when its module is imported, not at 3 a.m."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from delayed_queue.clocks import Duration, positive_ms
from delayed_queue.errors import InvalidInput
from delayed_queue.kinds import NAMESPACE_SEPARATOR
from delayed_queue.retry import Backoff
from delayed_queue.validation import LONGEST_KIND, check_kind

# Which deliveries are written to the history; None: as the settings say.
JOURNALS = ("all", "failures", "none")


def check_function(function: Any) -> None:
    if not inspect.isfunction(function):
        raise InvalidInput(
            f"@delayed_task goes on a function, not on {function!r}. Its options are given by name: "
            "@delayed_task(kind=..., max_attempts=...)."
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{function.__qualname__} is a generator: a call would not run it. Take the yield out.")


def task_kind(function: Callable[..., Any], kind: str | None, namespace: str | None) -> str:
    """``module.function`` where no kind is given, after ``namespace|`` where that is."""
    if namespace is not None:
        check_kind(namespace, what="namespace")
        if NAMESPACE_SEPARATOR in namespace:
            raise InvalidInput(
                f"The namespace {namespace!r} contains '|', which ends a namespace. Use another character."
            )
        if kind is not None and NAMESPACE_SEPARATOR in check_kind(kind):
            raise InvalidInput(
                f"The kind {kind!r} names a namespace before its '|', and namespace={namespace!r} names one, too. "
                "Give one of them."
            )
    name = _default_name(function) if kind is None else check_kind(kind)
    full = name if namespace is None else f"{namespace}{NAMESPACE_SEPARATOR}{name}"
    if len(full) > LONGEST_KIND:
        raise InvalidInput(
            f"The kind {full!r} has {len(full)} characters; {LONGEST_KIND} is the most. Give the task a shorter kind=."
        )
    return check_kind(full)


def _default_name(function: Callable[..., Any]) -> str:
    if "<locals>" in function.__qualname__ or "<lambda>" in function.__qualname__:
        raise InvalidInput(
            f"{function.__module__}.{function.__qualname__} has no name that a worker could find it by. "
            "Give it a kind=, or move it to the level of its module."
        )
    return f"{function.__module__}.{function.__qualname__}"


def check_aliases(aliases: Iterable[str]) -> tuple[str, ...]:
    if isinstance(aliases, str):
        raise InvalidInput(f"aliases must be a list of kinds: [{aliases!r}], not {aliases!r}.")
    return tuple(check_kind(alias) for alias in aliases)


def check_backoff(backoff: Backoff) -> Backoff:
    if not isinstance(backoff, Backoff):
        raise InvalidInput(f"backoff must be a Backoff, as in Backoff(initial=5), not {backoff!r}.")
    return backoff


def check_atomic(function: Callable[..., Any], atomic: bool) -> bool:
    if type(atomic) is not bool:
        raise InvalidInput(f"atomic must be True or False, not {atomic!r}.")
    if atomic and inspect.iscoroutinefunction(function):
        raise InvalidInput(
            f"atomic=True needs a plain function, and {function.__qualname__} is async: Django's transactions belong "
            "to a thread. Make it a plain def, or leave atomic out."
        )
    return atomic


def check_journal(journal: str | None) -> str | None:
    if journal is not None and journal not in JOURNALS:
        raise InvalidInput(f"journal must be one of {', '.join(map(repr, JOURNALS))}, or None, not {journal!r}.")
    return journal


def seconds(duration: Duration, what: str) -> float:
    return positive_ms(duration, what) / 1000
