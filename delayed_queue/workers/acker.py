"""The acker: settles in the database what the handlers have done, many at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from django.db import connections

from delayed_queue import signals
from delayed_queue.errors import QueueUnavailable
from delayed_queue.retry import Backoff
from delayed_queue.tasks.deliveries import Delivery
from delayed_queue.workers.lines import watched
from delayed_queue.workers.store import Store

logger = logging.getLogger("delayed_queue.workers")

# While more is being handled, wait so long for it to join: 10 ms of no-op handlers are hundreds of messages, and a
# transaction for each ten of them would take most of the time.
LINGER = 0.01
AT_ONCE = 1000
_again = Backoff(initial=0.05, factor=2.0, maximum=2.0, jitter=0.5)


class Acker:
    def __init__(self, store: Store, is_busy: Callable[[], bool], enough: int) -> None:
        self._store = store
        self._is_busy = is_busy
        self._enough = enough
        self._pending: deque[Delivery] = deque()
        self._in_hand = 0
        self._wake = threading.Event()
        self._is_waiting = False
        self._is_stopping = False
        self.handled = 0
        self.failed = 0
        self._thread = threading.Thread(target=self._run, name="acker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def put(self, delivery: Delivery) -> None:
        self._pending.append(delivery)
        if self._is_waiting:
            self._wake.set()

    @property
    def pending(self) -> int:
        return len(self._pending) + self._in_hand

    def stop(self, deadline: float) -> bool:
        """Settle what is there, then end. False if that was not done by the deadline."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._wait()
            batch = self._take()
            if batch:
                self._settle_at_any_price(batch)
            elif self._is_stopping:
                break
        connections.close_all()

    def _wait(self) -> None:
        if not self._pending and not self._is_stopping:
            self._is_waiting = True
            self._wake.clear()
            if not self._pending and not self._is_stopping:
                self._wake.wait()
            self._is_waiting = False
        deadline = time.monotonic() + LINGER
        while (
            len(self._pending) < self._enough
            and self._is_busy()
            and not self._is_stopping
            and not any(delivery.is_limited for delivery in list(self._pending))
            and time.monotonic() < deadline
        ):
            time.sleep(LINGER / 5)

    def _take(self) -> list[Delivery]:
        count = min(len(self._pending), AT_ONCE)
        self._in_hand = count
        return [self._pending.popleft() for _ in range(count)]

    def _settle_at_any_price(self, batch: list[Delivery]) -> None:
        """The database may be away for a while. What was handled must not be handled again for that."""
        failures = 0
        unsettled = batch
        while unsettled:
            try:
                with watched(self._store.connection):
                    self.settle(unsettled, is_repeated=failures > 0)
            except Exception as error:
                failures += 1
                unsettled = [delivery for delivery in unsettled if not delivery.is_settled or delivery.is_limited]
                if not isinstance(error, QueueUnavailable):
                    logger.exception("What was handled could not be settled; trying again")
                elif failures == 1:
                    logger.warning("What was handled could not be settled for the moment: %s", error)
                if self._is_stopping and failures > 3:
                    logger.error("%d messages were handled but could not be settled", len(unsettled))
                    break
                time.sleep(_again.seconds(failures))
            else:
                break
        self._in_hand = 0

    def settle(self, batch: list[Delivery], is_repeated: bool = False) -> None:
        """Once, in the thread that calls."""
        done = [delivery for delivery in batch if delivery.outcome == "done" and not delivery.is_settled]
        lost = [delivery for delivery in batch if delivery.outcome == "lost"]
        others = [
            delivery for delivery in batch if delivery.outcome not in ("done", "lost") and not delivery.is_settled
        ]
        if done:
            ours = set(self._store.finish(done))
            lost += self._close(done, ours, is_repeated)
        if others:
            became = self._store.settle(others)
            for delivery in others:
                delivery.outcome = became.get(delivery.id, {}).get("outcome", delivery.outcome)
            lost += self._close(others, set(became), is_repeated)
        limited = [delivery for delivery in batch if delivery.is_limited]
        if limited:
            self._store.free_slots(limited)
            for delivery in limited:
                delivery.is_limited = False
        if lost:
            self._store.record_lost(delivery for delivery in lost if delivery.started)
        for delivery in lost:
            delivery.is_settled = True
        self._tell(batch)

    def _close(self, deliveries: list[Delivery], ours: set[int], is_repeated: bool) -> list[Delivery]:
        """Mark what is settled; returns what the fence refused.

        After a lost answer a refusal says nothing: the first try may have done it.
        """
        refused = []
        for delivery in deliveries:
            delivery.is_settled = True
            if delivery.id not in ours and not is_repeated and delivery.outcome != "released":
                delivery.outcome, delivery.is_lost = "lost", True
                refused.append(delivery)
        return refused

    def _tell(self, batch: list[Delivery]) -> None:
        is_detailed = logger.isEnabledFor(logging.DEBUG)
        self.handled += len(batch)
        for delivery in batch:
            if delivery.outcome == "done":
                if is_detailed:
                    _log(logging.DEBUG, delivery, "%s done in %.1f ms", delivery.duration_us / 1000)
            else:
                self._tell_of_trouble(delivery)
            signal = signals.BY_OUTCOME.get(delivery.outcome)
            if signal is not None and signal.receivers:
                signals.send(signal, delivery)

    def _tell_of_trouble(self, delivery: Delivery) -> None:
        match delivery.outcome:
            case "retried":
                self.failed += 1
                message = "%s failed, attempt %d; again in %.1f s: %s"
                _log(logging.WARNING, delivery, message, delivery.attempt, delivery.delay_ms / 1000, delivery.summary)
            case "dead":
                self.failed += 1
                message = "%s is dead after attempt %d (%s): %s"
                _log(logging.ERROR, delivery, message, delivery.attempt, delivery.reason, delivery.error)
            case "lost":
                _log(logging.WARNING, delivery, "The lease of %s was lost; it was or will be delivered again")
            case "snoozed":
                _log(logging.DEBUG, delivery, "%s snoozed for %.1f s", delivery.delay_ms / 1000)


def _log(level: int, delivery: Delivery, message: str, *args: object) -> None:
    extra = {**delivery.told, "outcome": delivery.outcome, "duration": delivery.duration_us / 1_000_000}
    logger.log(level, message, delivery.key, *args, extra=extra)
