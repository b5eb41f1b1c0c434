"""A task's message as it stands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from delayed_queue.clocks import from_ms
from delayed_queue.errors import UndecodablePayload
from delayed_queue.tasks.calls import load_call


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A look at a message, which may be another by now.

    ``state`` is ``scheduled``, ``ready`` (due), ``running`` (leased), ``stalled`` (its lease ran out) or ``dead``.
    ``args`` and ``kwargs`` are None where the payload cannot be read as a call.
    """

    key: str
    kind: str
    state: str
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    # When it is due, or its lease ends; a dead one never is.
    scheduled_at: datetime | None
    # When it was to be delivered at first.
    scheduled_for: datetime
    attempts: int
    priority: int
    # None: as many as the task says.
    max_attempts: int | None
    expires_at: datetime | None
    # Of a dead one: what it died of, and why it is dead.
    last_error: str | None
    reason: str | None
    died_at: datetime | None


def snapshot(kind: str, key: str, row: tuple[Any, ...]) -> TaskMessage:
    """From a row of statements.SNAPSHOT."""
    (
        state, payload, scheduled_at, scheduled_for, attempts, priority, max_attempts, expires_at, last_error,
        reason, died_at,
    ) = row  # fmt: skip
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    try:
        args, kwargs = load_call(payload)
    except UndecodablePayload:
        args = kwargs = None
    return TaskMessage(
        key=key,
        kind=kind,
        state=state,
        args=args,
        kwargs=kwargs,
        scheduled_at=_moment(scheduled_at),
        scheduled_for=from_ms(scheduled_for),
        attempts=attempts,
        priority=priority,
        max_attempts=max_attempts,
        expires_at=_moment(expires_at),
        last_error=last_error,
        reason=reason,
        died_at=_moment(died_at),
    )


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)
