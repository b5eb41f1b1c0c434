"""Pausing and limiting kinds and namespaces. All workers see a change at once; a trigger tells them."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, models

from delayed_queue import sessions
from delayed_queue.clocks import Duration, positive_ms
from delayed_queue.conf import settings
from delayed_queue.errors import InvalidInput
from delayed_queue.kinds import NAMESPACE_SEPARATOR
from delayed_queue.retry import RetryConfig, with_retries
from delayed_queue.twins import async_twin
from delayed_queue.validation import check_kind

if TYPE_CHECKING:
    from delayed_queue.models import Control

# Nothing is written, and so nobody woken, where it is as wanted already.
_PAUSE = """
    INSERT INTO delayed_queue_control AS c (scope, name, paused) VALUES (%(scope)s, %(name)s, true)
    ON CONFLICT (scope, name) DO UPDATE SET paused = true WHERE NOT c.paused
    RETURNING id
"""
_RESUME = """
    UPDATE delayed_queue_control SET paused = false WHERE scope = %(scope)s AND name = %(name)s AND paused RETURNING id
"""
_LIMIT = """
    INSERT INTO delayed_queue_control AS c (scope, name, max_running, rate, rate_period)
    VALUES (%(scope)s, %(name)s, %(max_running)s::integer, %(rate)s::integer, %(rate_period)s)
    ON CONFLICT (scope, name) DO UPDATE SET
        max_running = CASE WHEN %(with_max_running)s THEN EXCLUDED.max_running ELSE c.max_running END,
        rate = CASE WHEN %(with_rate)s THEN EXCLUDED.rate ELSE c.rate END,
        rate_period = CASE WHEN %(with_rate)s THEN EXCLUDED.rate_period ELSE c.rate_period END
    RETURNING id
"""
_CLEAR = "DELETE FROM delayed_queue_control WHERE scope = %(scope)s AND name = %(name)s RETURNING id"

LARGEST_INTEGER = 2**31 - 1


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged()


class ControlManager(models.Manager["Control"]):
    """Each takes ``kind=`` or ``namespace=``, and ``using=`` for a database other than the queue's."""

    def pause(self, *, kind: str | None = None, namespace: str | None = None, using: str | None = None) -> bool:
        """Start no more of these until ``resume()``; what runs goes on. False if they were paused already."""
        return self._run(_PAUSE, _scope(kind, namespace), using)

    def resume(self, *, kind: str | None = None, namespace: str | None = None, using: str | None = None) -> bool:
        """False if they were not paused. A kind stays paused as long as its namespace is."""
        return self._run(_RESUME, _scope(kind, namespace), using)

    def limit(
        self,
        *,
        kind: str | None = None,
        namespace: str | None = None,
        max_running: int | _Unchanged | None = UNCHANGED,
        rate: int | _Unchanged | None = UNCHANGED,
        per: Duration | None = None,
        using: str | None = None,
    ) -> None:
        """Let at most ``max_running`` run at once across all workers, and at most ``rate`` start in each ``per``.

        None removes a limit, and one that is not mentioned stays. ``per`` is a second unless said otherwise.
        """
        scope = _scope(kind, namespace)
        if max_running is UNCHANGED and rate is UNCHANGED:
            raise InvalidInput("limit() needs max_running or rate; None removes that limit.")
        if per is not None and not isinstance(rate, int):
            raise InvalidInput("per is the time in which rate may start; give both.")
        parameters = scope | {
            "with_max_running": max_running is not UNCHANGED,
            "max_running": _whole_number(max_running, "max_running", least=0),
            "with_rate": rate is not UNCHANGED,
            "rate": _whole_number(rate, "rate", least=1),
            "rate_period": positive_ms(1 if per is None else per, "per"),
        }
        self._run(_LIMIT, parameters, using)

    def clear(self, *, kind: str | None = None, namespace: str | None = None, using: str | None = None) -> bool:
        """Forget the pause and all limits. False if there were none."""
        return self._run(_CLEAR, _scope(kind, namespace), using)

    def paused(self, *, using: str | None = None) -> models.QuerySet[Control]:
        return self.using(self._alias(using)).filter(paused=True).order_by("scope", "name")

    def _alias(self, using: str | None) -> str:
        alias: str = using or self._db or settings.DATABASE
        return alias

    def _run(self, statement: str, parameters: dict[str, Any], using: str | None) -> bool:
        connection = connections[self._alias(using)]
        fetchone = methodcaller("fetchone")
        row = with_retries(connection, RetryConfig(), lambda: sessions.run(connection, fetchone, statement, parameters))
        return row is not None

    apause = async_twin(pause)
    aresume = async_twin(resume)
    alimit = async_twin(limit)
    aclear = async_twin(clear)


def _scope(kind: str | None, namespace: str | None) -> dict[str, Any]:
    if kind is not None and namespace is None:
        return {"scope": "kind", "name": check_kind(kind)}
    if namespace is None or kind is not None:
        raise InvalidInput("Give either kind= or namespace=.")
    check_kind(namespace, what="namespace")
    if NAMESPACE_SEPARATOR in namespace:
        raise InvalidInput(f"The namespace {namespace!r} contains '|', which ends it: give the part before, or a kind.")
    return {"scope": "namespace", "name": namespace}


def _whole_number(value: int | _Unchanged | None, what: str, *, least: int) -> int | None:
    if value is None or isinstance(value, _Unchanged):
        return None
    if type(value) is not int or not least <= value <= LARGEST_INTEGER:
        raise InvalidInput(
            f"{what} must be a whole number from {least} to {LARGEST_INTEGER}, or None for no limit, not {value!r}."
        )
    return value
