"""A host whose clock is wrong: libfaketime where it is installed, or else Python's own view of the time, patched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PATCH = Path(__file__).parent / "shifted_python"
LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")


def shifted_environment(environment: Mapping[str, str], seconds: int) -> dict[str, str]:
    """For processes on a host whose clock is ahead by so many seconds. The monotonic clock has no such notion."""
    library = faketime()
    if library is None:
        return {**environment, "PYTHONPATH": str(PATCH), "CHAOS_SHIFT": str(seconds)}
    return {
        **environment,
        "LD_PRELOAD": library,
        "FAKETIME": f"{seconds:+d}s",
    }


def faketime() -> str | None:
    found = [path for pattern in LIBRARIES for path in Path("/").glob(pattern.lstrip("/"))]
    return str(found[0]) if found else None
