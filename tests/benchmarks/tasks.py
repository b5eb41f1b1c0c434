"""The handlers that are measured. Those of lateness and pickup take the time first, and write it down afterwards."""

from __future__ import annotations

import os
import time

from delayed_queue import delayed_task

TIMES_VARIABLE = "BENCHMARK_TIMES"  # the file that they write to


@delayed_task(kind="sync")
def sync(number: int) -> None:
    pass


@delayed_task(kind="sync without history", journal="none")
def sync_without_history(number: int) -> None:
    pass


@delayed_task(kind="async")
async def async_(number: int) -> None:
    pass


@delayed_task(kind="async without history", journal="none")
async def async_without_history(number: int) -> None:
    pass


@delayed_task(kind="timed")
def timed(number: int) -> None:
    began = time.time_ns()
    file = os.open(os.environ[TIMES_VARIABLE], os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{number} {began}\n".encode())
    os.close(file)
