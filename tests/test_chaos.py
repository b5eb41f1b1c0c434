"""The short forms of the chaos scenarios, each in a process, on one server. ``make chaos`` runs the full ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from delayed_queue.embedded import EmbeddedPostgresError
from tests.chaos.scenarios import NAMES
from tests.chaos.server import PROJECT, Server, prepared_server

LONGEST = 300  # seconds


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if not os.path.exists("/proc/self/task"):
        pytest.skip("worker processes are found in /proc")
    try:
        with prepared_server() as server:
            yield server
    except EmbeddedPostgresError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("scenario", NAMES)
def test_workers_survive(server: Server, scenario: str) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos", "--short", "--server", server.folder, scenario],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = run.communicate(timeout=LONGEST)
    finally:
        if run.poll() is None:
            run.send_signal(signal.SIGTERM)  # it ends what it has started
            run.wait()
    assert run.returncode == 0, said
    print(said)
