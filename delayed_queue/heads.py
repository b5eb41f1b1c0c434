"""Where a poller stopped, so that its next poll need not start from the beginning (see sql/poll.sql)."""

from __future__ import annotations

import threading
import time

# One that landed behind a head from elsewhere is found within this time at the latest (R5).
LONGEST_BETWEEN_SWEEPS = 10.0

Head = tuple[int, int]  # "scheduledAt" and id


class Heads:
    """The heads of one kind by priority, shared by the threads that poll it.

    They are hints: a sweep, due every so often, reads from the start and corrects them. What this process itself offers
    or releases lowers the head at once, so that its own order of delivery is strict.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads: dict[int, Head] = {}
        self._version = 0
        self._swept_at = float("-inf")
        self.in_use = False

    def start_poll(self, poll_period: float) -> Start:
        sweep_every = min(poll_period, LONGEST_BETWEEN_SWEEPS)
        with self._lock:
            self.in_use = True
            flat = [
                number
                for priority in sorted(self._heads, reverse=True)
                for number in (priority, *self._heads[priority])
            ]
            bounded = time.monotonic() - self._swept_at < sweep_every
            return Start(self._version, bounded, flat)

    def end_poll(self, start: Start, heads: list[int]) -> None:
        with self._lock:
            if not start.bounded:
                self._swept_at = start.at
            if start.version == self._version:  # else something landed behind since the poll began; keep the lower head
                self._heads = dict(zip(heads[::3], zip(heads[1::3], heads[2::3], strict=True), strict=True))

    def forget(self) -> None:
        """The next poll sweeps: so much was put in that looking it through here would cost more."""
        with self._lock:
            self._version += 1
            self._swept_at = float("-inf")

    def lower(self, priority: int, at: int) -> None:
        """A message of this priority was put at this time."""
        head = (at, 0)
        with self._lock:
            self._version += 1
            if self._heads.get(priority, head) >= head:
                self._heads[priority] = head


class Start:
    """What a poll starts with: heads as sql/poll.sql takes them, and whether they bound it."""

    __slots__ = ("at", "bounded", "heads", "version")

    def __init__(self, version: int, bounded: bool, heads: list[int]) -> None:
        self.version = version
        self.bounded = bounded
        self.heads = heads
        self.at = time.monotonic()
