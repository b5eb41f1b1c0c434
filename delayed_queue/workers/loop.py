"""The event loop that runs ``async def`` handlers, many at once, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from delayed_queue.tasks.deliveries import Delivery
from delayed_queue.workers.executor import Executor, fail, give_back
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
            self._running[place] = self._loop.create_task(self._handle(delivery, place))

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
        except asyncio.CancelledError:
            give_back(delivery)  # the worker stops
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

    def take_back(self) -> list[Delivery]:
        """What waits and was not started."""
        return self._in_loop(self._take_waiting)

    def cancel(self) -> None:
        """End what runs; each gives its message back."""
        self._in_loop(lambda: [running.cancel() for running in self._running.values()])

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

    def _take_waiting(self) -> list[Delivery]:
        taken = [delivery for waiting in self._waiting.values() for delivery in waiting]
        self._waiting.clear()
        return taken

    def _in_loop(self, function: Callable[[], list[Delivery] | list[bool]]) -> list[Delivery]:
        async def call() -> list[Delivery]:
            return function()  # type: ignore[return-value]

        try:
            return asyncio.run_coroutine_threadsafe(call(), self._loop).result(timeout=5)
        except TimeoutError:  # a handler blocks the loop
            return []
