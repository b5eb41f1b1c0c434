"""Where a poller stopped, so that its next poll need not start from the beginning (see sql/poll.sql)."""

from __future__ import annotations

import threading
import time

# One that landed behind a head from elsewhere is found within this time at the latest (R5).
LONGEST_BETWEEN_SWEEPS = 10.0

Head = tuple[int, int]  # "scheduledAt" and id


class Heads:
    """The heads of one kind by priority, shared by the threads that poll it.

    They are hints: a sweep, due every so often, reads from the start and corrects them. What the owner of these heads
    itself offers, releases or extends lowers them at once, so that its own order of delivery is strict.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads: dict[int, Head] = {}
        self._polls: set[Start] = set()  # those under way
        self._swept_at = float("-inf")
        self.in_use = False

    def start_poll(self, poll_period: float) -> Start:
        sweep_every = min(poll_period, LONGEST_BETWEEN_SWEEPS)
        with self._lock:
            self.in_use = True
            ordered = sorted(self._heads, reverse=True)
            flat = [number for priority in ordered for number in (priority, *self._heads[priority])]
            start = Start(time.monotonic() - self._swept_at < sweep_every, flat)
            self._polls.add(start)
            return start

    def end_poll(self, start: Start, heads: list[int] | None) -> None:
        """With the heads that the poll found, or None if what it did may be undone."""
        with self._lock:
            self._polls.discard(start)
            if heads is None:
                return
            self._heads = dict(zip(heads[::3], zip(heads[1::3], heads[2::3], strict=True), strict=True))
            for priority, head in start.lowered:  # what landed while the poll was under way
                self._lower(priority, head)
            if not start.bounded and not start.forgotten:
                self._swept_at = start.at

    def lower(self, priority: int, at: int) -> None:
        """A message of this priority was put at this time."""
        head = (at, 0)
        with self._lock:
            self._lower(priority, head)
            for start in self._polls:
                start.lowered.append((priority, head))

    def forget(self) -> None:
        """The next poll sweeps: so much was put in that looking it through here would cost more."""
        with self._lock:
            self._swept_at = float("-inf")
            for start in self._polls:
                start.forgotten = True

    def _lower(self, priority: int, head: Head) -> None:
        self._heads[priority] = min(self._heads.get(priority, head), head)


class Start:
    """What a poll starts with: heads as sql/poll.sql takes them, and whether they bound it."""

    def __init__(self, bounded: bool, heads: list[int]) -> None:
        self.bounded = bounded
        self.heads = heads
        self.at = time.monotonic()
        self.lowered: list[tuple[int, Head]] = []
        self.forgotten = False
