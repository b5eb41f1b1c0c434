"""The supervisor: starts the worker processes, starts those anew that die, and gives back at once what they held.

It forks, so that the project is loaded once, and therefore has no threads and no open connections when it does.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from types import FrameType
from typing import Any

from django.db import connections

from delayed_queue.errors import error_text
from delayed_queue.retry import Backoff
from delayed_queue.workers import lines
from delayed_queue.workers.board import Board
from delayed_queue.workers.budget import Budget
from delayed_queue.workers.health import HealthServer
from delayed_queue.workers.identity import Identity
from delayed_queue.workers.options import WorkerOptions
from delayed_queue.workers.store import ServedKind, Store
from delayed_queue.workers.worker import TIME_TO_SETTLE, Worker, new_board

logger = logging.getLogger("delayed_queue.workers")

# A process that shows no sign of life for so long is stuck as a whole, in an extension that holds the GIL for example.
SILENCE = 60.0
TURN = 1.0
_again = Backoff(initial=0.1, factor=2.0, maximum=10.0, jitter=0.2)
# Exit codes. 0 is that of a handler that calls os._exit(0).
FINISHED, WORN_OUT = 17, 18
LONG_LIFE = 10.0  # who lived so long did not die of its start


@dataclass
class Child:
    """A place for a process, and the process that is in it now."""

    number: int
    process: ForkProcess | None = None
    identity: Identity = field(default_factory=Identity)
    board: Board | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    deaths: int = 0
    is_done: bool = False


@dataclass
class Estate:
    """What a dead process left behind. Another process gives it back, so that the supervisor waits for no database."""

    identity: Identity
    started: list[int]
    error: str | None
    died_at: float = field(default_factory=time.monotonic)
    process: ForkProcess | None = None
    since: float = float("-inf")


class Supervisor:
    def __init__(
        self, options: WorkerOptions, processes: int, max_messages: int | None = None, health_port: int | None = None
    ) -> None:
        self.options = options
        self.kinds = options.served_kinds()
        self._budget = Budget(max_messages)
        self._children = [Child(number) for number in range(processes)]
        self._estates: list[Estate] = []
        self._signals = self._passed_on = 0
        self._kill_at: float | None = None
        self._health = None if health_port is None else HealthServer(health_port, self.report)
        self._context = multiprocessing.get_context("fork")

    def run(self) -> int:
        """Until all processes have ended by themselves, or were told to. Returns the exit code."""
        lines.prepare(self.options.database)
        connections.close_all()  # children must not share a connection; from here on there is none
        for connection in connections.all(initialized_only=True):
            if hasattr(connection, "close_pool"):
                connection.close_pool()
        self._pid = os.getpid()
        wakeup, self._wakeup = os.pipe()
        for descriptor in (wakeup, self._wakeup):
            os.set_blocking(descriptor, False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        while not all(child.is_done for child in self._children):
            self._start_missing()
            self._wait(wakeup)
            self._pass_signals_on()
            self._bury_dead()
            self._kill_silent()
            self._settle_estates()
        deadline = time.monotonic() + TIME_TO_SETTLE
        while self._estates and time.monotonic() < deadline:
            self._wait(wakeup)
            self._settle_estates()
        return 0

    def report(self) -> tuple[bool, bool, dict[str, Any]]:
        boards = [child.board for child in self._children if child.process is not None and child.board is not None]
        alive = [board for board in boards if board.beaten_ago < SILENCE]
        ready = [board for board in alive if board.is_ready]
        wanted = sum(1 for child in self._children if not child.is_done)
        details = {"processes": wanted, "alive": len(alive), "ready": len(ready)}
        return bool(alive) or self._signals > 0, len(ready) == wanted > 0 and not self._signals, details

    # Signals

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first lets them finish, the second does not."""
        if os.getpid() != self._pid:
            os._exit(FINISHED)  # a child that was told before it could listen for itself
        self._signals += 1
        os.write(self._wakeup, b"!")

    def _pass_signals_on(self) -> None:
        """Not in the signal's handler: a child may just be coming into the world."""
        if self._signals == self._passed_on:
            return
        self._passed_on = self._signals
        if self._signals == 1:
            self._kill_at = time.monotonic() + self.options.shutdown_timeout + TIME_TO_SETTLE + lines.LONGEST_CALL + 5
        else:
            self._kill_at = time.monotonic()
        for child in self._children:
            if child.process is not None and child.process.pid is not None:
                _send(child.process.pid, signal.SIGTERM)
            else:
                child.is_done = True

    # The life of a child

    def _start_missing(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.process is None and not child.is_done and now >= child.start_at and not self._signals:
                self._start(child)

    def _start(self, child: Child) -> None:
        child.identity, child.board, child.started_at = Identity(), new_board(self.options), time.monotonic()
        child.process = self._fork(
            _work, self.options, child.identity.id, child.board, self._budget, os.getpid(), self._health
        )

    def _wait(self, wakeup: int) -> None:
        sources: list[Any] = [child.process.sentinel for child in self._children if child.process is not None]
        givers = [estate.process for estate in self._estates if estate.process is not None]
        sources += [process.sentinel for process in givers if process.is_alive()]
        sources.append(wakeup)
        if self._health is not None:
            sources.append(self._health.socket)
        turn = TURN
        if self._kill_at is not None:
            turn = min(turn, max(0.0, self._kill_at - time.monotonic()))
        if self._estates:
            turn = min(turn, 0.05)
        ready = wait(sources, timeout=turn)
        if wakeup in ready:
            os.read(wakeup, 4096)
        if self._health is not None and self._health.socket in ready:
            self._health.handle_request()

    def _bury_dead(self) -> None:
        for child in self._children:
            process = child.process
            if process is None or process.is_alive():
                continue
            process.join()
            code = process.exitcode
            child.process = None
            if code == FINISHED and (self._signals or self.options.until_empty or self._budget.left() <= 0):
                child.is_done = True
                continue
            how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            self._take_estate(child, how)
            if self._signals:
                child.is_done = True
                continue
            if time.monotonic() - child.started_at > LONG_LIFE:
                child.deaths = 0
            child.deaths += 1
            delay = _again.seconds(child.deaths)
            child.start_at = time.monotonic() + delay
            logger.error("Worker process %s died (%s); another is started in %.1f s", process.pid, how, delay)

    def _take_estate(self, child: Child, how: str) -> None:
        """What it was running has spent its attempt, unless it was we who killed it."""
        assert child.board is not None  # noqa: S101
        started = [] if self._signals else child.board.started()
        error = f"The worker process died ({how}) while this message was handled" if started else None
        self._estates.append(Estate(child.identity, started, error))

    def _settle_estates(self) -> None:
        remaining = []
        for estate in self._estates:
            process = estate.process
            if process is not None and process.is_alive():
                if time.monotonic() - estate.since > lines.LONGEST_CALL:
                    process.kill()
                remaining.append(estate)
            elif process is not None and process.exitcode == 0:
                process.join()
            elif time.monotonic() - estate.died_at < self._longest_lease:  # else it has come back by itself
                if time.monotonic() - estate.since > TURN:
                    estate.since = time.monotonic()
                    estate.process = self._fork(_give_back, self.options, self.kinds, estate)
                remaining.append(estate)
        self._estates = remaining

    @property
    def _longest_lease(self) -> float:
        return max((served.lease_ms for served in self.kinds), default=0) / 1000

    def _fork(self, target: Callable[..., None], *args: Any) -> ForkProcess:
        sys.stdout.flush()
        sys.stderr.flush()
        process = self._context.Process(target=target, args=args)
        process.start()
        return process

    def _kill_silent(self) -> None:
        now = time.monotonic()
        for child in self._children:
            process = child.process
            if process is None or process.pid is None or child.board is None:
                continue
            if self._kill_at is not None and now >= self._kill_at:
                _send(process.pid, signal.SIGKILL)
            elif now - child.started_at > SILENCE and child.board.beaten_ago > SILENCE and not _is_stopped(process.pid):
                logger.error("Worker process %s shows no sign of life; it is killed", process.pid)
                _send(process.pid, signal.SIGKILL)


def _work(
    options: WorkerOptions, id: int, board: Board, budget: Budget, supervisor: int, health: HealthServer | None
) -> None:
    """The life of a worker process."""
    if health is not None:
        health.socket.close()  # the supervisor answers
    worker = Worker(options, Identity(id=id), board, budget)
    # systemd sends it to all processes, and so does the supervisor: twice means no more than once. It is the supervisor
    # that hurries, and kills.
    me = os.getpid()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if os.getpid() == me:
            worker.request_stop()
        else:  # a process that a handler has forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all, and the supervisor passes it on
    worker.run(is_orphan=lambda: os.getppid() != supervisor)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(WORN_OUT if worker.is_worn_out else FINISHED)  # a handler that does not end must not keep the process


def _give_back(options: WorkerOptions, kinds: list[ServedKind], estate: Estate) -> None:
    """In a process of its own: release what the dead one held."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # it is quick, and killed if it is not
    store = Store(options.database, estate.identity, poll_period=options.poll_period)
    try:
        count = store.reclaim(kinds, estate.identity.lock_prefix, estate.started, estate.error)
        store.leave()
    except Exception as error:
        logger.debug("What a dead process held could not be given back yet: %s", error_text(error))
        os._exit(1)
    if count:
        logger.warning("%d messages that a dead process held were given back", count)
    logging.shutdown()
    os._exit(0)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_stopped(pid: int) -> bool:
    """Whether a person has stopped it (SIGSTOP), to look at it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "tT"
    except OSError:
        return False
