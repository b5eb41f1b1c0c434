"""Times as the table has them: whole milliseconds since 1970, floored, also before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from delayed_queue.errors import InvalidInput

Clock = Callable[[], datetime]
Duration = timedelta | float | int

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
LARGEST_BIGINT = 2**63 - 1


def to_ms(moment: datetime, what: str = "schedule_at") -> int:
    if not isinstance(moment, datetime):
        raise InvalidInput(f"{what} must be an aware datetime, not {type(moment).__name__}.")
    try:
        return (moment - EPOCH) // MILLISECOND
    except TypeError:
        raise InvalidInput(
            f"{what} is a naive datetime, which names no moment. Give it a time zone: "
            "django.utils.timezone.now(), or datetime(..., tzinfo=...)."
        ) from None


def from_ms(ms: int) -> datetime:
    """Rows of other programs may have times that a datetime cannot express; these become the last or first it can."""
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return (datetime.max if ms > 0 else datetime.min).replace(tzinfo=UTC)


def duration_ms(duration: Duration, what: str) -> int:
    """A timedelta or a number of seconds, in whole milliseconds."""
    if isinstance(duration, timedelta):
        return duration // MILLISECOND
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise InvalidInput(f"{what} must be a timedelta or a number of seconds, not {type(duration).__name__}.")
    if not math.isfinite(duration):
        raise InvalidInput(f"{what} must be finite, not {duration}.")
    ms = math.floor(duration * 1000)
    # Durations are added to a clock, and the sum must still be a bigint: half the range leaves room for any clock.
    if abs(ms) > LARGEST_BIGINT // 2:
        raise InvalidInput(f"{what} of {duration} seconds leaves the range of a bigint of milliseconds.")
    return ms


def positive_ms(duration: Duration, what: str) -> int:
    ms = duration_ms(duration, what)
    if ms <= 0:
        raise InvalidInput(f"{what} must be at least one millisecond, not {duration}.")
    return ms
