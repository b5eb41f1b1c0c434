"""The history of deliveries: a partition for each day, made ahead, dropped in time, and never in an ack's way."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections

from delayed_queue import InvalidInput, history
from delayed_queue.clocks import to_ms
from delayed_queue.history import make_partitions
from delayed_queue.models import Delivery
from tests.conftest import connect
from tests.test_races import together

TODAY = datetime(2001, 3, 1, 12, tzinfo=UTC)  # so that the partitions of the migration are of days to come
MAKE = "SELECT delayed_queue_make_partitions(%s, %s, %s)"
ROW = """
    INSERT INTO delayed_queue_delivery (kind, key, attempt, outcome, due_at, finished_at)
    VALUES ('shop', %s, 1, 'done', 0, %s) RETURNING tableoid::regclass::text
"""


def name(day: datetime) -> str:
    return f"delayed_queue_delivery_{day:%Y%m%d}"


def days(offset: float) -> datetime:
    return TODAY + timedelta(days=offset)


def make(ahead: int = 0, retention: int = 7, now: datetime = TODAY, on: Any = None) -> list[str]:
    with (on or connection).cursor() as cursor:
        cursor.execute(MAKE, [ahead, retention, to_ms(now)])
        done: list[str] = cursor.fetchone()[0]
        return done


def deliver(key: str = "k", at: datetime = TODAY, on: Any = None) -> str:
    """Write a line of history; return the partition that it went into."""
    with (on or connection).cursor() as cursor:
        cursor.execute(ROW, [key, to_ms(at)])
        return str(cursor.fetchone()[0])


def partitions(on: Any = None) -> set[str]:
    with (on or connection).cursor() as cursor:
        cursor.execute(
            """
            SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'delayed_queue_delivery'::regclass AND c.relname <> 'delayed_queue_delivery_default'
            """
        )
        return {found for (found,) in cursor.fetchall()}


def where_it_is(key: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM delayed_queue_delivery WHERE key = %s", [key])
        return str(cursor.fetchone()[0])


@pytest.fixture
def committed(transactional_db: None) -> Iterator[None]:
    """For tests that commit: their partitions go, and those of the migration come back."""
    before = partitions()
    yield
    with connection.cursor() as cursor:
        for extra in partitions() - before:
            cursor.execute(f"DROP TABLE {extra}")
    make_partitions()
    assert partitions() == before


# Days


@pytest.mark.django_db
def test_the_migration_has_made_the_partitions_of_six_days() -> None:
    assert len(partitions()) >= 6
    assert partitions() >= {name(datetime.now(UTC) + timedelta(days=day)) for day in (0, 1, 4)}


@pytest.mark.django_db
def test_today_and_the_days_ahead_are_made_once() -> None:
    assert make(ahead=2) == [f"made {name(days(0))}", f"made {name(days(1))}", f"made {name(days(2))}"]
    assert make(ahead=2) == []
    assert make(ahead=3) == [f"made {name(days(3))}"]


@pytest.mark.django_db
def test_a_day_is_one_of_utc_and_ends_before_midnight() -> None:
    make(ahead=1)
    midnight = datetime(2001, 3, 2, tzinfo=UTC)
    assert deliver(at=midnight - timedelta(milliseconds=1)) == "delayed_queue_delivery_20010301"
    assert deliver(at=midnight) == "delayed_queue_delivery_20010302"


@pytest.mark.django_db
def test_what_has_no_partition_goes_into_the_default_one() -> None:
    assert deliver() == "delayed_queue_delivery_default"


@pytest.mark.django_db
def test_what_fell_into_the_default_partition_is_moved_when_its_own_is_made() -> None:
    deliver("now")
    deliver("soon", days(1))
    deliver("later", days(9))
    ids = dict(Delivery.objects.values_list("key", "id"))
    make(ahead=1)
    assert where_it_is("now") == name(days(0))
    assert where_it_is("soon") == name(days(1))
    assert where_it_is("later") == "delayed_queue_delivery_default"
    assert dict(Delivery.objects.values_list("key", "id")) == ids


@pytest.mark.django_db
def test_days_gone_by_that_have_rows_in_the_default_partition_get_theirs_too() -> None:
    deliver("three days ago", days(-3))
    assert make(retention=7) == [f"made {name(days(-3))}", f"made {name(days(0))}"]
    assert where_it_is("three days ago") == name(days(-3))


@pytest.mark.django_db
def test_what_is_older_than_the_retention_is_deleted_from_the_default_partition() -> None:
    deliver("old", days(-8))
    deliver("young", days(-6))
    assert make(retention=7) == [
        "deleted 1 from delayed_queue_delivery_default", f"made {name(days(-6))}", f"made {name(days(0))}",
    ]  # fmt: skip
    assert list(Delivery.objects.values_list("key", flat=True)) == ["young"]


@pytest.mark.django_db
def test_a_partition_is_dropped_when_all_of_it_is_older_than_the_retention() -> None:
    make(ahead=1)
    deliver("today")
    midnight = datetime(2001, 3, 2, tzinfo=UTC)
    assert make(retention=2, now=midnight + timedelta(days=2, milliseconds=-1)) == [
        "made delayed_queue_delivery_20010303"
    ]
    assert make(retention=2, now=midnight + timedelta(days=2)) == [
        "made delayed_queue_delivery_20010304", "dropped delayed_queue_delivery_20010301",
    ]  # fmt: skip
    assert not Delivery.objects.exists()


@pytest.mark.django_db
def test_a_partition_is_made_beside_its_parent_whatever_the_search_path() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA elsewhere")
        cursor.execute("SET LOCAL search_path TO elsewhere, public")
        make()
        cursor.execute("SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = %s", [name(TODAY)])
        assert cursor.fetchall() == [("public",)]


@pytest.mark.django_db
def test_a_table_that_was_detached_to_be_kept_is_left_alone() -> None:
    make()
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE delayed_queue_delivery DETACH PARTITION {name(TODAY)}")
    assert make() == []
    assert deliver() == "delayed_queue_delivery_default"
    assert make() == []


@pytest.mark.django_db
@pytest.mark.parametrize(("ahead", "retention"), [(-1, 7), (5, -1)])
def test_days_below_zero_are_refused(ahead: int, retention: int) -> None:
    with pytest.raises(Exception, match="must be 0 or more, not"):
        make(ahead, retention)


# Others at the same time


def test_while_one_is_at_it_the_other_returns_at_once(committed: None) -> None:
    with connect() as one, connect() as other:
        one.execute("BEGIN")
        assert make(on=one) == [f"made {name(TODAY)}"]
        started = time.monotonic()
        assert make(on=other) == []
        assert time.monotonic() - started < 1
        one.execute("ROLLBACK")
        assert make(on=other) == [f"made {name(TODAY)}"]


def test_of_many_that_call_at_once_each_partition_is_made_by_one(committed: None) -> None:
    done = together(*[lambda: make(ahead=3) for _ in range(6)])
    assert sorted(made for one in done for made in one) == [f"made {name(days(day))}" for day in range(4)]


def test_acks_go_on_while_a_partition_is_made(committed: None) -> None:
    make()
    with connect() as janitor, connect() as worker:
        janitor.execute("BEGIN")
        assert make(ahead=1, on=janitor) == [f"made {name(days(1))}"]
        worker.execute("SET lock_timeout = '1s'")
        assert deliver("meanwhile", on=worker) == name(TODAY)
        janitor.execute("COMMIT")
        assert deliver("after", days(1), on=worker) == name(days(1))


def test_an_ack_that_is_not_committed_does_not_keep_a_partition_from_being_made(committed: None) -> None:
    make()
    with connect() as janitor, connect() as worker:
        worker.execute("BEGIN")
        deliver("open", on=worker)
        assert make(ahead=1, on=janitor) == [f"made {name(days(1))}"]


def test_beside_a_reader_of_all_history_nothing_is_made_or_dropped_and_acks_go_on(committed: None) -> None:
    make()
    later = days(9)  # when today's is old, and that day's is missing
    with connect() as reader, connect() as janitor, connect() as worker:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM delayed_queue_delivery")
        started = time.monotonic()
        assert make(now=later, on=janitor) == []
        assert time.monotonic() - started < 2
        assert deliver("meanwhile", on=worker) == name(TODAY)
        assert deliver("without a partition", later, on=worker) == "delayed_queue_delivery_default"
        reader.execute("COMMIT")
        assert make(now=later, on=janitor) == [f"made {name(later)}", f"dropped {name(TODAY)}"]
    assert where_it_is("without a partition") == name(later)


def test_a_reader_of_one_day_keeps_only_the_drop_waiting(committed: None) -> None:
    make()
    later = days(9)
    with connect() as reader, connect() as janitor:
        reader.execute("BEGIN")
        reader.execute(f"SELECT count(*) FROM delayed_queue_delivery WHERE finished_at = {to_ms(TODAY)}")
        assert make(now=later, on=janitor) == [f"made {name(later)}"]
        reader.execute("COMMIT")
        assert make(now=later, on=janitor) == [f"dropped {name(TODAY)}"]


def test_acks_behind_a_waiting_drop_wait_for_less_than_its_timeout(committed: None) -> None:
    make(now=days(9))
    make(now=days(0), retention=30)
    with connect() as reader, connect() as worker:
        reader.execute("BEGIN")
        reader.execute(f"SELECT count(*) FROM delayed_queue_delivery WHERE finished_at = {to_ms(TODAY)}")

        def write_for_a_second() -> float:
            longest, until = 0.0, time.monotonic() + 1
            while (started := time.monotonic()) < until:
                deliver(at=days(9), on=worker)
                longest = max(longest, time.monotonic() - started)
            return longest

        longest, dropped = together(write_for_a_second, lambda: make(now=days(9)))
        assert dropped == []
        assert longest < 0.5


# The call from Python


@pytest.mark.django_db
def test_the_retention_is_the_setting_in_whole_days(settings: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(MAKE, [0, 100, to_ms(datetime.now(UTC) - timedelta(days=3))])
    assert make_partitions() == []
    settings.DELAYED_QUEUE = {"HISTORY_RETENTION": timedelta(hours=30)}
    assert make_partitions() == [f"dropped {name(datetime.now(UTC) - timedelta(days=3))}"]


@pytest.mark.django_db
def test_a_retention_of_for_ever_is_possible(settings: Any) -> None:
    settings.DELAYED_QUEUE = {"HISTORY_RETENTION": 1e300}
    assert make_partitions() == []


@pytest.mark.django_db
def test_a_role_that_does_not_own_the_table_is_told_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_warned", set())
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE delayed_queue_guest")
        cursor.execute("GRANT SELECT, INSERT ON delayed_queue_delivery TO delayed_queue_guest")
        cursor.execute("SET LOCAL ROLE delayed_queue_guest")
        with caplog.at_level(logging.WARNING, "delayed_queue"):
            assert make_partitions() == []
            assert make_partitions() == []
        assert deliver() == "delayed_queue_delivery_default"
        cursor.execute("RESET ROLE")
    (record,) = caplog.records
    assert "manage.py delayed_queue_prune each day as their owner" in record.getMessage()


@pytest.mark.django_db
def test_a_partition_that_a_member_of_the_owners_role_makes_belongs_to_the_owner() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relowner::regrole::text FROM pg_class WHERE oid = 'delayed_queue_delivery'::regclass")
        ((owner,),) = cursor.fetchall()
        cursor.execute("CREATE ROLE delayed_queue_member SUPERUSER")
        cursor.execute("SET LOCAL ROLE delayed_queue_member")
        make()
        cursor.execute("RESET ROLE")
        cursor.execute("SELECT relowner::regrole::text FROM pg_class WHERE relname = %s", [name(TODAY)])
        assert cursor.fetchall() == [(owner,)]


@pytest.mark.django_db(databases=["default", "second"])
def test_the_partitions_of_another_database_are_made_there() -> None:
    with connections["second"].cursor() as cursor:
        cursor.execute("DROP TABLE " + ", ".join(partitions(connections["second"])))
    assert make_partitions() == []
    assert len(make_partitions("second")) == history.DAYS_AHEAD + 1


# Reading


@pytest.mark.django_db
def test_the_history_of_a_key_is_in_the_order_of_its_attempts() -> None:
    make(ahead=1)
    deliver("a", days(1))
    deliver("b")
    deliver("a")
    Delivery.objects.create(kind="other", key="a", attempt=1, outcome="done", due_at=0, finished_at=0)
    found = Delivery.objects.of("shop", "a")
    assert [delivery.finished_at for delivery in found] == [to_ms(days(0)), to_ms(days(1))]
    assert str(found[0]) == "a (shop), attempt 1: done"


@pytest.mark.django_db
def test_the_history_of_a_key_is_read_through_the_index_of_every_partition() -> None:
    make(ahead=1)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    plan = Delivery.objects.of("shop", "a").explain()
    assert "Seq Scan" not in plan
    assert f"delayed_queue_dlv_{TODAY:%Y%m%d}" in plan
    assert "delayed_queue_dlv_default" in plan


@pytest.mark.django_db
def test_the_history_of_a_key_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="The key is blank"):
        Delivery.objects.of("shop", "")
