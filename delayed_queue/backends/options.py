"""``TASKS[alias]["OPTIONS"]``: what holds for all functions of a backend."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from delayed_queue.clocks import Duration
from delayed_queue.errors import InvalidInput
from delayed_queue.retry import Backoff
from delayed_queue.tasks.options import check_backoff, check_journal, seconds
from delayed_queue.validation import check_max_attempts


@dataclass(frozen=True)
class BackendOptions:
    # Deliveries before a task has failed for good; None for no limit. And the wait between them.
    max_attempts: int | None = 10
    backoff: Backoff = Backoff()  # noqa: RUF009  # it is frozen
    # How long a worker holds a message without renewing, and how long a function may run; seconds or timedeltas.
    lease: Duration = 60
    timeout: Duration | None = None
    # Which deliveries get a line of history: "all", "failures" or "none"; None: as DELAYED_QUEUE["JOURNAL"] says.
    journal: str | None = None
    # The alias of the database with the queue; None: DELAYED_QUEUE["DATABASE"].
    database: str | None = None

    def of_task(self) -> dict[str, Any]:
        """For delayed_queue.tasks.Task."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "database"}


def _check_database(database: Any) -> None:
    if database is not None and (not isinstance(database, str) or not database):
        raise InvalidInput(f"database must be an alias of DATABASES, or None, not {database!r}.")


CHECKS: dict[str, Callable[[Any], object]] = {
    "max_attempts": check_max_attempts,
    "backoff": check_backoff,
    "lease": lambda lease: seconds(lease, "lease"),
    "timeout": lambda timeout: None if timeout is None else seconds(timeout, "timeout"),
    "journal": check_journal,
    "database": _check_database,
}


def mistakes(alias: str, options: Any) -> Iterator[tuple[str, str | None]]:
    """What is wrong with the OPTIONS: pairs of a sentence and a hint."""
    where = f"TASKS[{alias!r}]['OPTIONS']"
    if not isinstance(options, dict):
        yield f"{where} must be a dict, not {type(options).__name__}.", None
        return
    for name, given in options.items():
        if name not in CHECKS:
            near = difflib.get_close_matches(str(name).lower(), CHECKS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(CHECKS)}."
            yield f"{where} has an unknown key {name!r}.", hint
            continue
        try:
            CHECKS[name](given)
        except InvalidInput as error:
            yield f"{where}: {error}", None
