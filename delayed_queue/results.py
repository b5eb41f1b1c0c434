"""The rows of results: what became of each task that Django's ``enqueue()`` put into the queue."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections, models

from delayed_queue.clocks import Duration, positive_ms, to_ms
from delayed_queue.conf import settings
from delayed_queue.retry import RetryConfig, in_transaction, with_retries
from delayed_queue.sql import results as statements
from delayed_queue.tasks.databases import messages_in
from delayed_queue.validation import check_payload

if TYPE_CHECKING:
    from delayed_queue.models import StoredResult

R = TypeVar("R")

CHUNK = 1000
DIED, DROPPED = "delayed_queue.backends.errors.TaskDied", "delayed_queue.backends.errors.TaskDropped"

_is_id = re.compile(r"[0-9a-f]{32}").fullmatch


class StoredResultManager(models.Manager["StoredResult"]):
    """Each method is one statement, and part of the caller's transaction, if there is one."""

    def enqueue(
        self,
        *,
        id: str,
        kind: str,
        backend: str,
        queue_name: str,
        priority: int,
        run_after: datetime | None,
        call: bytes,
        using: str,
    ) -> datetime:
        """Offer the message, with a row for its result. Returns when that was, by the database's clock."""
        messages = messages_in(using)
        parameters = {
            "id": id,
            "kind": kind,
            "backend": backend,
            "queue_name": queue_name,
            "priority": priority,
            "run_after": run_after,
            "call": check_payload(call).decode(),
            "at": None if run_after is None else to_ms(run_after, "run_after"),
            "delay": 0 if run_after is None else None,
            "horizon": messages._horizon,
            "now": messages._now,
            "in_transaction": in_transaction(connections[using]),
        }
        rows = self._fetch(statements.ENQUEUE, parameters, using)
        if not rows:  # a first try did it, and its answer was lost
            return self.using(using).get(pk=id).enqueued_at
        enqueued_at: datetime = rows[0][0]
        return enqueued_at

    def start(self, id: str, kind: str, worker: str, lock_uuid: str, *, using: str) -> StoredResult | None:
        """Note that a worker begins, unless the task is done. The row as it is then; None if there is none."""
        return self._row(statements.START, {"id": id, "kind": kind, "worker": worker, "lock_uuid": lock_uuid}, using)

    def finish(
        self,
        id: str,
        lock_uuid: str,
        *,
        status: str,
        return_value: str | None,
        errors: list[dict[str, str]],
        using: str,
    ) -> StoredResult | None:
        """Note what came of it; None if the lease is not the last one that began."""
        parameters = {
            "id": id,
            "lock_uuid": lock_uuid,
            "status": status,
            "return_value": return_value,
            "errors": json.dumps(errors),
        }
        return self._row(statements.FINISH, parameters, using)

    def look(self, id: str, backend: str, *, using: str) -> StoredResult | None:
        """The result as it is, by what handlers wrote and by what the queue says of the message."""
        if not isinstance(id, str) or not _is_id(id):
            return None
        parameters = {"id": id, "backend": backend, "died": DIED, "dropped": DROPPED, "now": None}
        return self._row(statements.LOOK, parameters, using)

    def prune(self, *, older_than: Duration, dry_run: bool = False, using: str | None = None) -> int:
        """Delete what was finished longer ago, and what has no message any more, in chunks; return how many."""
        alias = using or settings.DATABASE
        cutoff = messages_in(alias).now_ms() - positive_ms(older_than, "older_than")
        wanted = {"cutoff": cutoff, "before": f"{max(0, cutoff):012x}", "limit": CHUNK}
        pruned, after, found = 0, "", -1
        while found:
            statement = statements.WOULD_PRUNE if dry_run else statements.PRUNE
            ((found, after),) = self._fetch(statement, wanted | {"after": after}, alias)
            pruned += found
            if dry_run:
                break
        return pruned

    def _row(self, statement: str, parameters: dict[str, Any], using: str) -> StoredResult | None:
        rows = self._run(lambda: list(self.using(using).raw(statement, parameters)), using)
        return rows[0] if rows else None

    def _fetch(self, statement: str, parameters: dict[str, Any], using: str) -> list[tuple[Any, ...]]:
        def fetch() -> list[tuple[Any, ...]]:
            with connections[using].cursor() as cursor:
                cursor.execute(statement, parameters)
                return _fetchall(cursor)

        return self._run(fetch, using)

    def _run(self, operation: Callable[[], R], using: str) -> R:
        return with_retries(connections[using], RetryConfig(), operation)


_fetchall: Callable[[Any], list[tuple[Any, ...]]] = methodcaller("fetchall")
