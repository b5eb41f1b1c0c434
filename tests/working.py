"""A worker in a thread of the test, and waiting for what it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from delayed_queue.workers.budget import Budget
from delayed_queue.workers.options import WorkerOptions
from delayed_queue.workers.worker import Worker

PATIENCE = 30.0  # a test that waits longer has failed; on a quiet machine none waits for a second


@contextmanager
def running_worker(max_messages: int | None = None, **options: Any) -> Iterator[Worker]:
    """A worker that serves what is registered, for as long as the block."""
    options = {"threads": 4, "poll_period": 0.5, "shutdown_timeout": 10.0} | options
    worker = Worker(WorkerOptions(**options), budget=Budget(max_messages))
    thread = threading.Thread(target=worker.run, name="worker")
    thread.start()
    try:
        yield worker
    finally:
        worker.request_stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def run_until_empty(**options: Any) -> None:
    options = {"threads": 4, "until_empty": True} | options
    Worker(WorkerOptions(**options)).run()


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain {what}"
        time.sleep(0.005)
