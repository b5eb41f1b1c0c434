"""How many messages the processes of one command may still handle (``--max-messages``)."""

from __future__ import annotations

import multiprocessing
import sys


class Budget:
    """Shared by the processes that are forked after it was made."""

    def __init__(self, messages: int | None = None) -> None:
        self._left = None if messages is None else multiprocessing.get_context("fork").Value("q", messages)

    @property
    def is_limited(self) -> bool:
        return self._left is not None

    def left(self) -> int:
        return sys.maxsize if self._left is None else int(self._left.value)

    def take(self, wanted: int) -> int:
        if self._left is None:
            return wanted
        with self._left.get_lock():
            granted = min(wanted, int(self._left.value))
            self._left.value -= granted
            return granted

    def give_back(self, count: int) -> None:
        if self._left is not None and count:
            with self._left.get_lock():
                self._left.value += count
