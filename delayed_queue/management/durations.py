"""Durations on the command line: a number and its unit."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> timedelta:
    """For argparse: ``90s``, ``15m``, ``2h`` or ``7d``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration. Write 90s, 15m, 2h or 7d.")
    try:
        return timedelta(**{UNITS[found[2]]: float(found[1])})
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than a duration can be.") from None
