"""make chaos

python -m tests.chaos                                the full forms of all scenarios
python -m tests.chaos killed_children silent_line    of these
python -m tests.chaos --short                        the short forms, as in the tests
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import django

from tests.chaos.scenarios import NAMES, scenario
from tests.chaos.server import Server, prepared_server


@dataclass
class Result:
    name: str
    seconds: float
    has_passed: bool
    figures: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        return "passed" if self.has_passed else "FAILED"


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, _leave)  # so that nothing is left running
    with _server(arguments.server) as server:
        os.environ.update(server.environment())
        django.setup()
        results = [_run(name, server, arguments.short) for name in arguments.scenarios or NAMES]
    if len(results) > 1:
        _show(results)
    return 0 if all(result.has_passed for result in results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes, and no timed promises")
    parser.add_argument("--server", type=Path, help="the folder of a server that is prepared; default: a new one")
    arguments = parser.parse_args()
    for name in arguments.scenarios:
        if name not in NAMES:
            parser.error(f"There is no scenario {name}. There are: {', '.join(NAMES)}.")
    return arguments


def _leave(*_: Any) -> None:
    sys.exit(1)


@contextmanager
def _server(folder: Path | None) -> Iterator[Server]:
    if folder is not None:
        yield Server(folder)
        return
    print("Starting a PostgreSQL ...", flush=True)
    with prepared_server() as server:
        yield server


def _run(name: str, server: Server, is_short: bool) -> Result:
    from tests.chaos.trial import Trial

    run = scenario(name)
    first_line, *_ = (run.__doc__ or "").splitlines()
    print(f"{name}\n    {first_line}", flush=True)
    server.empty()
    began = time.monotonic()
    with TemporaryDirectory(prefix="chaos-", dir="/tmp") as folder:
        trial = Trial(server, Path(folder), is_short)
        try:
            with trial:
                run(trial)
            has_passed = True
        except Exception:
            has_passed = False
            traceback.print_exc()
            print(trial.logs())
    result = Result(name, time.monotonic() - began, has_passed, trial.figures)
    print(f"    {result.outcome} in {result.seconds:.0f} s: {'; '.join(result.figures)}", flush=True)
    return result


def _show(results: list[Result]) -> None:
    print(f"\n{'scenario':<24}{'':8}{'seconds':>8}  figures")
    for result in results:
        first, *others = result.figures or [""]
        print(f"{result.name:<24}{result.outcome:8}{result.seconds:8.0f}  {first}")
        for figure in others:
            print(f"{'':42}{figure}")


if __name__ == "__main__":
    sys.exit(main())
