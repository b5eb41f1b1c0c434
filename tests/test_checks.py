"""What manage.py check says."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from delayed_queue import DelayedQueue
from delayed_queue.conf import settings as queue_settings


def errors(**kwargs: Any) -> list[tuple[str | None, str, str | None]]:
    return [(found.id, found.msg, found.hint) for found in run_checks(**kwargs) if str(found.id).startswith("delayed")]


def test_the_defaults_are_good() -> None:
    assert errors() == []


def test_an_unknown_key_is_an_error_with_a_suggestion(settings: Any) -> None:
    settings.DELAYED_QUEUE = {"POL_PERIOD": 3}
    assert errors() == [
        ("delayed_queue.E001", "DELAYED_QUEUE has an unknown key 'POL_PERIOD'.", "Did you mean 'POLL_PERIOD'?")
    ]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"POLL_PERIOD": 0}, "DELAYED_QUEUE['POLL_PERIOD'] must be a number of seconds greater than 0, not 0."),
        ({"POLL_PERIOD": True}, "must be a number of seconds greater than 0, not True."),
        ({"MAX_PAYLOAD_BYTES": "1M"}, "must be a whole number greater than 0, not '1M'."),
        ({"NOTIFY": 1}, "DELAYED_QUEUE['NOTIFY'] must be True or False, not 1."),
        ({"DATABASE": ""}, "must be the name of a database, not ''."),
        (["NOTIFY"], "DELAYED_QUEUE must be a dict, not list."),
    ],
)
def test_a_bad_value_is_an_error(settings: Any, value: Any, sentence: str) -> None:
    settings.DELAYED_QUEUE = value
    ((found_id, message, _),) = errors()
    assert found_id == "delayed_queue.E001"
    assert sentence in message


def test_a_bad_setting_is_an_error_at_run_time_too(settings: Any) -> None:
    settings.DELAYED_QUEUE = {"NOTYFI": False}
    with pytest.raises(ImproperlyConfigured, match=r"unknown key 'NOTYFI'\. Did you mean 'NOTIFY'"):
        DelayedQueue("q").drop("k")


def test_settings_follow_an_override(settings: Any) -> None:
    assert queue_settings.POLL_PERIOD == 3
    settings.DELAYED_QUEUE = {"POLL_PERIOD": 7}
    assert queue_settings.POLL_PERIOD == 7


def test_a_database_that_is_not_there_is_an_error(settings: Any) -> None:
    settings.DELAYED_QUEUE = {"DATABASE": "queue"}
    ((found_id, message, hint),) = errors()
    assert (found_id, message) == (
        "delayed_queue.E002",
        "DELAYED_QUEUE['DATABASE'] is 'queue', which is not in DATABASES.",
    )
    assert "default" in str(hint)


def test_a_database_that_is_not_postgresql_is_an_error(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connections["default"]), "vendor", "sqlite")
    ((found_id, _, _),) = errors()
    assert found_id == "delayed_queue.E003"


@pytest.mark.django_db
def test_the_version_of_the_server_is_checked_only_with_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayed_queue.checks.OLDEST_POSTGRESQL", 99)
    assert errors() == []
    ((found_id, message, _),) = errors(databases=["default"])
    assert found_id == "delayed_queue.E004"
    assert "it needs 99 or newer" in message


def test_the_package_can_be_imported_before_django_is_set_up() -> None:
    program = "import delayed_queue; delayed_queue.DelayedQueue('early', delayed_queue.JsonSerializer())"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
