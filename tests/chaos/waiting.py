"""Waiting for what should become true, with a deadline that only a defect misses."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE = 90.0  # of a busy machine; what is waited for takes seconds


def wait_until(is_true: Callable[[], object], what: str, seconds: float = DEADLINE, every: float = 0.05) -> float:
    """Returns how many seconds it took."""
    began = time.monotonic()
    while not is_true():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"Not within {seconds:g} s: {what}")
        time.sleep(every)
    return time.monotonic() - began
