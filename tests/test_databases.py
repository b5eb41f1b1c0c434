"""Queues on another database than the default one."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections, transaction

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import DelayedMessage
from tests.conftest import NOON

pytestmark = pytest.mark.django_db(databases=["default", "second"])


@pytest.fixture
def second() -> DelayedQueue[str]:
    return DelayedQueue("reminders", using="second")


def test_every_operation_goes_to_the_database_of_the_queue(second: DelayedQueue[str]) -> None:
    first: DelayedQueue[str] = DelayedQueue("reminders")
    second.offer_or_update("a", "x", NOON)
    second.offer_batch([ScheduledMessage("b", "y", NOON)])
    assert first.stats().due == 0
    assert first.try_poll() is None
    assert second.contains("a")
    assert second.stats().due == 2
    envelope = second.try_poll()
    assert envelope is not None
    assert envelope.extend()
    assert envelope.release(3600)
    assert second.try_poll_many(5).acknowledge() == 1
    assert second.drop("a")


def test_it_joins_the_transaction_of_that_database(second: DelayedQueue[str]) -> None:
    with transaction.atomic(using="second"):
        second.offer_or_update("k", "x", NOON)
        transaction.set_rollback(True, using="second")
    assert not second.contains("k")


def test_the_setting_names_the_database_of_all_queues(settings: Any) -> None:
    settings.DELAYED_QUEUE = {"DATABASE": "second"}
    queue: DelayedQueue[str] = DelayedQueue("reminders")
    queue.offer_or_update("k", "x", NOON)
    with connections["second"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM delayed_queue")
        assert cursor.fetchone() == (1,)


def test_the_manager_follows_djangos_ways() -> None:
    DelayedMessage.objects.db_manager("second").offer_or_update(kind="k", key="k", payload=b"", schedule_at=NOON)
    assert DelayedMessage.objects.using("second").count() == 1
    assert DelayedMessage.objects.count() == 0
