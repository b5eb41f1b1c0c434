"""The acker: settles in the database what the handlers have done, many at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from django.db import connections

from delayed_queue.errors import QueueUnavailable
from delayed_queue.retry import Backoff
from delayed_queue.tasks.deliveries import Delivery
from delayed_queue.workers.lines import keep_own, watched
from delayed_queue.workers.settler import Settler
from delayed_queue.workers.store import Store

logger = logging.getLogger("delayed_queue.workers")

# While more is being handled, wait so long for it to join: 10 ms of no-op handlers are hundreds of messages, and a
# transaction for each ten of them would take most of the time.
LINGER = 0.01
AT_ONCE = 1000
# What someone has locked, in a transaction that is open, is tried again so much later, apart from the rest.
WAIT_FOR_LOCKS = 0.1
_again = Backoff(initial=0.05, factor=2.0, maximum=2.0, jitter=0.5)


class Acker:
    def __init__(
        self, store: Store, is_busy: Callable[[], bool], enough: int, slots_were_freed: Callable[[set[str]], None]
    ) -> None:
        self._store = store
        self._settler = Settler(store)
        self._is_busy = is_busy
        self._enough = enough
        self._slots_were_freed = slots_were_freed
        self._pending: deque[Delivery] = deque()
        self._in_hand: list[Delivery] = []
        self._locked: list[Delivery] = []
        self._wake = threading.Event()
        self._is_waiting = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="acker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def handled(self) -> int:
        return self._settler.handled

    @property
    def failed(self) -> int:
        return self._settler.failed

    def put(self, delivery: Delivery) -> None:
        self._pending.append(delivery)
        if self._is_waiting:
            self._wake.set()

    @property
    def pending(self) -> int:
        return len(self._pending) + len(self._in_hand) + len(self._locked)

    @property
    def unsettled(self) -> list[Delivery]:
        """Handled, and still ours until that is known: its lease must be renewed if it takes long."""
        held = [*self._in_hand, *self._locked, *list(self._pending)]
        return [delivery for delivery in held if not delivery.is_settled]

    def stop(self, deadline: float) -> bool:
        """Settle what is there, then end. False if that was not done by the deadline."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        keep_own(self._store.database)
        last_tries = 0
        while True:
            self._wait()
            self._in_hand = self._take()
            if self._in_hand:
                self._locked = self._settle_at_any_price(self._in_hand)
                self._in_hand = []
            if self._is_stopping and not self._pending:
                last_tries += 1
                if not self._locked or last_tries > 10:
                    break
        connections.close_all()

    def _wait(self) -> None:
        if not self._pending and not self._is_stopping:
            self._is_waiting = True
            self._wake.clear()
            if not self._pending and not self._is_stopping:
                self._wake.wait(WAIT_FOR_LOCKS if self._locked else None)
            self._is_waiting = False
        elif self._locked and self._is_stopping:
            time.sleep(WAIT_FOR_LOCKS)
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
        taken = self._locked + [self._pending.popleft() for _ in range(count)]
        self._locked = []
        return taken

    def _settle_at_any_price(self, batch: list[Delivery]) -> list[Delivery]:
        """The database may be away for a while. What was handled must not be handled again for that.

        Returns what someone has locked.
        """
        failures = 0
        untold = list(batch)
        limited = {delivery.kind for delivery in batch if delivery.is_limited}
        while True:
            locked: list[Delivery] = []
            try:
                with watched(self._store.connection):
                    locked = self._settler.settle(batch, is_repeated=failures > 0)
            except Exception as error:
                failures += 1
                if not isinstance(error, QueueUnavailable):
                    logger.exception("What was handled could not be settled; trying again")
                elif failures == 1:
                    logger.warning("What was handled could not be settled for the moment: %s", error)
            else:
                failures = 0
            # Receivers of signals take their time; no connection is watched meanwhile.
            self._settler.tell([delivery for delivery in untold if delivery.is_settled])
            untold = [delivery for delivery in untold if not delivery.is_settled]
            if not failures:
                break
            if self._is_stopping and failures > 3:
                logger.error("%d messages were handled but could not be settled", len(untold))
                break
            time.sleep(_again.seconds(failures))
        if limited:
            self._slots_were_freed(limited)
        return locked
