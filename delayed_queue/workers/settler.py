"""The settler: what the database is told of a batch that was handled, and what everyone else is told then."""

from __future__ import annotations

import logging

from delayed_queue import signals
from delayed_queue.tasks.deliveries import Delivery
from delayed_queue.workers.store import Settled, Store

logger = logging.getLogger("delayed_queue.workers")


class Settler:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.handled = 0
        self.failed = 0

    def settle(self, batch: list[Delivery], is_repeated: bool = False) -> list[Delivery]:
        """Mark what is settled; returns what someone has locked just now, to be tried again.

        ``is_repeated``: an answer was lost, and the first try may have done it.
        """
        done = [delivery for delivery in batch if delivery.outcome == "done" and not delivery.is_settled]
        lost = [delivery for delivery in batch if delivery.outcome == "lost" and not delivery.is_settled]
        others = [
            delivery for delivery in batch if delivery.outcome not in ("done", "lost") and not delivery.is_settled
        ]
        locked: set[Delivery] = set()
        if done:
            locked |= self._close(self._store.finish(done), lost, is_repeated)
        if others:
            locked |= self._close(self._store.settle(others), lost, is_repeated)
        limited = [delivery for delivery in batch if delivery.is_limited and delivery not in locked]
        if limited:
            self._store.free_slots(limited)
            for delivery in limited:
                delivery.is_limited = False
        if lost:
            self._store.record_lost(delivery for delivery in lost if delivery.started)
        for delivery in lost:
            delivery.is_settled = True
        return list(locked)

    def _close(self, found: Settled, lost: list[Delivery], is_repeated: bool) -> set[Delivery]:
        """After a lost answer a refusal says nothing."""
        for delivery in found.ours | found.lost:
            delivery.is_settled = True
        for delivery in found.lost:
            if not is_repeated and delivery.outcome != "released":
                delivery.outcome, delivery.is_lost = "lost", True
                lost.append(delivery)
        return found.locked

    # Telling

    def tell(self, settled: list[Delivery]) -> None:
        is_detailed = logger.isEnabledFor(logging.DEBUG)
        self.handled += len(settled)
        for delivery in settled:
            if delivery.outcome == "done":
                if is_detailed:
                    _log(logging.DEBUG, delivery, "done in %.3g ms", delivery.duration_us / 1000)
            else:
                self._tell_of_trouble(delivery)
            signal = signals.BY_OUTCOME.get(delivery.outcome)
            if signal is not None and signal.receivers:
                signals.send(signal, delivery)

    def _tell_of_trouble(self, delivery: Delivery) -> None:
        match delivery.outcome:
            case "retried":
                self.failed += 1
                again = delivery.delay_ms / 1000
                message = "failed, attempt %d; again in %.3g s: %s"
                _log(logging.WARNING, delivery, message, delivery.attempt, again, delivery.summary)
            case "dead":
                self.failed += 1
                message = "is dead after attempt %d (%s): %s"
                _log(logging.ERROR, delivery, message, delivery.attempt, delivery.reason, delivery.error)
            case "lost":
                message = "was updated, dropped or leased by another while it was handled; what came of it here is void"
                _log(logging.WARNING, delivery, message)
            case "snoozed":
                _log(logging.DEBUG, delivery, "snoozed for %.3g s", delivery.delay_ms / 1000)


def _log(level: int, delivery: Delivery, message: str, *args: object) -> None:
    extra = {**delivery.told, "outcome": delivery.outcome, "duration": delivery.duration_us / 1_000_000}
    logger.log(level, f"%s (%s) {message}", delivery.key, delivery.kind, *args, extra=extra)
