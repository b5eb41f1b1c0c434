"""The call that a message stands for: its arguments, on the wire as JSON ``{"args": [...], "kwargs": {...}}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from inspect import Signature
from typing import Any

from delayed_queue.clocks import Duration, duration_ms, to_ms
from delayed_queue.errors import InvalidInput, UndecodablePayload
from delayed_queue.serializers import JsonSerializer

json = JsonSerializer()


@dataclass(frozen=True, slots=True)
class TaskCall:
    """One call of ``offer_many`` that has a key or a time of its own."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    at: datetime | None = None
    delay: Duration | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.args, tuple | list):
            raise InvalidInput(f"TaskCall(args=) must be a tuple or a list, not {type(self.args).__name__}.")
        if not isinstance(self.kwargs, Mapping):
            raise InvalidInput(f"TaskCall(kwargs=) must be a dict, not {type(self.kwargs).__name__}.")
        check_time(self.at, self.delay)


def as_call(item: Any) -> TaskCall:
    """An item of ``offer_many``: positional arguments in a tuple or list, keyword ones in a dict, or a TaskCall."""
    if isinstance(item, TaskCall):
        return item
    if isinstance(item, tuple | list):
        return TaskCall(args=item)
    if isinstance(item, dict):
        return TaskCall(kwargs=item)
    raise InvalidInput(
        f"{type(item).__name__} is no call. Wrap a single argument in a tuple, as in offer_many([(value,), ...]), "
        "or give a dict of keyword arguments or a TaskCall."
    )


def check_time(at: datetime | None, delay: Duration | None) -> tuple[datetime | None, Duration | None]:
    if at is not None and delay is not None:
        raise InvalidInput("at= and delay= both say when. Give one of them.")
    if at is not None:
        to_ms(at, "at")
    if delay is not None and duration_ms(delay, "delay") < 0:
        raise InvalidInput(f"delay must not be negative, not {delay}. For a moment in the past give at=.")
    return at, delay


def dump_call(kind: str, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The payload, after a look whether the handler would take these arguments, and whether JSON can carry them."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInput(f"The task {kind!r} is called as {signature}: {error}.") from None
    try:
        payload = json.dumps({"args": list(args), "kwargs": dict(kwargs)})
        _check_keys([*args, *kwargs.values()])
    except InvalidInput as error:
        raise InvalidInput(f"The arguments of the task {kind!r} are not JSON. {error}") from error.__cause__
    except RecursionError:
        raise InvalidInput(
            f"The arguments of the task {kind!r} are nested too deeply for JSON. Store them, and offer a reference."
        ) from None
    return payload


def load_call(payload: bytes) -> tuple[list[Any], dict[str, Any]]:
    call = json.loads(payload)
    if not isinstance(call, dict):
        raise UndecodablePayload('The payload is no call of a task: it must be an object with "args" and "kwargs".')
    args, kwargs = call.get("args"), call.get("kwargs")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise UndecodablePayload(
            'The payload is no call of a task: "args" must be there as a list, and "kwargs" as an object.'
        )
    return args, kwargs


def _check_keys(values: Sequence[Any]) -> None:
    """JSON has text keys only, and json.dumps makes text of others without a word: {1: 2} would arrive as {"1": 2}."""
    for value in values:
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise InvalidInput(
                        f"A dict has the key {key!r}, which would arrive as text. Use text keys, or a list of pairs."
                    )
            _check_keys(list(value.values()))
        elif isinstance(value, list | tuple):
            _check_keys(value)
