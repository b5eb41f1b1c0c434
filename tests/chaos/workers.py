"""``manage.py run_delayed_workers`` in a process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.chaos.server import PROJECT, Server
from tests.chaos.waiting import wait_until

NAME = "chaos-worker"


class Workers:
    def __init__(self, server: Server, log: Path, *arguments: object, env: Mapping[str, str] | None = None) -> None:
        self._server = server
        self.log = log
        with log.open("ab") as output:
            self._command = subprocess.Popen(
                [sys.executable, "manage.py", "run_delayed_workers", *map(str, arguments)],
                cwd=PROJECT,
                env=server.environment(CHAOS_NAME=NAME, PYTHONFAULTHANDLER="1") | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.supervisor = self._command.pid

    def children(self) -> list[int]:
        """The worker processes that live, by their parent: the kernel's list has those that are about to die, too."""
        try:
            found = Path(f"/proc/{self.supervisor}/task/{self.supervisor}/children").read_text().split()
        except OSError:
            return []
        return [int(pid) for pid in found if is_alive(int(pid))]

    def wait_until_ready(self, processes: int = 1) -> None:
        def are_ready() -> bool:
            assert self._command.poll() is None, f"the command ended:\n{self.log.read_text()}"
            beaten = {pid for (pid,) in self._server.ask("SELECT pid FROM delayed_queue_worker")}
            return len(beaten & set(self.children())) >= processes

        wait_until(are_ready, "the worker processes are ready")

    def signal(self, number: int) -> None:
        self._command.send_signal(number)

    def wait(self, seconds: float = 90) -> int:
        """The exit code."""
        return self._command.wait(seconds)

    def stop(self) -> None:
        """In good order, and it must go well."""
        self.signal(signal.SIGTERM)
        code = self.wait()
        assert code == 0, f"exit code {code}:\n{self.log.read_text()}"

    def say_where_they_stand(self) -> None:
        """Into the log: what each thread of each process is doing. They end of it."""
        for pid in self.children():
            os.kill(pid, signal.SIGABRT)
            wait_until(lambda pid=pid: not is_alive(pid), "a process dumps its stacks")  # type: ignore[misc]

    def kill(self) -> None:
        """All that is left of it, children without a parent included."""
        with suppress(ProcessLookupError):
            os.killpg(self.supervisor, signal.SIGKILL)
        self._command.wait()


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
