"""The heartbeat: renews the leases of what is held, in one statement, and the worker's row in the table of workers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from django.db import connections

from delayed_queue.errors import QueueUnavailable
from delayed_queue.tasks.deliveries import Delivery
from delayed_queue.workers.board import Board
from delayed_queue.workers.lines import keep_own, watched
from delayed_queue.workers.store import ServedKind, Store

logger = logging.getLogger("delayed_queue.workers")

LONGEST_PERIOD = 10.0
TICK = 1.0


class Heartbeat:
    """On a connection of its own: a slow acknowledgement, or a handler in a transaction, must not cost a lease."""

    def __init__(
        self,
        store: Store,
        kinds: Sequence[ServedKind],
        threads: int,
        board: Board,
        held: Callable[[], list[Delivery]],
        counts: Callable[[], dict[str, int]],
        is_ready: Callable[[], bool],
        was_lost: Callable[[Delivery], None],
        tick: Callable[[], None],
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._threads = threads
        self._board = board
        self._held = held
        self._counts = counts
        self._is_ready = is_ready
        self._was_lost = was_lost
        self._tick = tick
        self._longest_lease = max((served.lease_ms for served in kinds), default=60_000)
        shortest = min((served.lease_ms for served in kinds), default=60_000) / 1000
        self._period = min(LONGEST_PERIOD, shortest / 3)
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._row_at = self._beat_at = 0.0
        self.state = "running"
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, deadline: float) -> None:
        self._is_stopping = True
        self._requests.put(None)
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def extend(self, delivery: Delivery, lease_ms: int) -> bool:
        """For a handler, which waits for the answer."""
        request = _Request(delivery, lease_ms)
        self._requests.put(request)
        request.answered.wait(delivery.lease_ms / 1000)
        return request.is_held

    def _run(self) -> None:
        keep_own(self._store.database)
        while not self._is_stopping:
            self._board.beat(self._is_ready())
            try:
                self._tick()
                self._beat()
            except QueueUnavailable as error:
                logger.warning("Leases could not be renewed for the moment: %s", error)
            except Exception:
                logger.exception("The heartbeat failed; it goes on")
            self._answer_requests(min(TICK, self._period))
        self._leave()

    def _beat(self) -> None:
        now = time.monotonic()
        if now >= self._beat_at:
            due = [
                delivery
                for delivery in self._held()
                if not delivery.is_lost and delivery.held_until - now < delivery.lease_ms / 1500
            ]
            if due:
                self._renew(due)
                if any(delivery.is_limited for delivery in due):
                    with watched(self._store.connection):
                        self._store.keep_slots(self._longest_lease)
            self._beat_at = now + self._period / 2
        if now >= self._row_at:
            with watched(self._store.connection):
                self._store.beat(self._kinds, self._threads, self.state, self._counts())
            self._row_at = now + LONGEST_PERIOD

    def _renew(self, deliveries: list[Delivery]) -> None:
        with watched(self._store.connection):
            found = self._store.extend(deliveries)
        for delivery in found.lost:
            if not delivery.outcome:
                delivery.is_lost = True
                logger.warning("The lease of %s was lost while it was held here", delivery.key, extra=delivery.told)
                self._was_lost(delivery)

    def _answer_requests(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                request = self._requests.get(timeout=remaining)
            except Empty:
                return
            if request is None:
                return
            try:
                request.delivery.lease_ms = request.lease_ms
                self._renew([request.delivery])
                request.is_held = not request.delivery.is_lost
            except Exception as error:
                logger.warning("The lease of %s could not be extended: %s", request.delivery.key, error)
            finally:
                request.answered.set()

    def _leave(self) -> None:
        try:
            with watched(self._store.connection):
                self._store.leave()
        except Exception as error:
            logger.debug("The worker's row could not be removed: %s", error)
        connections.close_all()


class _Request:
    def __init__(self, delivery: Delivery, lease_ms: int) -> None:
        self.delivery = delivery
        self.lease_ms = lease_ms
        self.is_held = False
        self.answered = threading.Event()
