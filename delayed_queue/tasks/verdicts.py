"""What a handler raises to say what becomes of its message. Any other exception is retried by the task's backoff."""

from __future__ import annotations

from delayed_queue.clocks import Duration, duration_ms
from delayed_queue.errors import InvalidInput


class Verdict(Exception):
    """The base of the three."""


class Retry(Verdict):
    """Deliver the message again after the delay; the attempt is spent. Without a delay the task's backoff decides."""

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        super().__init__(delay, reason)
        self.delay = None if delay is None else _seconds(delay)
        self.reason = reason

    def __str__(self) -> str:
        when = "by the backoff" if self.delay is None else f"after {self.delay:g} s"
        return f"to be retried {when}: {self.reason}" if self.reason else f"to be retried {when}"


class Snooze(Verdict):
    """Deliver the message again after the delay, as if this delivery had not been: no attempt is spent."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = _seconds(delay)

    def __str__(self) -> str:
        return f"snoozed for {self.delay:g} s"


class DeadLetter(Verdict):
    """Put the message with the dead ones now, whatever attempts are left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.reason)


def _seconds(delay: Duration) -> float:
    ms = duration_ms(delay, "delay")
    if ms < 0:
        raise InvalidInput(f"delay must not be negative, not {delay}.")
    return ms / 1000
