"""The event loop that runs ``async def`` handlers, many at once, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from delayed_queue.tasks.deliveries import Delivery
from delayed_queue.workers.executor import Executor, fail, give_back, judge
from delayed_queue.workers.pools import Load

if TYPE_CHECKING:
    from delayed_queue.workers.board import Board

logger = logging.getLogger("delayed_queue.workers")


class Loop:
    def __init__(
        self,
        limit: int,
        batch: int,
        executor: Executor,
        board: Board,
        first_place: int,
        settle: Callable[[Delivery], None],
        is_held: Callable[[Delivery], bool],
    ) -> None:
        self.load = Load(limit, batch)
        self._executor = executor
        self._board = board
        self._settle = settle
        self._is_held = is_held
        self._waiting: OrderedDict[str, deque[Delivery]] = OrderedDict()  # by kind; only the loop's thread touches it
        self._free = list(range(first_place, first_place + limit))  # places on the board
        self._running: dict[int, asyncio.Task[None]] = {}  # by place
        self._is_stopping = False
        self._moved_at = 0.0  # when one was last added or started
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="event-loop", daemon=True)
        self._thread.start()

    def put(self, deliveries: list[Delivery]) -> None:
        self.load.add(deliveries)
        self._loop.call_soon_threadsafe(self._add, deliveries)

    @property
    def waiting(self) -> int:
        return sum(len(waiting) for waiting in list(self._waiting.values()))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _add(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self._waiting.setdefault(delivery.kind, deque()).append(delivery)
        self._moved_at = time.monotonic()
        self._start_some()

    def _start_some(self) -> None:
        while self._free and self._waiting:
            kind, waiting = next(iter(self._waiting.items()))
            delivery = waiting.popleft()
            if waiting:
                self._waiting.move_to_end(kind)
            else:
                del self._waiting[kind]
            place = self._free.pop()
            self._moved_at = time.monotonic()
            # A context of its own: this may be called at the end of another handler, in that one's.
            self._running[place] = self._loop.create_task(self._handle(delivery, place), context=Context())

    async def _handle(self, delivery: Delivery, place: int) -> None:
        try:
            if delivery.is_lost or (
                time.monotonic() >= delivery.held_until
                and not await sync_to_async(self._is_held, thread_sensitive=False)(delivery)
            ):
                delivery.outcome, delivery.is_lost = "lost", True
                return
            self._board.start(place, delivery.id)
            timeout = delivery.task.timeout
            if timeout is None:
                await self._executor.aexecute(delivery)
            else:
                await self._with_timeout(delivery, timeout)
            if delivery.outcome != "done":
                await sync_to_async(close_old_connections, thread_sensitive=True)()
        except asyncio.CancelledError as error:
            if self._is_stopping:
                give_back(delivery)
            else:  # something that the handler waited for was cancelled
                judge(delivery, error)
        finally:
            # Not in a done callback, which the loop schedules for each: 1.6 us of 10.
            self._board.end(place)
            del self._running[place]
            self._free.append(place)
            try:
                self._settle(delivery)
            except Exception:
                logger.exception("A delivery could not be settled")
            self._start_some()

    async def _with_timeout(self, delivery: Delivery, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._executor.aexecute(delivery)
        except TimeoutError:
            error = f"TaskTimeout: the handler ran for more than {timeout:g} s"
            fail(delivery, error, error)

    # Stopping

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def give_back_waiting(self, idle_for: float = 0.0) -> None:
        """What waits and was not started; only if nothing was added or started for so many seconds."""
        if self._waiting and time.monotonic() - self._moved_at >= idle_for:
            self._loop.call_soon_threadsafe(self._give_back_waiting)

    def cancel(self) -> None:
        """End what runs; each gives its message back."""
        self._is_stopping = True
        self._loop.call_soon_threadsafe(self._cancel_running)

    def join(self, deadline: float) -> bool:
        while not (is_over := self._is_over()) and time.monotonic() < deadline:
            time.sleep(0.005)
        return is_over

    def _is_over(self) -> bool:
        """One that was cancelled before its first step is done, but could not take itself out."""
        return all(running.done() for running in list(self._running.values()))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1)

    def _give_back_waiting(self) -> None:
        for waiting in self._waiting.values():
            for delivery in waiting:
                give_back(delivery)
                self._settle(delivery)
        self._waiting.clear()

    def _cancel_running(self) -> None:
        for running in list(self._running.values()):
            running.cancel()
