"""manage.py delayed_queue_prune, and what counts as alive or expired."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from delayed_queue.clocks import to_ms
from delayed_queue.models import DeadMessage, Slot, Worker
from tests.test_history import MAKE, name, partitions
from tests.test_redrive import bury

AN_HOUR, A_DAY = timedelta(hours=1), timedelta(days=1)


def prune(*arguments: str) -> list[str]:
    output = io.StringIO()
    call_command("delayed_queue_prune", *arguments, stdout=output)
    return output.getvalue().splitlines()


def worker(id: int, silent_for: timedelta) -> Worker:
    beat_at = to_ms(datetime.now(UTC) - silent_for)
    return Worker.objects.create(
        id=id, host="host", pid=7, kinds=["mails"], threads=4, started_at=beat_at, beat_at=beat_at, version="1"
    )


def slot(lock_uuid: str, ends_in: timedelta) -> Slot:
    expires_at = to_ms(datetime.now(UTC) + ends_in)
    return Slot.objects.create(lock_uuid=lock_uuid, kind="mails", namespace="default", running=1, expires_at=expires_at)


def make_partitions_of_days_ago(*ages: int) -> None:
    with connection.cursor() as cursor:
        for age in ages:
            cursor.execute(MAKE, [0, 1000, to_ms(datetime.now(UTC) - age * A_DAY)])


@pytest.mark.django_db
def test_everything_that_is_out_of_date_goes() -> None:
    make_partitions_of_days_ago(9, 6)
    worker(1, A_DAY + AN_HOUR)
    worker(2, A_DAY - AN_HOUR)
    slot("old", -AN_HOUR)
    slot("held", AN_HOUR)
    bury("old", ago=31 * A_DAY)
    bury("young", ago=29 * A_DAY)
    assert prune("--dead-older-than", "30d") == [
        f"History: dropped {name(datetime.now(UTC) - 9 * A_DAY)}",
        "Workers: deleted 1 that were silent for more than a day",
        "Slots: deleted 1 that had expired",
        "Results: deleted 0 that were finished too long ago, or have no message",
        "Dead messages: discarded 1 that died more than 30 days ago",
    ]
    assert name(datetime.now(UTC) - 6 * A_DAY) in partitions()
    assert list(Worker.objects.values_list("id", flat=True)) == [2]
    assert list(Slot.objects.values_list("lock_uuid", flat=True)) == ["held"]
    assert list(DeadMessage.objects.values_list("key", flat=True)) == ["young"]


@pytest.mark.django_db
def test_a_dry_run_says_the_same_and_changes_nothing() -> None:
    make_partitions_of_days_ago(9)
    worker(1, 2 * A_DAY)
    slot("old", -AN_HOUR)
    bury(ago=2 * A_DAY)
    before = partitions()
    first, *said = prune("--dry-run", "--dead-older-than", "1d")
    assert first == "Nothing is changed; this is what would be done:"
    assert partitions() == before
    assert (Worker.objects.count(), Slot.objects.count(), DeadMessage.objects.count()) == (1, 1, 1)
    assert prune("--dead-older-than", "1d") == said


@pytest.mark.django_db
def test_dead_messages_are_kept_unless_a_retention_is_set(settings: Any) -> None:
    bury(ago=1000 * A_DAY)
    assert prune()[-1] == "Dead messages: kept, as neither DEAD_RETENTION nor --dead-older-than says for how long"
    settings.DELAYED_QUEUE = {"DEAD_RETENTION": timedelta(hours=36)}
    assert prune("--dead-older-than", "1001d")[-1] == "Dead messages: discarded 0 that died more than 1001 days ago"
    assert prune()[-1] == "Dead messages: discarded 1 that died more than 1.5 days ago"


@pytest.mark.django_db
def test_it_says_so_when_the_history_needs_nothing_and_makes_what_is_missing() -> None:
    prune()
    assert prune()[0] == "History: no partition to make or to drop"
    tomorrow = name(datetime.now(UTC) + A_DAY)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {tomorrow}")
    assert prune()[0] == f"History: made {tomorrow}"


@pytest.mark.django_db(databases=["default", "second"])
def test_another_database_can_be_named() -> None:
    worker(1, 2 * A_DAY)
    prune("--database", "second")
    assert Worker.objects.count() == 1


def test_a_duration_it_does_not_understand_is_explained() -> None:
    with pytest.raises(CommandError, match=r"'a month' is not a duration\. Write 90s, 15m, 2h or 7d\."):
        prune("--dead-older-than", "a month")


@pytest.mark.django_db
def test_a_worker_is_alive_if_it_showed_a_sign_of_life_lately() -> None:
    worker(1, timedelta(seconds=5))
    worker(2, timedelta(minutes=2))
    assert [str(found) for found in Worker.objects.alive()] == ["host, process 7"]
    assert Worker.objects.alive(within=timedelta(minutes=3)).count() == 2
    assert [found.id for found in Worker.objects.silent(timedelta(minutes=1))] == [2]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"HISTORY_RETENTION": 0}, "must be a number of seconds greater than 0, not 0."),
        ({"DEAD_RETENTION": -1}, "must be a number of seconds greater than 0, or None, not -1."),
        ({"JOURNAL": "some"}, "DELAYED_QUEUE['JOURNAL'] must be 'all', 'failures' or 'none', not 'some'."),
        ({"ASYNC_LIMIT": 0}, "DELAYED_QUEUE['ASYNC_LIMIT'] must be a whole number greater than 0, not 0."),
    ],
)
def test_a_bad_setting_is_explained(value: dict[str, Any], sentence: str) -> None:
    from delayed_queue.conf import mistakes

    ((found, _),) = mistakes(value)
    assert sentence in found


def test_good_settings_are_good() -> None:
    from delayed_queue.conf import mistakes

    good = {"HISTORY_RETENTION": timedelta(days=30), "DEAD_RETENTION": None, "JOURNAL": "failures", "ASYNC_LIMIT": 5}
    assert list(mistakes(good)) == list(mistakes({"DEAD_RETENTION": timedelta(days=90)})) == []
