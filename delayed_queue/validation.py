"""Rule R15: bad input is refused before any SQL, with a sentence that says what would be right."""

from __future__ import annotations

from functools import partial

from delayed_queue.conf import settings
from delayed_queue.errors import InvalidInput

LONGEST_KEY = 200
LONGEST_KIND = 100
LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100
MOST_ATTEMPTS = 32767  # a smallint


def check_name(name: str, what: str, longest: int) -> str:
    if not isinstance(name, str):
        raise InvalidInput(f"The {what} must be text, not {type(name).__name__}.")
    if len(name) > longest:
        raise InvalidInput(f"The {what} {name[:20]!r}… has {len(name)} characters; {longest} is the most.")
    if not name or name.isspace():
        raise InvalidInput(f"The {what} is blank; it must name something.")
    if "\0" in name:
        raise InvalidInput(f"The {what} {name!r} contains a NUL character, which PostgreSQL cannot store.")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"The {what} {name!r} is not valid Unicode text.") from None
    return name


check_key = partial(check_name, what="key", longest=LONGEST_KEY)
check_kind = partial(check_name, what="kind", longest=LONGEST_KIND)


def check_queue_name(name: str) -> str:
    check_name(name, "queue name", LONGEST_KEY)
    if "|" in name:
        raise InvalidInput(
            f"The queue name {name!r} contains '|', which separates it from the type of its payload in the kind. "
            "Use another character, or DelayedQueue.for_kind() for a kind in a namespace."
        )
    return name


def check_payload(payload: bytes) -> bytes:
    if not isinstance(payload, bytes):
        raise InvalidInput(f"The payload must be bytes here, not {type(payload).__name__}.")
    if len(payload) > settings.MAX_PAYLOAD_BYTES:
        raise InvalidInput(
            f"The payload has {len(payload)} bytes; the limit is {settings.MAX_PAYLOAD_BYTES} "
            "(DELAYED_QUEUE['MAX_PAYLOAD_BYTES']). Store it elsewhere and offer a reference to it."
        )
    return payload


def check_priority(priority: int) -> int:
    if type(priority) is not int or not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        raise InvalidInput(
            f"The priority must be a whole number from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}, not {priority!r}."
        )
    return priority


def check_max_attempts(max_attempts: int | None) -> int | None:
    if max_attempts is not None and (type(max_attempts) is not int or not 1 <= max_attempts <= MOST_ATTEMPTS):
        raise InvalidInput(
            f"max_attempts must be a whole number from 1 to {MOST_ATTEMPTS}, or None, not {max_attempts!r}."
        )
    return max_attempts
