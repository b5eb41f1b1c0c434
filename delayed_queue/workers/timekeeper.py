"""One thread that watches the time for the others, and never waits for anything but time."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("delayed_queue.workers")


class Timekeeper:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition(threading.Lock())
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="timekeeper", daemon=True)
        self._thread.start()

    def watch(self, moment: float, call: Callable[[], None]) -> None:
        """Call it at this moment of the monotonic clock. Calls must be short, and may be late."""
        with self._changed:
            heapq.heappush(self._heap, (moment, next(self._numbers), call))
            if self._heap[0][0] == moment:
                self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_stopped:
                    return
                wait = self._heap[0][0] - time.monotonic() if self._heap else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                _, _, call = heapq.heappop(self._heap)
            try:
                call()
            except Exception:
                logger.exception("A watch failed")
