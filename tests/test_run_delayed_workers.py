"""The command: what it is told, what it says, and how it ends. In processes of its own where that matters."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from delayed_queue import delayed_task
from delayed_queue.models import DelayedMessage, Delivery, Worker
from delayed_queue.testing import isolated_registry
from tests.working import PATIENCE, wait_until

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.django_db(transaction=True)

# Tasks of a project of its own: `python -c` with settings that name the database of the test.
PROJECT = """
import os, sys, time, logging
import django
from django.conf import settings

settings.configure(DATABASES={"default": %(database)r}, INSTALLED_APPS=["delayed_queue"], USE_TZ=True)
django.setup()

from delayed_queue import delayed_task

@delayed_task(kind="quick")
def quick(): pass

@delayed_task(kind="slow")
def slow(seconds): time.sleep(seconds)

@delayed_task(kind="mail|send")
async def send(): pass

from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "run_delayed_workers", *sys.argv[1:]])
"""


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    with isolated_registry():
        yield


@pytest.fixture
def tasks(registry: None) -> dict[str, Any]:
    """Stand-ins of the project's tasks, to offer with."""
    return {
        "quick": delayed_task(kind="quick")(lambda: None),
        "slow": delayed_task(kind="slow")(lambda seconds: None),
        "send": delayed_task(kind="mail|send")(lambda: None),
    }


def database() -> dict[str, Any]:
    kept = ("ENGINE", "HOST", "PORT", "USER", "PASSWORD", "NAME", "OPTIONS")
    return {name: connection.settings_dict[name] for name in kept if connection.settings_dict.get(name)}


class Command:
    def __init__(self, *arguments: str, script: Path | None = None) -> None:
        program = ["-c", PROJECT % {"database": database()}] if script is None else [str(script)]
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def children(self) -> list[int]:
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in found.split()]

    def wait(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


@pytest.fixture
def command() -> Iterator[Any]:
    started: list[Command] = []

    def start(*arguments: str, script: Path | None = None) -> Command:
        started.append(Command(*arguments, script=script))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def workers() -> int:
    return Worker.objects.count()


# Options


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"kinds": ["unknwon"]}, "No task serves the kind 'unknwon'. Did you mean 'unknown'?"),
        ({"exclude": ["zzz"]}, "No task serves the kind 'zzz'. Known: mail|send, unknown."),
        ({"namespaces": ["mails"]}, "No task is in the namespace 'mails'. Known: default, mail."),
        ({"database": "nowhere"}, "There is no database 'nowhere'. Known: default, second."),
        ({"kinds": ["unknown"], "exclude": ["unk*"]}, "There are no tasks to serve."),
        ({"poll_period": 5.0}, "--poll-period may be 3 at the most"),
        ({"with_cron": True}, "--with-cron needs schedules"),
        ({"autoreload": True, "processes": 2}, "--autoreload runs one process"),
    ],
)
def test_bad_options_are_refused_with_what_would_be_right(options: dict[str, Any], complaint: str) -> None:
    delayed_task(kind="unknown")(lambda: None)
    delayed_task(kind="mail|send")(lambda: None)
    with pytest.raises(CommandError) as refused:
        call_command("run_delayed_workers", **options)
    assert complaint in str(refused.value)


@pytest.mark.parametrize("option", ["--threads=0", "--processes=-1", "--batch=x", "--lease=0", "--shutdown-timeout=-1"])
def test_numbers_that_make_no_sense_are_refused(option: str) -> None:
    delayed_task(kind="k")(lambda: None)
    with pytest.raises(CommandError, match=f"argument {option.partition('=')[0]}: it must be a number of at least"):
        call_command("run_delayed_workers", option)


@pytest.mark.parametrize(
    ("options", "served"),
    [
        ({}, {"shop.a", "shop.b", "mail|send", "mail|receive"}),
        ({"kinds": ["shop.*"]}, {"shop.a", "shop.b"}),
        ({"kinds": ["shop.a,mail|send"]}, {"shop.a", "mail|send"}),
        ({"namespaces": ["mail"]}, {"mail|send", "mail|receive"}),
        ({"namespaces": ["default"], "exclude": ["shop.b"]}, {"shop.a"}),
    ],
)
def test_kinds_namespaces_and_exclude_say_what_is_served(options: dict[str, Any], served: set[str]) -> None:
    for kind in ("shop.a", "shop.b", "mail|send", "mail|receive"):
        delayed_task(kind=kind)(lambda: None).offer()
    call_command("run_delayed_workers", until_empty=True, stdout=io.StringIO(), **options)
    assert set(Delivery.objects.values_list("kind", flat=True)) == served
    assert DelayedMessage.objects.count() == 4 - len(served)


def test_it_says_what_it_serves() -> None:
    delayed_task(kind="shop.a")(lambda: None)
    out = io.StringIO()
    call_command("run_delayed_workers", until_empty=True, threads=3, stdout=out)
    assert out.getvalue() == (
        "1 worker process with 3 threads on 'default', for these kinds. Stop with Ctrl-C.\n  shop.a\n"
    )


# Ending


def test_until_empty_ends_by_itself(command: Any, tasks: dict[str, Any]) -> None:
    tasks["quick"].offer_many([()] * 300)
    tasks["send"].offer_many([()] * 300)
    tasks["quick"].using(delay=3600, key="later").offer()
    code, output = command("--until-empty", "--processes", "2").wait()
    assert code == 0, output
    assert "2 worker processes" in output
    assert [message.key for message in DelayedMessage.objects.all()] == ["later"]
    assert Delivery.objects.filter(outcome="done").count() == 600
    assert workers() == 0


def test_max_messages_counts_for_all_processes_together(command: Any, tasks: dict[str, Any]) -> None:
    tasks["quick"].offer_many([()] * 100)
    code, output = command("--max-messages", "30", "--processes", "2").wait()
    assert code == 0, output
    assert DelayedMessage.objects.count() == 70
    assert set(DelayedMessage.objects.values_list("attempts", flat=True)) == {0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_handlers_finish(command: Any, tasks: dict[str, Any], number: int) -> None:
    running = command("--processes", "2", "--threads", "2")
    wait_until(lambda: workers() == 2)
    tasks["slow"].using(key="a").offer(1)
    wait_until(lambda: DelayedMessage.objects.exclude(lock_uuid=None).exists())
    time.sleep(0.3)  # leased, and started
    os.killpg(running.process.pid, number)  # as a terminal does
    code, output = running.wait()
    assert code == 0, output
    assert not DelayedMessage.objects.exists()
    assert workers() == 0


def test_a_second_signal_does_not(command: Any, tasks: dict[str, Any]) -> None:
    running = command()
    wait_until(lambda: workers() == 1)
    tasks["slow"].using(key="a").offer(300)
    wait_until(lambda: DelayedMessage.objects.exclude(lock_uuid=None).exists())
    running.process.terminate()
    time.sleep(0.2)
    running.process.terminate()
    code, output = running.wait()
    assert code == 0, output
    message = DelayedMessage.objects.get()
    assert (message.attempts, message.lock_uuid) == (0, None)


def test_a_child_that_dies_is_replaced_and_what_it_held_comes_back_at_once(command: Any, tasks: dict[str, Any]) -> None:
    running = command("--threads", "1")
    wait_until(lambda: workers() == 1)
    tasks["slow"].using(key="a").offer(300)
    wait_until(lambda: DelayedMessage.objects.exclude(lock_uuid=None).exists())
    time.sleep(0.2)  # leased, and started
    (child,) = running.children()
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: running.children() not in ([], [child]))
    wait_until(lambda: DelayedMessage.objects.exclude(last_error=None).exists())
    message = DelayedMessage.objects.get()
    assert message.attempts in (1, 2)
    assert message.last_error == "The worker process died (signal 9) while this message was handled"
    wait_until(lambda: DelayedMessage.objects.filter(attempts=2).exists())  # long before the lease of 60 s is over


def test_children_end_when_their_supervisor_is_killed(command: Any, tasks: dict[str, Any]) -> None:
    running = command("--processes", "2")
    wait_until(lambda: workers() == 2)
    children = running.children()
    running.process.kill()
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    assert workers() == 0


def test_autoreload_starts_anew_when_code_changes_and_leaves_nothing_leased(
    command: Any, tasks: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "manage.py"  # which Django starts again by its path
    script.write_text(PROJECT % {"database": database()})
    running = command("--autoreload", script=script)
    wait_until(lambda: workers() == 1)
    before = Worker.objects.get().id
    tasks["slow"].using(key="a").offer(300)
    wait_until(lambda: DelayedMessage.objects.exclude(lock_uuid=None).exists())

    def is_new_one_there() -> bool:
        script.touch()  # again and again: Django may only just have begun to watch
        time.sleep(0.5)
        return Worker.objects.exclude(id=before).exists()

    wait_until(is_new_one_there)
    assert not Worker.objects.filter(id=before).exists()
    wait_until(lambda: DelayedMessage.objects.filter(attempts=1).exclude(lock_uuid=None).exists())
    os.killpg(running.process.pid, signal.SIGINT)
    running.wait()


# Health


def test_probes_are_answered(command: Any, tasks: dict[str, Any]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = command("--health-port", str(port), "--processes", "2")
    wait_until(lambda: workers() == 2)
    wait_until(lambda: _probe(port, "/readyz")[0] == 200)
    assert _probe(port, "/healthz") == (200, {"ok": True, "processes": 2, "alive": 2, "ready": 2})
    assert _probe(port, "/elsewhere")[0] == 404
    for child in running.children():
        os.kill(child, signal.SIGSTOP)
    running.process.terminate()
    wait_until(lambda: _probe(port, "/readyz")[0] == 503)
    for child in running.children():
        os.kill(child, signal.SIGCONT)
    assert running.wait()[0] == 0


def _probe(port: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, None
