"""How much a pool of handlers, threads or an event loop, has room for."""

from __future__ import annotations

import time
from typing import Protocol

from delayed_queue.tasks.deliveries import Delivery

# Leased ahead is what will be started within this time at the present rate: enough to hide the way to the database, and
# little enough that a slow worker does not sit on what an idle one could do.
AHEAD = 0.1
SHORTEST_SAMPLE = 0.005
# And no more than this of payloads, by the mean of the last ones: 1,000 of a megabyte each would be a gigabyte.
MOST_BYTES = 32 * 1024 * 1024


class Pool(Protocol):
    load: Load

    def put(self, deliveries: list[Delivery]) -> None: ...


class Load:
    """What a pool holds, how fast it gets through it, and hence how much more it should be given.

    Many threads write here without a lock: adding to a set, and taking out of it, are single steps for the interpreter.
    """

    def __init__(self, places: int, batch: int) -> None:
        self.places = places
        self._held: set[Delivery] = set()  # waiting or running
        self._added = 0  # by one thread only, the fetcher's
        self._batch = max(batch, places)
        self._mean_bytes = 1
        self._rate = 0.0
        self._refill_at = 0
        self._sampled_at = time.monotonic()
        self._sampled = 0

    def add(self, deliveries: list[Delivery]) -> None:
        self._held.update(deliveries)
        self._added += len(deliveries)
        self._mean_bytes = 1 + sum([len(delivery.payload) for delivery in deliveries]) // (len(deliveries) or 1)

    def remove(self, delivery: Delivery) -> None:
        self._held.discard(delivery)

    def holds(self, delivery: Delivery) -> bool:
        return delivery in self._held

    @property
    def held(self) -> list[Delivery]:
        return list(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def has_room(self) -> bool:
        """As room() would say at the rate of its last call. Asked for each message, so it takes no sample."""
        held = len(self._held)
        return held < self.places or held <= self._refill_at

    def room(self) -> int:
        """Something if a place is idle, or if half of what should be held is done: fewer statements."""
        # Two batches: with one, what was left of it was done before the next had come. That took 4 % more processor
        # time for plain no-ops, 9 % for async ones.
        ahead = min(int(self._current_rate() * AHEAD), MOST_BYTES // self._mean_bytes)
        target = min(2 * self._batch, self.places + ahead)
        self._refill_at = target // 2
        return min(self._batch, target - len(self._held)) if self.has_room() else 0

    def _current_rate(self) -> float:
        now = time.monotonic()
        elapsed = now - self._sampled_at
        if elapsed >= SHORTEST_SAMPLE:
            finished = self._added - len(self._held)
            self._rate = (self._rate + (finished - self._sampled) / elapsed) / 2
            self._sampled, self._sampled_at = finished, now
        return self._rate
