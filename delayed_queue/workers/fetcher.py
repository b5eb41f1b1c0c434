"""The fetcher: leases what is due for the handlers that have room for it, and sleeps until there is something to lease.

It knows of each kind when it is worth a look: when its next message is due, when one is announced, or while it has a
backlog; and it looks at all kinds once in a poll period, for what nobody announced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from django.db import connections

from delayed_queue.errors import QueueUnavailable
from delayed_queue.kinds import namespace_of
from delayed_queue.retry import Backoff
from delayed_queue.tasks.deliveries import Delivery, Keeper
from delayed_queue.workers.budget import Budget
from delayed_queue.workers.lines import LONGEST_CALL, keep_own, watched
from delayed_queue.workers.pools import Pool
from delayed_queue.workers.store import ServedKind, Store
from delayed_queue.workers.waker import Waker

logger = logging.getLogger("delayed_queue.workers")

# Nobody says that the acker has caught up: handlers tell when they are through, but all of them may be before that.
# With a second here, every sixth drain of 50,000 messages stood still for one.
WAIT_FOR_ACKER = 0.002
_again = Backoff(initial=0.05, factor=2.0, maximum=2.0, jitter=0.5)


class Fetcher:
    def __init__(
        self,
        store: Store,
        kinds: Sequence[ServedKind],
        pools: Sequence[Pool],
        keeper: Keeper,
        budget: Budget,
        unsettled: Callable[[], int],
        most_unsettled: int,
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._by_kind = {served.kind: served for served in kinds}
        self._pools = pools
        self._keeper = keeper
        self._budget = budget
        self._unsettled = unsettled
        self._most_unsettled = most_unsettled
        self._waker = Waker()
        self._wants_room = False
        self._is_stopping = False
        self._sweep_at = 0.0
        # Lock uuids of leases whose answer never came, and when to give back what they may have leased: at once, and
        # again when the server has surely noticed that nobody waits for it any more.
        self._orphans: list[tuple[float, str]] = []
        self._told: deque[str] = deque()  # kinds, by other threads
        self._turns = 0
        self.is_connected = False
        self.found_nothing_at = 0.0  # when a look at all kinds, begun at this moment, found nothing due
        self._thread = threading.Thread(target=self._run, name="fetcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Lease nothing any more."""
        self._is_stopping = True
        self._waker.wake()

    def join(self, deadline: float) -> bool:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def room_was_made(self) -> None:
        """By a handler that is through."""
        if self._wants_room and not self._is_acker_behind() and any(pool.load.has_room() for pool in self._pools):
            self._wants_room = False
            self._waker.wake()

    def look_at(self, kinds: set[str]) -> None:
        """Slots of these were freed."""
        self._told.extend(kinds)
        self._waker.wake()

    def sweep(self) -> None:
        """Look at all kinds now."""
        self._sweep_at = 0.0
        self._waker.wake()

    def _run(self) -> None:
        keep_own(self._store.database)
        failures = 0
        while not self._is_stopping:
            try:
                self._turn()
                failures = 0
            except Exception as error:
                failures += 1
                self.is_connected = False
                if not isinstance(error, QueueUnavailable):
                    logger.exception("The fetcher failed; it goes on")
                elif failures == 1:
                    logger.warning("No messages can be fetched for the moment: %s", error)
                self._waker.wait(time.monotonic() + _again.seconds(failures))
        try:
            self._release_orphans(at=float("inf"))
        except Exception:
            logger.warning("What was leased last could not be given back; it comes back when its lease is over")
        self._waker.close()
        connections.close_all()

    def _turn(self) -> None:
        now = time.monotonic()
        self._release_orphans(at=now)
        self._note(self._waker.hear() | {self._told.popleft() for _ in range(len(self._told))})
        is_sweep = now >= self._sweep_at
        self._wants_room = True  # before the look at the rooms, so that what is made after it wakes us
        rooms = self._rooms()
        worth_a_look = [
            served for served in self._kinds if rooms[served.pool] > 0 and (is_sweep or served.look_at <= now)
        ]
        if worth_a_look:
            self._wants_room = False
            if is_sweep:
                self._sweep_at = now + self._store.messages.poll_period
            found = self._lease(worth_a_look, rooms)
            is_all = is_sweep and len(worth_a_look) == len(self._kinds)
            if not found and is_all and not any(served.is_held_back for served in self._kinds):
                self.found_nothing_at = now
            with watched(self._store.connection):
                if self._waker.start_listening(self._store.connection):
                    self._sweep_at = 0.0  # one may have been offered since the look; from now on it is heard of
            return
        looks = [served.look_at for served in self._kinds if rooms[served.pool] > 0]
        if looks:
            until = min(self._sweep_at, *looks, *(due for due, _ in self._orphans), now + 60.0)
        else:
            until = now + (WAIT_FOR_ACKER if self._is_acker_behind() else 1.0)
        if not self._told:
            self._note(self._waker.wait(until))

    def _is_acker_behind(self) -> bool:
        return self._unsettled() > self._most_unsettled

    def _rooms(self) -> list[int]:
        if self._is_acker_behind():
            return [0 for _ in self._pools]
        left = self._budget.left()
        return [max(0, min(pool.load.room(), left)) for pool in self._pools]

    def _lease(self, kinds: list[ServedKind], rooms: list[int]) -> int:
        kinds.sort(key=lambda served: served.served_at)  # who was served longest ago comes first
        granted = self._budget.take(sum(rooms))
        if granted < sum(rooms):
            rooms = self._share(granted, rooms)
        lock_uuid = self._store.identity.new_lock_uuid()
        leased_count = 0
        try:
            with watched(self._store.connection):
                leased = self._store.lease(kinds, rooms, lock_uuid, self._keeper)
            leased_count = len(leased.deliveries)
        except Exception:
            self._orphans.append((0.0, lock_uuid))  # it may have been done, and the answer lost
            raise
        finally:
            self._budget.give_back(granted - leased_count)
        self.is_connected = True
        for kind, count in leased.buried.items():
            logger.warning(
                "%d of %s were dead when their time came: expired, or out of attempts",
                count,
                kind,
                extra={"kind": kind},
            )
        self._hand_out(leased.deliveries)
        return leased_count + sum(leased.buried.values())

    def _share(self, granted: int, rooms: list[int]) -> list[int]:
        """What is left of the budget: the pools take turns in being the first."""
        self._turns += 1
        shares = [0] * len(rooms)
        for step in range(len(rooms)):
            pool = (self._turns + step) % len(rooms)
            shares[pool] = min(rooms[pool], granted)
            granted -= shares[pool]
        return shares

    def _hand_out(self, deliveries: list[Delivery]) -> None:
        if len(self._pools) == 1:
            if deliveries:
                self._pools[0].put(deliveries)
            return
        for place, pool in enumerate(self._pools):
            its_own = [delivery for delivery in deliveries if self._by_kind[delivery.kind].pool == place]
            if its_own:
                pool.put(its_own)

    def _release_orphans(self, at: float) -> None:
        for orphan in [orphan for orphan in self._orphans if orphan[0] <= at]:
            due, lock_uuid = orphan
            with watched(self._store.connection):
                self._store.reclaim(self._kinds, lock_uuid)
            self._orphans.remove(orphan)
            if not due:
                self._orphans.append((time.monotonic() + 2 * LONGEST_CALL, lock_uuid))

    def _note(self, announced: set[str]) -> None:
        if "" in announced:
            self._sweep_at = 0.0
            return
        for kind in announced:
            served = self._by_kind.get(kind)
            if served is not None:
                served.look_at = 0.0
            for other in self._kinds:  # which may have waited for a slot of the namespace
                if other.is_held_back and namespace_of(other.kind) == namespace_of(kind):
                    other.look_at = 0.0
