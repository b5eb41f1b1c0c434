"""The janitor: makes the partitions of the days to come and drops old ones, whichever worker comes first each hour.

In a thread of its own, because a partition may have to wait, or rows to be moved, for longer than a lease.
"""

from __future__ import annotations

import logging
import threading

from django.db import connections

from delayed_queue.history import make_partitions

logger = logging.getLogger("delayed_queue.workers")

PERIOD = 3600.0


class Janitor:
    def __init__(self, database: str) -> None:
        self._database = database
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="janitor", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                make_partitions(self._database)
            except Exception as error:
                logger.warning("The partitions of the history could not be looked after: %s", error)
            finally:
                connections.close_all()
            self._stop.wait(PERIOD)
