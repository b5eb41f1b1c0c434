"""One run of a scenario: what it works with, and what it found."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tests.chaos.ledger import Ledger
from tests.chaos.load import Load
from tests.chaos.server import Server
from tests.chaos.tasks import single
from tests.chaos.waiting import wait_until
from tests.chaos.workers import Workers

T = TypeVar("T")

SOON = 10.0  # after a disturbance: the promise, in the full forms
LONGEST = 60.0  # in the short ones, which run beside other tests


class Trial:
    def __init__(self, server: Server, folder: Path, is_short: bool) -> None:
        self.server = server
        self.folder = folder
        self.is_short = is_short
        self.load = Load()
        self.figures: list[str] = []
        self._numbers = itertools.count()
        self._started: list[Workers] = []
        self.at_end = ExitStack()

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for workers in self._started:
            if error is not None:
                workers.say_where_they_stand()
            workers.kill()
        self.at_end.close()

    def pick(self, short: T, full: T) -> T:
        return short if self.is_short else full

    def start_workers(self, *arguments: object, processes: int = 1, env: Mapping[str, str] | None = None) -> Workers:
        log = self.folder / f"workers-{next(self._numbers)}.log"
        workers = Workers(self.server, log, "--processes", processes, *arguments, env=env)
        self._started.append(workers)
        workers.wait_until_ready(processes)
        return workers

    def ledger(self, failures: Collection[str] = ()) -> Ledger:
        return Ledger(self.server, self.load, failures=failures)

    def note(self, figure: str) -> None:
        self.figures.append(figure)

    def check_recovery(self) -> None:
        """The disturbance is over: what is offered now is handled soon."""
        began = time.monotonic()
        (key,) = self.load.offer(single, 1)
        handled = "SELECT count(*) FROM chaos_ledger WHERE kind = 'single' AND key = %s"
        wait_until(lambda: self.server.value(handled, key), "a message after the disturbance", LONGEST, every=0.01)
        seconds = time.monotonic() - began
        self.note(f"back after {seconds:.1f} s")
        assert self.is_short or seconds < SOON, f"The first message after the disturbance took {seconds:.1f} s"

    def logs(self) -> str:
        """The end of what the commands said."""
        return "\n".join(
            f"--- {workers.log.name}\n{workers.log.read_text(errors='replace')[-20000:]}" for workers in self._started
        )
