"""What went wrong once, or would have: locks, limits, cancellations, and what they must not do to the rest."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from delayed_queue import current_delivery, delayed_task, signals
from delayed_queue.models import Control, DeadMessage, DelayedMessage, Delivery, Worker
from delayed_queue.tasks.deliveries import Delivery as HandlersDelivery
from delayed_queue.testing import isolated_registry
from delayed_queue.workers import lines
from delayed_queue.workers.identity import Identity
from delayed_queue.workers.options import WorkerOptions
from delayed_queue.workers.store import Store
from tests.conftest import connect
from tests.test_run_delayed_workers import PROJECT, ROOT, database
from tests.working import run_until_empty, running_worker, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    with isolated_registry():
        yield


def outcomes(kind: str) -> list[str]:
    return sorted(Delivery.objects.filter(kind=kind).values_list("outcome", flat=True))


# Locks


def test_a_message_that_someone_has_locked_holds_up_no_other_acknowledgement() -> None:
    started, go_on = threading.Event(), threading.Event()

    @delayed_task(kind="locked", lease=2)
    def locked() -> None:
        started.set()
        go_on.wait(20)

    attempts = []

    @delayed_task(kind="other", lease=2)
    def other() -> None:
        attempts.append(current_delivery().attempt)  # type: ignore[union-attr]

    locked.using(key="a").offer()
    with running_worker(threads=2), connect() as holder:
        assert started.wait(20)
        with holder.transaction():
            holder.execute("SELECT FROM delayed_queue WHERE \"pKey\" = 'a' FOR UPDATE")
            go_on.set()
            other.offer_many([()] * 20)
            wait_until(lambda: outcomes("other") == ["done"] * 20)
            time.sleep(3)  # longer than the lease of what cannot be settled
        wait_until(lambda: not DelayedMessage.objects.exists())
    assert attempts == [1] * 20
    assert outcomes("locked") == ["done"]


def test_an_atomic_task_waits_for_a_lock_on_its_message() -> None:
    started = threading.Event()

    @delayed_task(kind="pay", atomic=True, max_attempts=1)
    def pay() -> None:
        Worker.objects.create(id=7, host="effect", pid=1, threads=1, started_at=0, beat_at=0)
        started.set()
        time.sleep(0.1)

    pay.using(key="a").offer()
    with running_worker(), connect() as holder:
        assert started.wait(20)
        with holder.transaction():
            holder.execute("SELECT FROM delayed_queue WHERE \"pKey\" = 'a' FOR UPDATE")
            time.sleep(0.5)
        wait_until(lambda: not DelayedMessage.objects.exists())
    assert outcomes("pay") == ["done"]
    assert Worker.objects.filter(host="effect").count() == 1


def test_a_control_in_an_open_transaction_leases_nothing_to_nobody() -> None:
    seen = []
    note = delayed_task(kind="k")(lambda: seen.append(1))
    Control.objects.limit(kind="k", max_running=2)
    with running_worker(threads=2):
        with transaction.atomic():
            Control.objects.limit(kind="k", max_running=1)
            with connect() as other:
                other.execute(
                    "SELECT delayed_queue_offer('k', 'x', '{\"args\":[],\"kwargs\":{}}', 0, true, 3000, NULL)"
                )
            time.sleep(4)  # longer than a worker waits for a lock
            assert seen == []
        note.offer()
        wait_until(lambda: not DelayedMessage.objects.exists())
    assert seen == [1, 1]


# Two versions of a message in one process


def test_an_old_version_is_not_taken_for_the_new_one() -> None:
    task = delayed_task(kind="k")(lambda: None)
    task.using(key="a").offer()
    store = Store("default", Identity())
    kinds = WorkerOptions().served_kinds()

    def lease() -> HandlersDelivery:
        (delivery,) = store.lease(kinds, [1], store.identity.new_lock_uuid(), None).deliveries  # type: ignore[arg-type]
        return delivery

    old = lease()
    DelayedMessage.objects.update(lock_uuid=None, scheduled_at=0)
    new = lease()
    assert old.id == new.id
    assert store.extend([old, new]).lost == {old}
    assert store.finish([old, new]).ours == {new}


# Limits


def test_a_limit_and_a_rate_on_one_kind_do_not_make_the_fetcher_spin() -> None:
    go_on = threading.Event()
    task = delayed_task(kind="k")(lambda: go_on.wait(20))
    Control.objects.limit(kind="k", max_running=1, rate=100, per=1)
    task.offer_many([()] * 3)
    with running_worker(poll_period=0.5) as worker:
        wait_until(lambda: DelayedMessage.objects.exclude(lock_uuid=None).exists())
        leases = []
        lease = worker._store.lease
        worker._store.lease = lambda *args: leases.append(1) or lease(*args)  # type: ignore[assignment,func-returns-value]
        time.sleep(1)
        assert len(leases) < 20
        go_on.set()
        wait_until(lambda: not DelayedMessage.objects.exists())


def test_a_rate_is_kept_after_an_idle_time() -> None:
    starts: list[float] = []
    task = delayed_task(kind="k")(lambda: starts.append(time.monotonic()))
    Control.objects.limit(kind="k", rate=4, per=2)
    with running_worker():
        task.offer()
        wait_until(lambda: starts)
        time.sleep(2.5)  # the bucket is full again
        task.offer_many([()] * 12)
        wait_until(lambda: len(starts) == 13)
    burst = [start for start in starts[1:] if start < starts[1] + 1]
    assert len(burst) <= 4 + 2 + 1  # what was in the bucket, what was added in a second, and one on the edge


def test_a_rate_limited_kind_goes_on_when_the_clock_was_set_back() -> None:
    seen = []
    task = delayed_task(kind="k")(lambda: seen.append(1))
    Control.objects.limit(kind="k", rate=50, per=1)
    hour_ahead = int(time.time() * 1000) + 3_600_000
    Control.objects.update(tokens=0, tokens_at=hour_ahead)
    task.offer_many([()] * 3)
    with running_worker():
        wait_until(lambda: len(seen) == 3)


def test_a_limit_of_nothing_is_a_pause_and_until_empty_ends() -> None:
    delayed_task(kind="k")(lambda: None).offer()
    Control.objects.limit(kind="k", max_running=0)
    run_until_empty()
    assert DelayedMessage.objects.count() == 1


def test_slots_are_used_again_at_once_where_nobody_listens(settings: Any) -> None:
    settings.DELAYED_QUEUE = {"LISTEN": False, "NOTIFY": False}
    seen = []
    task = delayed_task(kind="k")(lambda: seen.append(1))
    Control.objects.limit(kind="k", max_running=2)
    task.offer_many([()] * 12)
    with running_worker(poll_period=20):
        wait_until(lambda: len(seen) == 12)  # six poll periods otherwise


# Handlers that do what they should not


def test_a_cancellation_of_the_handlers_own_making_is_a_failure() -> None:
    @delayed_task(kind="k", max_attempts=1)
    async def cancelled() -> None:
        raise asyncio.CancelledError

    cancelled.offer()
    run_until_empty()
    assert "CancelledError" in str(DeadMessage.objects.get().error)


def test_a_keyboard_interrupt_in_a_handler_costs_no_thread() -> None:
    seen = []

    @delayed_task(kind="interrupts", max_attempts=1)
    def interrupts() -> None:
        raise KeyboardInterrupt

    interrupts.offer_many([()] * 3)
    note = delayed_task(kind="k")(lambda: seen.append(1))
    note.offer_many([()] * 3)
    run_until_empty(threads=1)
    assert len(seen) == 3
    assert DeadMessage.objects.count() == 3


def test_max_messages_are_shared_by_plain_and_async_handlers() -> None:
    @delayed_task(kind="k")
    async def note() -> None: ...

    note.offer_many([()] * 20)
    with running_worker(max_messages=15, threads=8):
        wait_until(lambda: DelayedMessage.objects.count() == 5)


def test_messages_with_a_time_out_are_not_kept_until_it_is_over() -> None:
    task = delayed_task(kind="k", timeout=3600)(lambda text: None)
    task.offer_many([("x" * 1000,)] * 300)
    with running_worker():
        wait_until(lambda: not DelayedMessage.objects.exists())
        time.sleep(0.1)
        gc.collect()
        kept = [found for found in gc.get_objects() if type(found) is HandlersDelivery]
        assert len(kept) < 50


def test_what_waits_behind_slow_handlers_goes_back_to_others() -> None:
    slow, seen = threading.Event(), []

    @delayed_task(kind="slow")
    def blocks(is_slow: bool) -> None:
        if is_slow:
            slow.wait(20)
        seen.append(is_slow)

    with running_worker(threads=1) as first:
        blocks.offer(True)
        wait_until(lambda: DelayedMessage.objects.exclude(lock_uuid=None).exists())
        message = DelayedMessage.objects.get()
        held = [found for found in first._held() if found.id == message.id]
        copies = []
        blocks.offer_many([(False,)] * 3)
        # As if it had fetched ahead while its handlers were quick.
        leased = first._store.lease(
            WorkerOptions().served_kinds(), [3], first.identity.new_lock_uuid(), held[0].keeper
        ).deliveries
        copies += leased
        first._threads.put(leased)
        with running_worker(threads=1):
            wait_until(lambda: seen.count(False) == 3)
        slow.set()
    assert set(Delivery.objects.values_list("attempt", flat=True)) == {1}


def test_a_lease_that_a_handler_extended_is_given_back_when_its_process_is_dead() -> None:
    task = delayed_task(kind="k")(lambda: None)
    task.using(key="a").offer()
    store = Store("default", Identity())
    kinds = WorkerOptions().served_kinds()
    (delivery,) = store.lease(kinds, [1], store.identity.new_lock_uuid(), None).deliveries  # type: ignore[arg-type]
    delivery.lease_ms = 3_600_000
    store.extend([delivery])
    assert store.reclaim(kinds, store.identity.lock_prefix, [delivery.id], "it died") == 1
    assert DelayedMessage.objects.get().lock_uuid is None


def test_those_that_died_with_one_another_come_back_apart() -> None:
    task = delayed_task(kind="k")(lambda: None)
    task.offer_many([()] * 8)
    store = Store("default", Identity())
    kinds = WorkerOptions().served_kinds()
    deliveries = store.lease(kinds, [8], store.identity.new_lock_uuid(), None).deliveries  # type: ignore[arg-type]
    DelayedMessage.objects.update(attempts=3)
    store.reclaim(kinds, store.identity.lock_prefix, [delivery.id for delivery in deliveries], "it died")
    times = sorted(DelayedMessage.objects.values_list("scheduled_at", flat=True))
    assert times[-1] - times[0] > 3000


def test_receivers_may_take_their_time() -> None:
    def dawdle(**kwargs: Any) -> None:
        time.sleep(0.3)

    task = delayed_task(kind="k")(lambda: None)
    task.offer_many([()] * 3)
    signals.delivery_done.connect(dawdle)
    before, lines.LONGEST_CALL = lines.LONGEST_CALL, 0.5
    try:
        with running_worker():
            wait_until(lambda: not DelayedMessage.objects.exists())
            time.sleep(2)
            assert lines._silences == 0
    finally:
        lines.LONGEST_CALL = before
        signals.delivery_done.disconnect(dawdle)
    assert outcomes("k") == ["done"] * 3


def test_a_pool_of_djangos_is_enough_for_more_threads_than_it_has_connections() -> None:
    """In a process of its own, with the pool's default of four connections."""
    settings = database()
    settings["OPTIONS"] = {**settings.get("OPTIONS", {}), "pool": {"timeout": 5}}
    project = PROJECT % {"database": settings}
    body = "    from delayed_queue.models import Worker\n    Worker.objects.count()\n"
    project = project.replace("def quick(): pass\n", f"def quick():\n{body}", 1)
    delayed_task(kind="quick")(lambda: None).offer_many([()] * 60)
    command = [sys.executable, "-c", project, "--until-empty", "--threads", "8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert outcomes("quick") == ["done"] * 60
