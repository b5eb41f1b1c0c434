"""R14 and R16 behind poolers: PgBouncer in transaction mode, and Django's own pool of psycopg connections.

A pooler in transaction mode gives each transaction the next backend that is free, so that nothing may be left in a
session: no prepared statement, no LISTEN. These tests run a real one over two backends that take turns.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction

from delayed_queue import (
    DelayedQueue,
    DeliveryType,
    DropOutcome,
    Envelope,
    OfferOutcome,
    RetryConfig,
    ScheduledMessage,
)
from delayed_queue.batches import CHUNK
from delayed_queue.bells import AsyncBell, Bell
from delayed_queue.managers import DROP_ALL_CONFIRMATION
from delayed_queue.sessions import USES_BEFORE_PREPARING

R = TypeVar("R")

BACKENDS = 2
THREADS = 6
ROUNDS = 10
PERIOD = 0.5
NOT_SOON = 30.0  # what ends within MARGIN did not wait for this
MARGIN = 3.0  # a busy machine's

SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
PGBOUNCER = shutil.which("pgbouncer", path=SEARCH_PATH)

ALIASES = ("pgbouncer", "pool", "direct")
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", *ALIASES])
Reach = Callable[..., str]


class PgBouncer:
    """A PgBouncer in front of the test database, on a socket in a folder that is closed to others."""

    def __init__(self, folder: Path, target: psycopg.ConnectionInfo) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.address = {"host": str(folder), "port": "6432", "dbname": "pooled", "user": "anybody"}
        # It refuses to be root. The embedded server is nobody's, too, and so open to it.
        self._identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        server = {name: str(getattr(target, name)) for name in ("host", "port", "dbname", "user", "password")}
        quoted = " ".join("{}='{}'".format(name, value.replace("'", "''")) for name, value in server.items() if value)
        (folder / "pgbouncer.ini").write_text(f"""
[databases]
pooled = {quoted}
[pgbouncer]
unix_socket_dir = {folder}
listen_port = {self.address["port"]}
auth_type = any
pool_mode = transaction
default_pool_size = {BACKENDS}
server_round_robin = 1
""")

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [PGBOUNCER, self.folder / "pgbouncer.ini"], stdout=log, stderr=log, **self._identity
            )
        deadline = time.monotonic() + 10
        while True:
            try:
                self.on_every_backend("SELECT 1")
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"PgBouncer does not answer:\n{self.log.read_text()}")
                time.sleep(0.01)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def on_every_backend(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows from all backends: as many transactions at once cannot share one."""
        rows, pids = [], set()
        with ExitStack() as stack:
            for _ in range(BACKENDS):
                client = stack.enter_context(psycopg.connect(**self.address, prepare_threshold=None))
                pids.add(client.execute("SELECT pg_backend_pid()").fetchone())
                rows += client.execute(statement).fetchall()
        assert len(pids) == BACKENDS
        return rows


@pytest.fixture(scope="module")
def running_pgbouncer(django_db_setup: None, django_db_blocker: Any) -> Iterator[PgBouncer]:
    if PGBOUNCER is None:
        pytest.skip("there is no pgbouncer here: apt-get install pgbouncer, or put one on the PATH")
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as folder:
        with django_db_blocker.unblock():
            connection.ensure_connection()
            pgbouncer = PgBouncer(Path(folder), connection.connection.info)
        try:
            pgbouncer.start()
            yield pgbouncer
        finally:
            pgbouncer.stop()


@pytest.fixture(scope="module", autouse=True)
def aliases(django_db_setup: None) -> Iterator[None]:
    """Further names for the test database. Mirrors, so that it is not emptied once for each."""
    for alias in ALIASES:
        connections.settings[alias] = {**connection.settings_dict, "TEST": {"MIRROR": "default"}}
    yield
    for alias in ALIASES:
        del connections.settings[alias]


@pytest.fixture
def reach(aliases: None, transactional_db: None) -> Iterator[Reach]:
    """Let an alias reach the test database by other settings, for one test."""
    before = dict(connections.settings)

    def change(alias: str, **changes: Any) -> str:
        connections.settings[alias] = {**before[alias], **changes}
        connections[alias] = connections.create_connection(alias)
        return alias

    yield change
    for alias in ALIASES:
        connections[alias].close()
        connections[alias].close_pool()
        del connections[alias]
    connections.settings.update(before)


@pytest.fixture
def pgbouncer(running_pgbouncer: PgBouncer, reach: Reach) -> PgBouncer:
    address = running_pgbouncer.address
    reach(
        "pgbouncer",
        HOST=address["host"],
        PORT=address["port"],
        NAME=address["dbname"],
        USER=address["user"],
        OPTIONS={},
    )
    return running_pgbouncer


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set whenever a blocking poll has found nothing and begins to wait."""
    begun = threading.Event()
    wait, async_wait = Bell.wait, AsyncBell.wait

    def noticed(bell: Bell, seconds: float) -> None:
        begun.set()
        wait(bell, seconds)

    async def async_noticed(bell: AsyncBell, seconds: float) -> None:
        begun.set()
        await async_wait(bell, seconds)

    monkeypatch.setattr(Bell, "wait", noticed)
    monkeypatch.setattr(AsyncBell, "wait", async_noticed)
    return begun


def due() -> datetime:
    return datetime.now(UTC) - timedelta(minutes=1)


def in_threads(count: int, work: Callable[[int], R]) -> list[R]:
    def work_and_close(number: int) -> R:
        try:
            return work(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(work_and_close, range(count)))


def use_every_operation(queue: DelayedQueue[str]) -> None:
    at = due()
    assert queue.offer_or_update("k", "one", at) is OfferOutcome.CREATED
    assert queue.offer_or_update("k", "two", at, priority=3, max_attempts=5) is OfferOutcome.UPDATED
    assert queue.offer_if_not_exists("k", "three", at) is OfferOutcome.IGNORED
    assert queue.contains("k")
    assert queue.read("k").payload == "two"

    first = queue.try_poll()
    assert first.payload == "two"
    assert queue.try_poll() is None
    assert queue.stats().leased == 1
    assert first.extend(60)
    assert first.release()
    second = queue.try_poll()
    assert (second.attempt, second.delivery_type) == (2, DeliveryType.REDELIVERY)
    assert not first.acknowledge()
    assert second.acknowledge()

    messages = [ScheduledMessage(f"b-{n}", "x", at) for n in range(3)]
    assert queue.offer_batch(messages) == [OfferOutcome.CREATED] * 3
    assert queue.offer_batch([*messages, messages[0]]) == [OfferOutcome.IGNORED] * 4
    assert queue.try_poll_many(2).acknowledge() == 2
    assert queue.drop("b-2") is DropOutcome.DROPPED
    assert queue.drop("b-2") is DropOutcome.ABSENT

    queue.offer_or_update("k", "four", at)
    assert queue.drop_all(DROP_ALL_CONFIRMATION) == 1


def poll_in_a_thread(
    poll: Callable[[], Envelope[str] | None], waiting: threading.Event, offer: Callable[[], object]
) -> float:
    """Offer while the poll waits, and say how many seconds later it had the message."""

    def get() -> float:
        try:
            assert poll() is not None
            return time.monotonic()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        got = threads.submit(get)
        assert waiting.wait(10)
        offered_at = time.monotonic()
        offer()
        return got.result() - offered_at


class TestPgBouncer:
    def test_it_gives_consecutive_transactions_different_backends(self, pgbouncer: PgBouncer) -> None:
        with connections["pgbouncer"].cursor() as cursor:
            pids = [cursor.execute("SELECT pg_backend_pid()").fetchone() for _ in range(4)]
        assert len(set(pids)) == BACKENDS

    def test_every_operation_works_from_many_threads_and_nothing_is_prepared(self, pgbouncer: PgBouncer) -> None:
        def work(number: int) -> bool | None:
            queue = DelayedQueue(f"queue-{number}", using="pgbouncer")
            for _ in range(ROUNDS):
                use_every_operation(queue)
            return connections["pgbouncer"]._delayed_queue_session.is_ours

        assert in_threads(THREADS, work) == [False] * THREADS
        assert pgbouncer.on_every_backend("SELECT name FROM pg_prepared_statements") == []

    def test_threads_that_share_a_queue_get_each_message_once(self, pgbouncer: PgBouncer) -> None:
        queue = DelayedQueue("shared", using="pgbouncer")
        at = due()
        queue.offer_batch([ScheduledMessage(f"{n}", "x", at) for n in range(200)])

        def work(_: int) -> list[str]:
            keys = []
            while batch := queue.try_poll_many(7):
                keys += [envelope.key for envelope in batch]
                assert batch.acknowledge() == len(batch)
            return keys

        delivered = [key for keys in in_threads(THREADS, work) for key in keys]
        assert sorted(delivered, key=int) == [f"{n}" for n in range(200)]

    def test_an_offer_is_part_of_the_callers_transaction(self, pgbouncer: PgBouncer) -> None:
        queue = DelayedQueue("atomic", using="pgbouncer")
        for n in range(2 * USES_BEFORE_PREPARING):
            with transaction.atomic(using="pgbouncer"):
                queue.offer_or_update(f"kept-{n}", "x", due())
            with transaction.atomic(using="pgbouncer"):
                queue.offer_or_update(f"undone-{n}", "x", due())
                transaction.set_rollback(True, using="pgbouncer")
            assert queue.contains(f"kept-{n}")
            assert not queue.contains(f"undone-{n}")

    def test_a_batch_of_several_statements_is_one_transaction(self, pgbouncer: PgBouncer) -> None:
        queue = DelayedQueue("large", using="pgbouncer")
        at = due()
        messages = [ScheduledMessage(f"{n}", "x", at) for n in range(CHUNK + 1)]
        assert queue.offer_batch(messages) == [OfferOutcome.CREATED] * (CHUNK + 1)

    @pytest.mark.parametrize("listen", [False, True])
    @pytest.mark.parametrize("twin", ["poll", "apoll"])
    def test_a_blocking_poll_meets_the_poll_period_and_never_listens(
        self, pgbouncer: PgBouncer, settings: Any, waiting: threading.Event, listen: bool, twin: str
    ) -> None:
        settings.DELAYED_QUEUE = {"LISTEN": listen}
        queue = DelayedQueue("wait", using="pgbouncer", poll_period=PERIOD)
        listening = []

        def offer() -> None:
            listening.extend(pgbouncer.on_every_backend("SELECT pg_listening_channels()"))
            queue.offer_or_update("k", "x", due())

        poll = queue.poll if twin == "poll" else async_to_sync(queue.apoll)
        assert poll_in_a_thread(lambda: poll(timeout=NOT_SOON), waiting, offer) < PERIOD + MARGIN
        listening += pgbouncer.on_every_backend("SELECT pg_listening_channels()")
        assert listening == []

    def test_a_blocking_poll_wakes_when_the_next_message_is_due(self, pgbouncer: PgBouncer) -> None:
        queue = DelayedQueue("wait", using="pgbouncer", poll_period=NOT_SOON)
        queue.offer_or_update("k", "x", datetime.now(UTC) + timedelta(seconds=0.2))
        started = time.monotonic()
        assert queue.poll(timeout=NOT_SOON) is not None
        assert time.monotonic() - started < MARGIN

    def test_killed_backends_are_not_noticed(
        self, pgbouncer: PgBouncer, other_connection: psycopg.Connection[Any]
    ) -> None:
        pids = [pid for (pid,) in pgbouncer.on_every_backend("SELECT pg_backend_pid()")]
        use_every_operation(DelayedQueue("killed", using="pgbouncer"))
        other_connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s) AS pid", [pids])
        use_every_operation(DelayedQueue("killed", using="pgbouncer"))

    def test_a_restart_of_the_pooler_is_survived(self, pgbouncer: PgBouncer) -> None:
        queue = DelayedQueue("restarted", using="pgbouncer")
        use_every_operation(queue)
        pgbouncer.stop()
        pgbouncer.start()
        use_every_operation(queue)


class TestPool:
    @pytest.mark.parametrize("pool", [True, {"min_size": 1, "max_size": 2}])
    def test_every_operation_works_from_more_threads_than_connections(
        self, reach: Reach, pool: bool | dict[str, int]
    ) -> None:
        reach("pool", OPTIONS={**connection.settings_dict["OPTIONS"], "pool": pool})

        def work(number: int) -> None:
            queue = DelayedQueue(f"queue-{number}", using="pool")
            for _ in range(ROUNDS):
                use_every_operation(queue)
                connections["pool"].close()  # as at the end of a request

        in_threads(THREADS, work)

    def test_a_blocking_poll_gives_its_connection_back_deaf(self, reach: Reach, waiting: threading.Event) -> None:
        reach("pool", OPTIONS={"pool": {"min_size": 1, "max_size": 1}})
        heard = DelayedQueue("wait", using="pool", poll_period=NOT_SOON)
        offered = DelayedQueue("wait", using="default", poll_period=NOT_SOON)
        seconds = poll_in_a_thread(
            lambda: heard.poll(timeout=NOT_SOON), waiting, lambda: offered.offer_or_update("k", "x", due())
        )
        assert seconds < MARGIN
        assert listening("pool") == []

    def test_termination_of_all_its_connections_is_not_noticed(
        self, reach: Reach, other_connection: psycopg.Connection[Any]
    ) -> None:
        # More than there are retries: the dead ones must not be met one by one.
        size = RetryConfig().retries + 2
        reach("pool", OPTIONS={"pool": {"min_size": size, "max_size": size}, "application_name": "pooled"})
        queue = DelayedQueue("killed", using="pool")
        queue.contains("k")
        connections["pool"].close()
        connections["pool"].pool.wait()
        at = due()
        held: list[Envelope[str]] = []
        for operation in (
            lambda: queue.offer_or_update("k", "x", at) is OfferOutcome.CREATED,
            lambda: held.append(queue.try_poll()) or held[0].key == "k",
            lambda: held[0].extend(60),
            lambda: held[0].release(60),
            lambda: queue.drop("k"),
            lambda: queue.offer_batch([ScheduledMessage("a", "x", at)]) == [OfferOutcome.CREATED],
            lambda: queue.try_poll_many(1).acknowledge() == 1,
            lambda: len(queue.offer_batch([ScheduledMessage(f"{n}", "x", at) for n in range(CHUNK + 1)])) == CHUNK + 1,
            lambda: queue.stats().due == CHUNK + 1,
        ):
            terminate("pooled", other_connection)
            assert operation()


class TestDirect:
    """Without a pooler the session is ours."""

    @pytest.fixture
    def direct(self, reach: Reach) -> str:
        return reach("direct", OPTIONS={"application_name": "direct"})

    def test_it_prepares_after_a_few_uses(self, direct: str) -> None:
        queue = DelayedQueue("prepared", using=direct)
        for _ in range(USES_BEFORE_PREPARING):
            queue.try_poll()
        assert prepared(direct) == []
        queue.try_poll()
        assert len(prepared(direct)) == 1

    def test_it_leaves_what_else_runs_on_the_connection_unprepared(self, direct: str) -> None:
        use_every_operation(DelayedQueue("prepared", using=direct))
        before = prepared(direct)
        with connections[direct].cursor() as cursor:
            for _ in range(10):
                cursor.execute("SELECT %s", [1])
        assert before == prepared(direct) != []

    def test_it_does_not_if_the_setting_says_so(self, direct: str, settings: Any) -> None:
        settings.DELAYED_QUEUE = {"PREPARE": False}
        use_every_operation(DelayedQueue("unprepared", using=direct))
        assert prepared(direct) == []

    def test_a_threshold_that_the_project_has_set_stays(self, reach: Reach) -> None:
        alias = reach("direct", OPTIONS={"prepare_threshold": 3})
        queue = DelayedQueue("theirs", using=alias)
        for uses in range(3 + 2):
            assert len(prepared(alias)) == (uses > 3)
            queue.contains("k")
            assert connections[alias].connection.prepare_threshold == 3

    @pytest.mark.parametrize("twin", ["poll", "apoll"])
    def test_a_blocking_poll_hears_an_offer_and_stops_listening(
        self, direct: str, waiting: threading.Event, twin: str
    ) -> None:
        queue = DelayedQueue("wait", using=direct, poll_period=NOT_SOON)
        poll = queue.poll if twin == "poll" else async_to_sync(queue.apoll)
        listening_after = []

        def poll_and_look() -> Envelope[str] | None:
            envelope = poll(timeout=NOT_SOON)
            listening_after.extend(listening(direct))
            return envelope

        seconds = poll_in_a_thread(poll_and_look, waiting, lambda: queue.offer_or_update("k", "x", due()))
        assert seconds < MARGIN
        assert listening_after == []

    @pytest.mark.parametrize("twin", ["poll", "apoll"])
    def test_a_blocking_poll_survives_the_loss_of_its_connections(
        self, direct: str, waiting: threading.Event, other_connection: psycopg.Connection[Any], twin: str
    ) -> None:
        queue = DelayedQueue("wait", using=direct, poll_period=PERIOD)
        poll = queue.poll if twin == "poll" else async_to_sync(queue.apoll)

        def terminate_and_offer() -> None:
            terminate("direct", other_connection)
            DelayedQueue("wait").offer_or_update("k", "x", due())

        assert poll_in_a_thread(lambda: poll(timeout=NOT_SOON), waiting, terminate_and_offer) < PERIOD + MARGIN

    def test_a_connection_lost_before_it_listens_is_not_noticed(
        self, direct: str, other_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start_listening = Bell.start_listening
        outcomes = []

        def lost(bell: Bell) -> bool:
            if not outcomes:
                terminate("direct", other_connection)
            outcomes.append(start_listening(bell))
            return outcomes[-1]

        monkeypatch.setattr(Bell, "start_listening", lost)
        assert DelayedQueue("wait", using=direct, poll_period=0.05).poll(timeout=1) is None
        assert outcomes[:2] == [False, True]

    def test_an_asynchronous_poll_that_cannot_listen_again_does_not_spin(
        self, direct: str, other_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wait = AsyncBell.wait
        waits = []

        async def refuse(*args: Any, **kwargs: Any) -> None:
            raise psycopg.OperationalError("too many connections")

        async def cut_off(bell: AsyncBell, seconds: float) -> None:
            if not waits:
                terminate("direct", other_connection)
                monkeypatch.setattr(psycopg.AsyncConnection, "connect", refuse)
            waits.append(seconds)
            await wait(bell, seconds)

        monkeypatch.setattr(AsyncBell, "wait", cut_off)
        assert async_to_sync(DelayedQueue("wait", using=direct, poll_period=0.2).apoll)(timeout=1) is None
        assert 2 <= len(waits) <= 8

    @pytest.mark.parametrize("uses", range(1, USES_BEFORE_PREPARING + 3))
    def test_its_loss_is_not_noticed_however_often_it_was_used(
        self, direct: str, other_connection: psycopg.Connection[Any], uses: int
    ) -> None:
        queue = DelayedQueue("lost", using=direct)
        for _ in range(uses):
            assert not queue.contains("k")
        terminate("direct", other_connection)
        assert not queue.contains("k")


def prepared(alias: str) -> list[tuple[str]]:
    return look(alias, "SELECT statement FROM pg_prepared_statements")


def listening(alias: str) -> list[tuple[str]]:
    return look(alias, "SELECT pg_listening_channels()")


def look(alias: str, statement: str) -> list[tuple[str]]:
    """In the session of the alias, without Django, whose statements the project may have had prepared."""
    connections[alias].ensure_connection()
    with psycopg.ClientCursor(connections[alias].connection) as cursor:
        return cursor.execute(statement, prepare=False).fetchall()


def terminate(application_name: str, other_connection: psycopg.Connection[Any]) -> None:
    """End all its backends, and wait until they have ended."""
    backends = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
    assert other_connection.execute(f"SELECT pg_terminate_backend(pid) {backends}", [application_name]).rowcount
    while other_connection.execute(f"SELECT {backends}", [application_name]).rowcount:
        time.sleep(0.001)
