"""Keys for messages that nobody will ask for by name."""

from __future__ import annotations

import os
import time


def fresh_key() -> str:
    """32 hex digits: the host's milliseconds, then chance.

    In the order of time, so that a new key goes to the end of the unique index, whose last page is in memory; keys of
    chance alone dirty a page of it each. A host's wrong clock costs that, and nothing else.
    """
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"
