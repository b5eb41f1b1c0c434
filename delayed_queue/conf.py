"""The one setting, ``DELAYED_QUEUE``: a dict, of which every key has a default.

Read when it is used, never at import, so that ``override_settings`` works. Mistakes are found by ``manage.py check``
(see checks.py); at run time a bad value raises ImproperlyConfigured.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import Field, asdict, dataclass, field, fields
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

SETTING = "DELAYED_QUEUE"


@dataclass(frozen=True)
class Settings:
    # The alias in DATABASES whose PostgreSQL holds the queue.
    DATABASE: str = "default"
    # Seconds between two looks at an idle queue. Due messages do not wait for it: a poller knows when the next one is
    # due, and is woken for new ones. It bounds the delay where nothing wakes it (PgBouncer, a lost notification).
    POLL_PERIOD: float = 3.0
    # Larger payloads are refused: a queue moves references, not files.
    MAX_PAYLOAD_BYTES: int = 1024 * 1024
    # Announce messages that are due before the next poll. Off: idle pollers find them within POLL_PERIOD.
    NOTIFY: bool = True
    # Prepare the queue's statements on the server, on connections that are not a pooler's (see sessions.py).
    PREPARE: bool = True
    # LISTEN for such announcements while waiting, on connections that are not a pooler's.
    LISTEN: bool = True
    # Seconds for which the history of deliveries is kept. It goes by whole days, with the partition of the day.
    HISTORY_RETENTION: float = 7 * 86400.0
    # Seconds for which dead messages are kept. None: until someone re-drives or discards them.
    DEAD_RETENTION: float | None = None
    # Seconds for which the results of Django's tasks are kept after they were finished.
    RESULT_RETENTION: float = 7 * 86400.0
    # Which attempts get a line of history: all; failures, which are all but those that are done; or none. A line is
    # written with the acknowledgement, and costs about 250 bytes of WAL.
    JOURNAL: str = field(default="all", metadata={"choices": ("all", "failures", "none")})
    # How many async handlers run at once in one process: they wait for others most of the time, and take no thread.
    ASYNC_LIMIT: int = 100


def mistakes(value: Any) -> Iterator[tuple[str, str | None]]:
    """What is wrong with a DELAYED_QUEUE setting: pairs of a sentence and a hint."""
    if not isinstance(value, dict):
        yield f"{SETTING} must be a dict, not {type(value).__name__}.", None
        return
    known = {known.name: known for known in fields(Settings)}
    for name, given in value.items():
        if name not in known:
            near = difflib.get_close_matches(str(name).upper(), known, n=1)
            yield (
                f"{SETTING} has an unknown key {name!r}.",
                f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(known)}.",
            )
            continue
        problem = _problem(known[name], given)
        if problem:
            yield f"{SETTING}[{name!r}] must be {problem}, not {given!r}.", None


def _problem(known: Field[Any], given: Any) -> str | None:
    """What the setting must be, if it is not: its default says which type it has."""
    if known.default is None:
        problem = None if given is None else _seconds_problem(given)
        return problem and f"{problem}, or None"
    if "choices" in known.metadata:
        *most, last = map(repr, known.metadata["choices"])
        return None if given in known.metadata["choices"] else f"{', '.join(most)} or {last}"
    if isinstance(known.default, bool):
        return None if isinstance(given, bool) else "True or False"
    if isinstance(known.default, str):
        return None if isinstance(given, str) and given else "the name of a database"
    if isinstance(known.default, int):
        return None if type(given) is int and given > 0 else "a whole number greater than 0"
    return _seconds_problem(given)


def _seconds_problem(given: Any) -> str | None:
    if isinstance(given, timedelta):
        given = given.total_seconds()
    good = isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < float("inf")
    return None if good else "a number of seconds greater than 0"


class _CurrentSettings:
    """The settings in force as attributes, read on first use and again after ``override_settings``."""

    def __getattr__(self, name: str) -> Any:  # only where __dict__ does not have them yet
        from django.conf import settings as django_settings

        value = getattr(django_settings, SETTING, {})
        for sentence, hint in mistakes(value):
            raise ImproperlyConfigured(f"{sentence} {hint or ''}".strip())
        for key, given in asdict(Settings(**value)).items():
            self.__dict__[key] = given.total_seconds() if isinstance(given, timedelta) else given
        if name not in self.__dict__:
            raise AttributeError(name)
        return self.__dict__[name]

    def reload(self, *, setting: str, **kwargs: Any) -> None:
        if setting == SETTING:
            self.__dict__.clear()


settings = _CurrentSettings()
setting_changed.connect(settings.reload, dispatch_uid="delayed_queue.conf")
