"""make bench, or python -m tests.benchmarks [queue] [drain] [lateness] [pickup]"""

from __future__ import annotations

import argparse
import os
import sys

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.settings"

import django

django.setup()

from django.db import connection
from rich.console import Console

from tests.benchmarks import drain, lateness, pickup, queues
from tests.benchmarks.measuring import Comparison, Figure, show
from tests.benchmarks.table import Table

PARTS = {"queue": queues.run, "drain": drain.run, "lateness": lateness.run, "pickup": pickup.run}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; all of them where none is given")
    parts = parser.parse_args().parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    name = connection.settings_dict["NAME"]
    connection.settings_dict.setdefault("TEST", {})["NAME"] = f"delayed_queue_bench_{os.getpid()}"
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    table = Table()
    console = Console()
    found: list[Comparison | Figure] = []
    try:
        for part in parts:
            with console.status(part):
                for one in PARTS[part](table):
                    found.append(one)
                    console.print(f"  {one}")
        good = show(console, found)
    finally:
        table.close()
        connection.creation.destroy_test_db(name, verbosity=0)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
