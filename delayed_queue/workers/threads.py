"""The threads that run plain handlers."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from django.db import connections

from delayed_queue.tasks.deliveries import Delivery
from delayed_queue.workers.buffer import Buffer
from delayed_queue.workers.connections import drop_severed, tidy
from delayed_queue.workers.executor import Executor, TaskTimeout, fail, judge
from delayed_queue.workers.pools import Load

if TYPE_CHECKING:
    from delayed_queue.workers.board import Board
    from delayed_queue.workers.timekeeper import Timekeeper

logger = logging.getLogger("delayed_queue.workers")


class Threads:
    """A fixed number of them, each in a lane of its own.

    A thread that overruns its time is abandoned and replaced: Python cannot stop one that is inside a call of the
    system, but the message need not wait for it.
    """

    def __init__(
        self,
        count: int,
        batch: int,
        executor: Executor,
        timekeeper: Timekeeper,
        board: Board,
        settle: Callable[[Delivery], None],
        check_lease: Callable[[Delivery], bool],
    ) -> None:
        self.load = Load(count, batch)
        self.buffer = Buffer()
        self.abandoned = 0
        self._executor = executor
        self._timekeeper = timekeeper
        self._board = board
        self._settle = settle
        self._check_lease = check_lease
        for place in range(count):
            self._start(place)

    def put(self, deliveries: list[Delivery]) -> None:
        self.load.add(deliveries)
        self.buffer.put(deliveries)

    def close(self) -> None:
        self.buffer.close()

    def _start(self, place: int) -> None:
        lane = Lane(place)
        thread = threading.Thread(target=self._work, args=[lane], name=f"handler-{place}", daemon=True)
        thread.start()

    def _work(self, lane: Lane) -> None:
        lane.thread_id = threading.get_ident()
        delivery = None
        try:
            while (delivery := self.buffer.take()) is not None:
                if not self._run(lane, delivery):
                    break
        except TaskTimeout:
            pass  # it may arrive anywhere once the lane is abandoned
        except Exception as error:
            logger.exception("A handler's thread failed; another takes its place")
            if delivery is not None and self.load.holds(delivery):
                judge(delivery, error)
                self._settle(delivery)
        finally:
            connections.close_all()
        if lane.is_abandoned:
            self.abandoned -= 1
        elif delivery is not None:  # the buffer was not closed
            self._start(lane.place)

    def _run(self, lane: Lane, delivery: Delivery) -> bool:
        """False if the thread cannot go on: it was abandoned, or the handler has left its connection in a mess."""
        if delivery.is_lost or (time.monotonic() >= delivery.held_until and not self._check_lease(delivery)):
            delivery.outcome, delivery.is_lost = "lost", True  # the process stood still for longer than the lease
            self._settle(delivery)
            return True
        timeout = delivery.task.timeout
        if lane.has_connections:
            drop_severed()
        if timeout is not None:
            lane.deadline = time.monotonic() + timeout  # before it begins, for the timekeeper may look at any time
        lane.begin(delivery)
        self._board.start(lane.place, delivery.id)
        if timeout is not None:
            self._watch(lane, lane.deadline)
        self._executor.execute(delivery, lane.stop_the_clock if timeout is not None else None)
        if not lane.end():
            return False
        self._board.end(lane.place)
        self._settle(delivery)
        # A look for connections is 1.4 us of the 9 that a no-op takes. One is enough for the end of this message and
        # the start of the next: nothing runs in this thread in between.
        lane.has_connections = bool(connections.all(initialized_only=True))
        if lane.has_connections and not tidy():
            logger.error("The handler of %s left a transaction open", delivery.kind, extra=delivery.told)
            return False
        return True

    def _watch(self, lane: Lane, deadline: float) -> None:
        """One entry with the timekeeper for each lane, and not one for each message, which would keep it in memory."""
        if deadline < lane.watched_until:
            lane.watched_until = deadline
            self._timekeeper.watch(deadline, lambda: self._look_at(lane))

    def _look_at(self, lane: Lane) -> None:
        """Called by the timekeeper."""
        lane.watched_until = float("inf")
        delivery, deadline = lane.running, lane.deadline
        if delivery is None or delivery.task.timeout is None or lane.is_abandoned:
            return
        if time.monotonic() >= deadline:
            self._overrun(lane, delivery)
        else:
            self._watch(lane, deadline)

    def _overrun(self, lane: Lane, delivery: Delivery) -> None:
        timeout = delivery.task.timeout
        abandoned = Delivery.__new__(Delivery)  # the thread may still write to the one it has
        if not lane.abandon(delivery, lambda: _copy(delivery, abandoned)):
            return
        self.abandoned += 1
        error = f"TaskTimeout: the handler ran for more than {timeout:g} s"
        abandoned.is_settled = False
        abandoned.duration_us = int((time.monotonic() - delivery.started) * 1_000_000)
        fail(abandoned, error, error)
        delivery.is_lost = True
        self.load.remove(delivery)
        self._board.end(lane.place)
        self._settle(abandoned)
        self._start(lane.place)


class Lane:
    """One thread and what it runs; the lock decides between its end and its time-out."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.thread_id = 0
        self.has_connections = False
        self.deadline = float("inf")
        self.watched_until = float("inf")
        self.is_abandoned = False
        self._delivery: Delivery | None = None
        self._lock = threading.Lock()

    @property
    def running(self) -> Delivery | None:
        return self._delivery

    def begin(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def end(self) -> bool:
        with self._lock:
            self._delivery = None
            return not self.is_abandoned

    def stop_the_clock(self) -> None:
        """The handler is through, and only its commit is left to do."""
        with self._lock:
            self._delivery = None

    def abandon(self, delivery: Delivery, before: Callable[[], None]) -> bool:
        with self._lock:
            if self._delivery is not delivery:
                return False
            before()
            self.is_abandoned = True
            # Raised as soon as the thread executes Python again.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread_id), ctypes.py_object(TaskTimeout))
            return True


def _copy(source: Delivery, target: Delivery) -> None:
    for name in Delivery.__slots__:
        setattr(target, name, getattr(source, name))
