"""Task: a function that can be called now, or offered to be called later."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar

from delayed_queue.clocks import Duration, positive_ms
from delayed_queue.kinds import namespace_of
from delayed_queue.messages import DropOutcome
from delayed_queue.retry import Backoff
from delayed_queue.tasks import options
from delayed_queue.tasks.calls import load_call
from delayed_queue.tasks.databases import messages_in
from delayed_queue.tasks.offers import Offered, Offering
from delayed_queue.tasks.snapshots import TaskMessage, snapshot
from delayed_queue.twins import async_twin
from delayed_queue.validation import check_max_attempts, check_priority

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """Made by ``@delayed_task``. Calling it runs the function, as if it were not decorated."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        kind: str | None = None,
        namespace: str | None = None,
        max_attempts: int | None = 10,
        backoff: Backoff = Backoff(),  # noqa: B008  # it is frozen
        lease: Duration = 60,
        timeout: Duration | None = None,
        atomic: bool = False,
        priority: int = 0,
        expires: Duration | None = None,
        journal: str | None = None,
        aliases: Iterable[str] = (),
    ) -> None:
        options.check_function(function)
        functools.update_wrapper(self, function)  # first, for it copies the function's attributes, whatever their names
        self.function = function
        self.signature = inspect.signature(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.kind = options.task_kind(function, kind, namespace)
        self.namespace = namespace_of(self.kind)
        self.aliases = options.check_aliases(aliases)
        self.max_attempts = check_max_attempts(max_attempts)
        self.backoff = options.check_backoff(backoff)
        self.lease = options.seconds(lease, "lease")
        self.timeout = None if timeout is None else options.seconds(timeout, "timeout")
        self.atomic = options.check_atomic(function, atomic)
        self.priority = check_priority(priority)
        self.expires_after = expires
        self.expires = None if expires is None else positive_ms(expires, "expires")  # in milliseconds
        self.journal = options.check_journal(journal)

    @property
    def kinds(self) -> tuple[str, ...]:
        """All that it serves: its own kind, in which it offers, and the aliases."""
        return (self.kind, *self.aliases)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    # Offering

    def using(
        self,
        key: str | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        can_update: bool = True,
        expires: Duration | datetime | None = None,
        max_attempts: int | None = None,
        max_wait: Duration | None = None,
        database: str | None = None,
    ) -> Offering[P]:
        """How to offer: ``task.using(key="order-42", delay=1800).offer(42)``.

        Without a key the message gets a fresh one; without ``at`` and ``delay`` it is due at once. Delays count from
        the database's clock. ``expires`` is a moment, or a time after the due time that is asked for. What is not given
        is as the task says.
        """
        return Offering(
            self,
            key=key,
            at=at,
            delay=delay,
            priority=priority,
            can_update=can_update,
            expires=expires,
            max_attempts=max_attempts,
            max_wait=max_wait,
            database=database,
        )

    def offer(self, /, *args: P.args, **kwargs: P.kwargs) -> Offered:
        """Have the function called with these arguments by a worker, as soon as one is free."""
        return self._offering.offer(*args, **kwargs)

    async def aoffer(self, /, *args: P.args, **kwargs: P.kwargs) -> Offered:
        return await self._offering.aoffer(*args, **kwargs)

    def offer_many(self, items: Iterable[Any]) -> list[Offered]:
        """One transaction for any number of calls; see Offering.offer_many."""
        return self._offering.offer_many(items)

    async def aoffer_many(self, items: Iterable[Any]) -> list[Offered]:
        return await self._offering.aoffer_many(items)

    @functools.cached_property
    def _offering(self) -> Offering[P]:
        return self.using()

    # Looking and dropping: messages of the task's own kind, not of its aliases

    def drop(self, key: str, database: str | None = None) -> DropOutcome:
        """Take the message out, also from a worker that runs it. True unless there was none."""
        return messages_in(database).drop(kind=self.kind, key=key)

    def message(self, key: str, database: str | None = None) -> TaskMessage | None:
        """The message as it stands; the newest dead one of this key if none is alive, None if there is none at all."""
        row = messages_in(database).snapshot(kind=self.kind, key=key)
        return None if row is None else snapshot(self.kind, key, row)

    adrop = async_twin(drop)
    amessage = async_twin(message)

    # For workers

    def arguments(self, payload: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Those of the call that a payload stands for; UndecodablePayload if it stands for none."""
        return load_call(payload)

    def __repr__(self) -> str:
        return f"<Task {self.kind!r}>"
