"""The handlers. Each writes into the ledger what it did, in which process and under which lease."""

from __future__ import annotations

import os
import signal
import time

from asgiref.sync import sync_to_async

from delayed_queue import Backoff, current_delivery, delayed_task
from tests.chaos.models import Entry

# A disturbance may cost many attempts, and is no reason to wait long.
PATIENT = {"max_attempts": 100, "backoff": Backoff(initial=0.1, factor=2, maximum=1)}


def write(what: Entry.What) -> None:
    delivery = current_delivery()
    assert delivery is not None
    Entry.objects.create(
        what=what,
        kind=delivery.kind,
        key=delivery.key,
        attempt=delivery.attempt,
        pid=os.getpid(),
        lock_uuid=delivery.lock_uuid,
        host_clock=time.time(),
    )


@delayed_task(kind="plain", **PATIENT)
def plain() -> None:
    write(Entry.What.EFFECT)


@delayed_task(kind="atomic", atomic=True, **PATIENT)
def atomic(seconds: float = 0.0) -> None:
    write(Entry.What.EFFECT)
    time.sleep(seconds)


@delayed_task(kind="async", **PATIENT)
async def asynchronous() -> None:
    await sync_to_async(write)(Entry.What.EFFECT)


@delayed_task(kind="slow", **PATIENT)
def slow(seconds: float) -> None:
    write(Entry.What.START)
    time.sleep(seconds)
    write(Entry.What.EFFECT)


@delayed_task(kind="timed", timeout=2, **PATIENT)
def timed() -> None:
    """A handler that has to do with a database that may never answer needs a timeout, as any that waits for others."""
    write(Entry.What.EFFECT)


@delayed_task(kind="timed_atomic", atomic=True, timeout=2, **PATIENT)
def timed_atomic() -> None:
    write(Entry.What.EFFECT)


@delayed_task(kind="deadly", max_attempts=3)
def deadly() -> None:
    write(Entry.What.START)
    os.kill(os.getpid(), signal.SIGKILL)


@delayed_task(kind="flood", journal="none")
def flood() -> None:
    pass


@delayed_task(kind="single")
def single() -> None:
    write(Entry.What.EFFECT)
