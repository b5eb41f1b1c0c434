"""How sql/lease.sql shares what is due among kinds, and what controls make of it; how sql/reclaim.sql gives back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections

from delayed_queue import delayed_task
from delayed_queue.models import Control, DelayedMessage, Delivery, Slot
from delayed_queue.tasks import Task
from delayed_queue.testing import FrozenClock, isolated_registry
from delayed_queue.workers.identity import Identity
from delayed_queue.workers.options import WorkerOptions
from delayed_queue.workers.store import Leased, ServedKind, Store
from tests.conftest import NOON
from tests.working import running_worker, wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    with isolated_registry():
        yield


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(NOON)


@pytest.fixture
def store(clock: FrozenClock) -> Store:
    return Store("default", Identity(), clock=clock)


def task(kind: str, count: int = 0, **options: Any) -> Task[..., Any]:
    made: Task[..., Any] = delayed_task(kind=kind, **options)(lambda *args: None)
    made.using(at=NOON).offer_many([()] * count)
    return made


def lease(store: Store, *rooms: int, kinds: list[ServedKind] | None = None) -> Leased:
    kinds = WorkerOptions().served_kinds() if kinds is None else kinds
    return store.lease(kinds, rooms, store.identity.new_lock_uuid(), keeper=None)  # type: ignore[arg-type]


def counts(leased: Leased) -> dict[str, int]:
    return dict(Counter(delivery.kind for delivery in leased.deliveries))


# Fair


def test_kinds_get_equal_shares(store: Store) -> None:
    for kind in "abcd":
        task(kind, 100)
    assert counts(lease(store, 40)) == {"a": 10, "b": 10, "c": 10, "d": 10}


def test_what_one_does_not_use_goes_to_the_others(store: Store) -> None:
    task("a", 3)
    task("b", 100)
    task("c", 100)
    found = counts(lease(store, 41))
    assert found["a"] == 3
    assert sum(found.values()) == 41
    assert abs(found["b"] - found["c"]) <= 1


def test_the_first_kind_gets_what_the_later_ones_do_not_need(store: Store) -> None:
    task("a", 100)
    task("b", 1)
    task("c", 0)
    assert counts(lease(store, 40)) == {"a": 39, "b": 1}


def test_no_more_is_leased_than_there_is_room_for(store: Store) -> None:
    for kind in "abcdefg":
        task(kind, 10)
    assert len(lease(store, 3).deliveries) == 3


def test_who_was_served_longest_ago_comes_first(store: Store) -> None:
    for kind in "abc":
        task(kind, 10)
    kinds = WorkerOptions().served_kinds()
    served = []
    for _ in range(6):
        kinds.sort(key=lambda kind: kind.served_at)
        served += list(counts(lease(store, 1, kinds=kinds)))
    assert sorted(served[:3]) == sorted(served[3:]) == ["a", "b", "c"]


def test_plain_and_async_kinds_have_rooms_of_their_own(store: Store) -> None:
    task("plain", 10)

    @delayed_task(kind="async")
    async def asynchronous() -> None: ...

    asynchronous.using(at=NOON).offer_many([()] * 10)
    assert counts(lease(store, 2, 5)) == {"plain": 2, "async": 5}
    assert counts(lease(store, 0, 5)) == {"async": 5}


def test_a_kind_is_looked_at_again_when_its_next_message_is_due(store: Store, clock: FrozenClock) -> None:
    task("a").using(at=NOON.replace(second=1)).offer()
    kinds = WorkerOptions().served_kinds()
    before = kinds[0].look_at
    lease(store, 10, kinds=kinds)
    assert before == 0.0
    assert 0.5 < kinds[0].look_at - time.monotonic() <= 1.0


def test_a_kind_with_a_backlog_is_looked_at_again_at_once(store: Store) -> None:
    task("a", 5)
    kinds = WorkerOptions().served_kinds()
    lease(store, 3, kinds=kinds)
    assert kinds[0].look_at <= time.monotonic()


def test_an_exhausted_message_is_buried_by_the_maximum_of_its_handler(store: Store, clock: FrozenClock) -> None:
    task("a", 1, max_attempts=2)
    for _ in range(2):
        assert len(lease(store, 10).deliveries) == 1
        clock.advance(61)
    leased = lease(store, 10)
    assert (leased.deliveries, leased.buried) == ([], {"a": 1})


# Controls


def test_a_paused_kind_is_not_leased_and_others_are(store: Store) -> None:
    task("a", 5)
    task("b", 5)
    Control.objects.pause(kind="a")
    kinds = WorkerOptions().served_kinds()
    assert counts(lease(store, 10, kinds=kinds)) == {"b": 5}
    assert [served.is_paused for served in kinds] == [True, False]
    Control.objects.resume(kind="a")
    assert counts(lease(store, 10, kinds=kinds)) == {"a": 5}


def test_a_paused_namespace_pauses_its_kinds_and_no_others(store: Store) -> None:
    for kind in ("mail|a", "mail|b", "mailing|a", "a"):
        task(kind, 1)
    Control.objects.pause(namespace="mail")
    assert counts(lease(store, 10)) == {"mailing|a": 1, "a": 1}
    Control.objects.pause(namespace="default")
    task("b", 1)
    assert counts(lease(store, 10)) == {}


def test_a_limit_counts_what_runs_in_all_workers(store: Store, clock: FrozenClock) -> None:
    task("a", 10)
    Control.objects.limit(kind="a", max_running=3)
    first = lease(store, 10)
    assert len(first.deliveries) == 3
    assert all(delivery.is_limited for delivery in first.deliveries)
    other = Store("default", Identity(), clock=clock)
    kinds = WorkerOptions().served_kinds()
    assert lease(other, 10, kinds=kinds).deliveries == []
    assert kinds[0].is_held_back
    store.free_slots(first.deliveries[:2])
    assert len(lease(other, 10).deliveries) == 2


def test_a_limit_of_a_namespace_is_shared_by_its_kinds(store: Store) -> None:
    task("mail|a", 10)
    task("mail|b", 10)
    task("other", 10)
    Control.objects.limit(namespace="mail", max_running=3)
    found = counts(lease(store, 30))
    assert found.pop("other") == 10
    assert sum(found.values()) == 3


def test_the_slots_of_a_worker_that_vanished_are_free_when_its_lease_is_over(store: Store, clock: FrozenClock) -> None:
    task("a", 10)
    Control.objects.limit(kind="a", max_running=2)
    lease(store, 10)
    clock.advance(61)
    assert len(lease(Store("default", Identity(), clock=clock), 10).deliveries) == 2
    assert Slot.objects.count() == 1  # the dead one's is gone


def test_slots_are_kept_for_as_long_as_the_worker_beats(store: Store, clock: FrozenClock) -> None:
    task("a", 10)
    Control.objects.limit(kind="a", max_running=2)
    leased = lease(store, 10)
    clock.advance(40)
    store.extend(leased.deliveries)
    store.keep_slots(60_000)
    clock.advance(40)
    assert lease(Store("default", Identity(), clock=clock), 10).deliveries == []


def test_a_limit_of_none_at_all(store: Store) -> None:
    task("a", 1)
    Control.objects.limit(kind="a", max_running=0)
    assert lease(store, 10).deliveries == []


def test_a_rate_is_a_bucket_that_fills_with_time(store: Store, clock: FrozenClock) -> None:
    task("a", 100)
    Control.objects.limit(kind="a", rate=10, per=1)
    assert len(lease(store, 50).deliveries) == 10
    assert len(lease(store, 50).deliveries) == 0
    clock.advance(0.25)
    assert len(lease(store, 50).deliveries) == 2
    clock.advance(100)
    assert len(lease(store, 50).deliveries) == 10  # what was not used is not saved up


def test_a_kind_that_waits_for_its_rate_is_looked_at_when_there_is_a_token(store: Store) -> None:
    task("a", 100)
    Control.objects.limit(kind="a", rate=2, per=1)
    kinds = WorkerOptions().served_kinds()
    lease(store, 50, kinds=kinds)
    lease(store, 50, kinds=kinds)
    assert 0.3 < kinds[0].look_at - time.monotonic() <= 0.5


@pytest.mark.django_db(transaction=True)
def test_two_workers_that_lease_at_once_keep_to_the_limit() -> None:
    task("a", 50)
    task("b", 50)
    Control.objects.limit(kind="a", max_running=5)
    Control.objects.limit(kind="b", max_running=5)
    start = threading.Barrier(4)
    found: list[int] = []

    def work(number: int) -> None:
        store = Store("default", Identity())
        kinds = WorkerOptions().served_kinds()
        if number % 2:
            kinds.reverse()
        start.wait()
        for _ in range(5):
            found.append(len(lease(store, 20, kinds=kinds).deliveries))
        connections.close_all()

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20  # nobody failed: no deadlock
    assert sum(found) == 10


@pytest.mark.django_db(transaction=True)
def test_running_workers_heed_a_pause_and_a_resume_at_once() -> None:
    seen: list[int] = []
    note = delayed_task(kind="note")(lambda n: seen.append(n))
    with running_worker(poll_period=60):
        note.offer(1)
        wait_until(lambda: seen == [1])
        Control.objects.pause(kind="note")
        note.offer(2)
        other = delayed_task(kind="unserved")(lambda: None)
        assert other.kind  # registered after the start: not this worker's
        threading.Event().wait(0.5)
        assert seen == [1]
        Control.objects.resume(kind="note")
        wait_until(lambda: seen == [1, 2])


@pytest.mark.django_db(transaction=True)
def test_running_workers_keep_to_a_limit_between_them() -> None:
    lock = threading.Lock()
    running = most = handled = 0

    @delayed_task(kind="narrow")
    def narrow() -> None:
        nonlocal running, most, handled
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.02)
        with lock:
            running -= 1
            handled += 1

    Control.objects.limit(kind="narrow", max_running=2)
    narrow.offer_many([()] * 20)
    with running_worker(threads=4, poll_period=60), running_worker(threads=4, poll_period=60):
        wait_until(lambda: handled == 20)
    assert most <= 2


# Giving back what the dead held


def test_what_a_dead_worker_held_is_given_back_and_only_what_had_started_pays(store: Store, clock: FrozenClock) -> None:
    task("a", 3)
    task("b", 1)
    deliveries = lease(store, 10).deliveries
    started = next(delivery for delivery in deliveries if delivery.kind == "a")
    kinds = WorkerOptions().served_kinds()
    assert store.reclaim(kinds, store.identity.lock_prefix, [started.id], "it died") == 4
    rows = {message.id: message for message in DelayedMessage.objects.all()}
    paid = rows.pop(started.id)
    assert (paid.attempts, paid.last_error, paid.lock_uuid) == (1, "it died", None)
    assert paid.scheduled_at == int(NOON.timestamp() * 1000) + 300
    assert {(message.attempts, message.last_error, message.lock_uuid) for message in rows.values()} == {(0, None, None)}
    assert [(line.outcome, line.error) for line in Delivery.objects.all()] == [("lost", "it died")]
    clock.advance(0.1)
    assert len(lease(store, 10).deliveries) == 3


def test_what_others_hold_is_not_touched(store: Store, clock: FrozenClock) -> None:
    task("a", 4)
    lease(store, 2)
    other = Store("default", Identity(), clock=clock)
    mine = lease(other, 2)
    assert store.reclaim(WorkerOptions().served_kinds(), store.identity.lock_prefix) == 2
    assert len(other.finish(mine.deliveries).ours) == 2


def test_a_lease_whose_answer_was_lost_is_given_back_by_its_lock(store: Store) -> None:
    task("a", 4, priority=7)
    first = lease(store, 2)
    second = lease(store, 2)
    assert store.reclaim(WorkerOptions().served_kinds(), first.deliveries[0].lock_uuid) == 2
    assert len(store.finish(second.deliveries).ours) == 2


def test_giving_back_reads_what_is_leased_and_not_what_is_to_come(store: Store) -> None:
    task("a", 3)
    far = NOON.replace(year=2027)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
            SELECT 'f' || i, 'a', '', %(at)s + i, %(at)s + i, 0 FROM generate_series(1, 20000) AS i
            """,
            {"at": int(far.timestamp() * 1000)},
        )
        lease(store, 10)
        cursor.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT delayed_queue_reclaim('{a}', %s, 61000, '{}', NULL, 1, %s)",
            [store.identity.lock_prefix, int(NOON.timestamp() * 1000)],
        )
        ((plan,),) = cursor.fetchall()
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 1500


# Renewing


def test_a_beat_renews_what_is_held_and_tells_what_is_not(store: Store, clock: FrozenClock) -> None:
    task("a", 3)
    deliveries = lease(store, 10).deliveries
    DelayedMessage.objects.filter(id=deliveries[0].id).update(lock_uuid="another")
    clock.advance(30)
    found = store.extend(deliveries)
    assert (found.ours, found.lost) == (set(deliveries[1:]), {deliveries[0]})
    clock.advance(45)
    assert lease(Store("default", Identity(), clock=clock), 10).deliveries[0].id == deliveries[0].id
