"""A worker: all the parts of one process, put together, started and stopped in the right order.

fetcher ──► threads, loop ──► acker          heartbeat: renews what they hold
   ▲                            │            timekeeper: time-outs, silent connections
   └────── room was made ◄──────┘
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

from delayed_queue import signals
from delayed_queue.conf import settings
from delayed_queue.tasks.deliveries import Delivery
from delayed_queue.workers import lines
from delayed_queue.workers.acker import Acker
from delayed_queue.workers.board import Board
from delayed_queue.workers.budget import Budget
from delayed_queue.workers.executor import Executor, give_back
from delayed_queue.workers.fetcher import Fetcher
from delayed_queue.workers.heartbeat import Heartbeat
from delayed_queue.workers.identity import Identity
from delayed_queue.workers.janitor import Janitor
from delayed_queue.workers.loop import Loop
from delayed_queue.workers.options import WorkerOptions
from delayed_queue.workers.pools import Pool
from delayed_queue.workers.store import Store
from delayed_queue.workers.threads import Threads, _copy
from delayed_queue.workers.timekeeper import Timekeeper

logger = logging.getLogger("delayed_queue.workers")

# What is leased but not started, and was not reached for so long, goes back: another worker may have time for it.
TOO_LONG_IN_THE_BUFFER = 2.0
TIME_TO_SETTLE = 5.0
IDLE_TICK = 0.5
BUSY_TICK = 0.02


class Part(Protocol):
    @property
    def is_alive(self) -> bool: ...


class Worker:
    def __init__(
        self,
        options: WorkerOptions,
        identity: Identity | None = None,
        board: Board | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.options = options
        self.identity = identity or Identity()
        self._board = board or new_board(options)
        self._budget = budget or Budget()
        # A pipe and not an Event: a signal may come while this very thread has the lock of the Event.
        self._is_stopping = False
        self._stop_reader, self._stop_writer = os.pipe()
        os.set_blocking(self._stop_writer, False)
        self._ended = threading.Event()
        self._timeout: float | None = None
        self.is_worn_out = False

    def request_stop(self, timeout: float | None = None) -> None:
        """From a signal handler or another thread: end within the timeout, or within that of the options."""
        if timeout is not None:
            self._timeout = timeout
        self._is_stopping = True
        with contextlib.suppress(OSError):
            os.write(self._stop_writer, b"!")

    def run(self, is_orphan: Callable[[], bool] = lambda: False) -> bool:
        """Work until told to stop, or until nothing is left to do if so asked. True: nothing was cut short."""
        self._start()
        try:
            self._wait(is_orphan)
        finally:
            is_clean = self._shut_down()
            for descriptor in (self._stop_reader, self._stop_writer):
                os.close(descriptor)
            self._ended.set()
        return is_clean

    def stop_and_wait(self) -> None:
        """At the end of an interpreter that will not wait for this worker's thread: give back what it holds."""
        self.request_stop(0.0)
        self._ended.wait(TIME_TO_SETTLE)

    # Starting

    def _start(self) -> None:
        options = self.options
        kinds = options.served_kinds()
        self._store = Store(options.database, self.identity, poll_period=options.poll_period)
        executor = Executor(self._store)
        self._timekeeper = Timekeeper()
        self._watch_lines()
        self._acker = Acker(
            self._store,
            self._is_busy,
            enough=max(1, options.batch // 2),
            slots_were_freed=lambda kinds: self._fetcher.look_at(kinds),
        )
        self._janitor = Janitor(options.database)
        self._heartbeat = Heartbeat(
            self._store,
            kinds,
            options.threads,
            self._board,
            held=self._to_renew,
            counts=self._counts,
            is_ready=lambda: self._fetcher.is_connected and not self._is_stopping,
            was_lost=self._was_lost,
            tick=self._give_back_surplus,
        )
        self._threads = Threads(
            options.threads, options.batch, executor, self._timekeeper, self._board, self._settle, self._is_held
        )
        self._loop: Loop | None = None
        self._pools: list[Pool] = [self._threads]
        if any(served.pool for served in kinds):
            self._loop = Loop(
                settings.ASYNC_LIMIT, options.batch, executor, self._board, options.threads, self._settle, self._is_held
            )
            self._pools.append(self._loop)
        self._fetcher = Fetcher(
            self._store,
            kinds,
            self._pools,
            self._heartbeat,
            self._budget,
            unsettled=lambda: self._acker.pending,
            most_unsettled=2 * options.batch,
        )
        self._parts: list[Part] = [self._acker, self._heartbeat, self._fetcher]
        for part in (self._acker, self._heartbeat, self._fetcher, self._janitor):
            part.start()
        if self._loop:
            self._parts.append(self._loop)
        signals.worker_started.send_robust(sender=Worker, identity=self.identity)

    def _watch_lines(self) -> None:
        self._timekeeper.watch(time.monotonic() + 1.0, self._watch_lines)
        lines.cut_silent_ones()

    # Working

    def _wait(self, is_orphan: Callable[[], bool]) -> None:
        ends_by_itself = self.options.until_empty or self._budget.is_limited
        while not self._is_stopping:
            select.select([self._stop_reader], [], [], BUSY_TICK if ends_by_itself else IDLE_TICK)
            if is_orphan():
                logger.warning("The supervisor is gone; stopping")
                return
            if self._budget.left() <= 0 and self._is_through():
                return
            if self.options.until_empty and self._is_empty():
                return
            if not all(part.is_alive for part in self._parts):
                logger.critical("A part of the worker has failed, which it never should; the process ends")
                self.is_worn_out = True
                return
            if self._threads.abandoned > self.options.threads:
                logger.error("Too many handlers overran their time and cannot be stopped; the process ends")
                self.is_worn_out = True
                return

    def _is_empty(self) -> bool:
        """Nothing runs, and a look at all kinds that began after the last was settled found nothing due."""
        if not self._is_through():
            return False
        asked_at = time.monotonic()
        self._fetcher.sweep()
        while not self._is_stopping and self._is_through():
            if self._fetcher.found_nothing_at >= asked_at:
                return self._is_through()
            time.sleep(0.002)
        return False

    def _is_through(self) -> bool:
        return not self._is_busy() and not self._acker.pending

    def _is_busy(self) -> bool:
        return any(len(pool.load) for pool in self._pools)

    def _to_renew(self) -> list[Delivery]:
        """What waits or runs, and what was handled but is not settled yet. Not what is being settled by its handler."""
        return [delivery for delivery in self._held() if not delivery.outcome] + self._acker.unsettled

    def _held(self) -> list[Delivery]:
        return [delivery for pool in self._pools for delivery in pool.load.held]

    def _counts(self) -> dict[str, int]:
        buffered = len(self._threads.buffer) + (self._loop.waiting if self._loop else 0)
        return {
            "running": max(0, sum(len(pool.load) for pool in self._pools) - buffered),
            "buffered": buffered,
            "handled": self._acker.handled,
            "failed": self._acker.failed,
        }

    def _settle(self, delivery: Delivery) -> None:
        """The handler is through with it."""
        self._acker.put(delivery)
        self._pools[1 if delivery.task.is_async else 0].load.remove(delivery)
        self._fetcher.room_was_made()

    def _is_held(self, delivery: Delivery) -> bool:
        try:
            with lines.watched(self._store.connection):
                return bool(self._store.extend([delivery]).ours)
        except Exception as error:
            logger.warning("It is not known whether %s is still leased: %s", delivery.key, error, extra=delivery.told)
            return False

    def _was_lost(self, delivery: Delivery) -> None:
        if not delivery.task.is_async and self._threads.buffer.discard(delivery):
            delivery.outcome = "lost"
            self._settle(delivery)

    def _give_back_surplus(self) -> None:
        for delivery in self._threads.buffer.take_back(idle_for=TOO_LONG_IN_THE_BUFFER):
            give_back(delivery)
            self._settle(delivery)
        if self._loop:
            self._loop.give_back_waiting(idle_for=TOO_LONG_IN_THE_BUFFER)

    # Stopping

    def _shut_down(self) -> bool:
        """Lease no more, give back what has not started, let the rest finish in time, then give that back, too."""
        began = time.monotonic()
        self._heartbeat.state = "stopping"
        self._fetcher.stop()
        self._fetcher.join(time.monotonic() + max(TIME_TO_SETTLE, lines.LONGEST_CALL + 1))
        for delivery in self._threads.buffer.take_back():
            give_back(delivery)
            self._settle(delivery)
        if self._loop:
            self._loop.give_back_waiting()
        self._threads.close()
        while self._is_busy() and time.monotonic() < began + self._shutdown_timeout:
            time.sleep(BUSY_TICK / 4)
        is_clean = not self._is_busy()
        if self._loop:
            self._loop.cancel()
            self._loop.join(time.monotonic() + (1.0 if not is_clean else 0.0))
        self._give_back_running()
        is_clean = self._acker.stop(time.monotonic() + TIME_TO_SETTLE) and is_clean
        self._heartbeat.stop(time.monotonic() + TIME_TO_SETTLE)
        self._timekeeper.stop()
        self._janitor.stop()
        if self._loop:
            self._loop.close()
        signals.worker_stopped.send_robust(sender=Worker, identity=self.identity)
        return is_clean

    @property
    def _shutdown_timeout(self) -> float:
        """A second signal makes it nothing."""
        return self.options.shutdown_timeout if self._timeout is None else self._timeout

    def _give_back_running(self) -> None:
        for delivery in self._held():
            if delivery.outcome:
                continue
            delivery.is_lost = True
            unfinished = Delivery.__new__(Delivery)  # its thread may still write to the one it has
            _copy(delivery, unfinished)
            give_back(unfinished)
            logger.warning(
                "%s did not end in time and is given back; no attempt is spent", delivery.key, extra=delivery.told
            )
            self._acker.put(unfinished)
            self._pools[1 if delivery.task.is_async else 0].load.remove(delivery)


def new_board(options: WorkerOptions) -> Board:
    return Board(options.threads + settings.ASYNC_LIMIT)
