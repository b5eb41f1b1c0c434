"""The processes that are measured: workers as the command starts them, and two that do the same work by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tests.benchmarks.settings import DATABASE_VARIABLE
from tests.benchmarks.table import Table, connection_parameters
from tests.benchmarks.tasks import TIMES_VARIABLE

ROOT = Path(__file__).resolve().parent.parent.parent


class Workers:
    """``manage.py run_delayed_workers`` for one kind, for as long as the block lasts: started, idle and listening."""

    def __init__(self, table: Table, kind: str, processes: int) -> None:
        self._table = table
        self._arguments = ["--kinds", kind, "--processes", str(processes), "--verbosity", "0"]
        self._processes = processes

    def __enter__(self) -> Workers:
        self._times = tempfile.NamedTemporaryFile(prefix="delayed_queue_times")  # closed in __exit__
        environment = {
            **os.environ,
            DATABASE_VARIABLE: connection_parameters()["dbname"],
            TIMES_VARIABLE: self._times.name,
        }
        self._command = subprocess.Popen(
            [sys.executable, "manage.py", "run_delayed_workers", *self._arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        while self._table.workers() < self._processes:
            if self._command.poll() is not None:
                raise RuntimeError("The workers have ended; their log is above")
            time.sleep(0.05)
        time.sleep(1.0)  # they say that they are there, then look at the queue, listen, and look again
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._command.terminate()
        self._command.wait()
        self._times.close()

    def times(self) -> dict[int, int]:
        """By number of the message: when its handler began, in nanoseconds of the epoch."""
        lines = Path(self._times.name).read_text().splitlines()
        return {int(number): int(began) for number, began in map(str.split, lines)}

    def cpu_seconds(self) -> float:
        """Of the command, its processes and their threads, so far."""
        pids = [self._command.pid, *_children(self._command.pid)]
        return sum(_nanoseconds(thread) for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()) / 1e9


class RawWorkers:
    """Two processes with a connection each, which lease and acknowledge by hand when they are told to."""

    def __init__(self, kind: str, batch: int) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.raw", json.dumps(connection_parameters()), kind, str(batch)]
        self._processes = [
            subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        self._hear()

    def drain(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("drain\n")
            process.stdin.flush()
        self._hear()

    def close(self) -> None:
        for process in self._processes:
            process.communicate()

    def _hear(self) -> None:
        for process in self._processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("A raw worker has ended; its log is above")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _nanoseconds(thread: Path) -> int:
    return int((thread / "schedstat").read_text().split()[0])
