"""From values to the bytes of a payload and back. Nothing is ever unpickled."""

from __future__ import annotations

import json
from typing import Any, Protocol, TypeVar

from delayed_queue.errors import InvalidInput, UndecodablePayload

T = TypeVar("T")


class Serializer(Protocol[T]):
    """``type_name`` is part of a queue's kind: two queues of one name with other types are two queues."""

    type_name: str

    def dumps(self, value: T) -> bytes: ...

    def loads(self, payload: bytes) -> T: ...


class TextSerializer:
    """UTF-8 text, as the JVM library writes its strings."""

    type_name = "java.lang.String"

    def dumps(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise InvalidInput(
                f"TextSerializer takes text, not {type(value).__name__}. "
                "For other values give the queue a JsonSerializer()."
            )
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"The payload is not valid Unicode text: {error}.") from None

    def loads(self, payload: bytes) -> str:
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise UndecodablePayload(f"The payload is not UTF-8 text: {error}") from error


class JsonSerializer:
    """Canonical JSON (sorted keys, no spaces, UTF-8): equal values are equal bytes, so that a re-offer is ignored."""

    type_name = "json"

    def dumps(self, value: Any) -> bytes:
        try:
            return json.dumps(
                value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
            ).encode()
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"The payload cannot be written as JSON: {error}. Offer numbers, text, booleans, None, lists and "
                "dicts with text keys."
            ) from error

    def loads(self, payload: bytes) -> Any:
        try:
            return json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise UndecodablePayload(f"The payload is not JSON: {error}") from error


class BytesSerializer:
    """The payload as it is."""

    type_name = "bytes"

    def dumps(self, value: bytes) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidInput(f"BytesSerializer takes bytes, not {type(value).__name__}.")
        return bytes(value)

    def loads(self, payload: bytes) -> bytes:
        return payload
