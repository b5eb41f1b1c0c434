"""The statements of the queue.

What has a choice of plans, a loop, or is called for every message is a function in the database: one file each, with
the index it relies on, the guard it holds, and the figures. The rest are the statements in statements.py.
"""

from __future__ import annotations

from pathlib import Path

# In the order in which they must be created. A later migration installs a changed one again; a changed signature is
# another function, and the old one stays for as long as the last release that calls it may run.
FUNCTIONS = (
    *("is_preceded", "offer", "offer_each", "poll", "ack"),
    *("namespace", "grant", "count", "lease", "finish", "settle", "extend", "reclaim"),
    *("control_changed", "make_partitions"),
)


def function_source(name: str) -> str:
    return (Path(__file__).parent / f"{name}.sql").read_text()
