"""What a worker process is running right now, in memory that its supervisor can read after it has died."""

from __future__ import annotations

import ctypes
import time
from collections.abc import MutableSequence
from multiprocessing.sharedctypes import RawArray
from typing import cast

BEAT, READY, FIRST = 0, 1, 2


class Board:
    """One number for each place of a handler: the id of its message, or 0. And when the process was last seen alive."""

    def __init__(self, places: int) -> None:
        self._numbers = cast("MutableSequence[int]", RawArray(ctypes.c_int64, FIRST + places))

    def start(self, place: int, id: int) -> None:
        self._numbers[FIRST + place] = id

    def end(self, place: int) -> None:
        self._numbers[FIRST + place] = 0

    def started(self) -> list[int]:
        return [id for id in self._numbers[FIRST:] if id]

    def beat(self, is_ready: bool) -> None:
        self._numbers[BEAT] = time.monotonic_ns()
        self._numbers[READY] = int(is_ready)

    @property
    def is_ready(self) -> bool:
        return bool(self._numbers[READY])

    @property
    def beaten_ago(self) -> float:
        """Seconds since the process last showed life."""
        return (time.monotonic_ns() - self._numbers[BEAT]) / 1e9 if self._numbers[BEAT] else float("inf")
