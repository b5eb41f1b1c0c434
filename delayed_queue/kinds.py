"""What a kind is made of. The formats are shared with the JVM library, byte for byte."""

from __future__ import annotations

import hashlib

NAMESPACE_SEPARATOR = "|"
DEFAULT_NAMESPACE = "default"


def queue_kind(queue_name: str, type_name: str) -> str:
    return hashlib.md5(f"{queue_name}|{type_name}".encode(), usedforsecurity=False).hexdigest()


def namespace_of(kind: str) -> str:
    namespace, separator, _ = kind.partition(NAMESPACE_SEPARATOR)
    return namespace if separator else DEFAULT_NAMESPACE
