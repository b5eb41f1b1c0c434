"""Arrays as PostgreSQL reads them, for the long ones: psycopg's own dumper takes three to five times as long."""

from __future__ import annotations

from collections.abc import Iterable


def integers(values: Iterable[int | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def texts(values: Iterable[str]) -> str:
    escaped = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(escaped) + '"}' if escaped else "{}"


def binaries(values: Iterable[bytes]) -> str:
    escaped = [value.hex() for value in values]
    return '{"\\\\x' + '","\\\\x'.join(escaped) + '"}' if escaped else "{}"
