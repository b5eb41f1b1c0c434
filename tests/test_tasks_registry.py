"""Which task serves which kind."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from delayed_queue import InvalidInput
from delayed_queue.tasks import delayed_task, find, isolated_registry, tasks_by_kind


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    with isolated_registry():
        yield


def send() -> None: ...


def deliver() -> None: ...


def line_of(function: object) -> int:
    return function.__code__.co_firstlineno  # type: ignore[attr-defined,no-any-return]


def test_kinds_and_aliases_are_served() -> None:
    task = delayed_task(kind="send", aliases=["mail", "post"])(send)
    other = delayed_task(deliver)
    assert tasks_by_kind() == {
        "send": task,
        "mail": task,
        "post": task,
        "tests.test_tasks_registry.deliver": other,
    }


def test_two_handlers_for_one_kind_are_refused_and_both_are_named() -> None:
    first = delayed_task(kind="send")(send)
    with pytest.raises(InvalidInput) as refusal:
        delayed_task(kind="send")(deliver)
    assert str(refusal.value) == (
        f"The kind 'send' has two handlers: tests.test_tasks_registry.send ({__file__}:{line_of(send)}) and "
        f"tests.test_tasks_registry.deliver ({__file__}:{line_of(deliver)}). "
        "Give one of them another kind=, or take the alias away."
    )
    assert tasks_by_kind() == {"send": first}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"kind": "a", "aliases": ["b"]}, {"kind": "b"}),
        ({"kind": "a"}, {"kind": "b", "aliases": ["c", "a"]}),
        ({"kind": "a", "aliases": ["c"]}, {"kind": "b", "aliases": ["c"]}),
    ],
)
def test_an_alias_is_a_kind_like_any_other(first: dict[str, object], second: dict[str, object]) -> None:
    delayed_task(**first)(send)  # type: ignore[call-overload]
    before = tasks_by_kind()
    with pytest.raises(InvalidInput, match="has two handlers"):
        delayed_task(**second)(deliver)  # type: ignore[call-overload]
    assert tasks_by_kind() == before


def test_one_function_may_serve_two_kinds_as_two_tasks() -> None:
    fast, slow = delayed_task(kind="fast", priority=5)(send), delayed_task(kind="slow")(send)
    assert (find("fast"), find("slow")) == (fast, slow)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "reloaded_tasks.py").write_text(
        "from delayed_queue.tasks import delayed_task\n"
        "try: ALIASES\n"
        "except NameError: ALIASES = ['old']\n"
        "@delayed_task(kind='send', aliases=ALIASES)\n"
        "def send(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("reloaded_tasks")
    del sys.modules["reloaded_tasks"]


def test_a_module_that_is_reloaded_replaces_its_tasks(module: ModuleType) -> None:
    before = find("send")
    assert find("old") is before
    module.ALIASES = ["new"]  # type: ignore[attr-defined]
    importlib.reload(module)
    assert find("send") is find("new") is module.send is not before
    assert find("old") is None


def test_an_isolated_registry_is_empty_and_leaves_no_trace() -> None:
    task = delayed_task(kind="outside")(send)
    with pytest.raises(RuntimeError, match="whatever happens"), isolated_registry():
        assert tasks_by_kind() == {}
        delayed_task(kind="inside")(send)
        raise RuntimeError("whatever happens")
    assert tasks_by_kind() == {"outside": task}


def test_the_tasks_of_every_installed_app_are_discovered(tmp_path: Path) -> None:
    app = tmp_path / "shop"
    app.mkdir()
    (app / "__init__.py").write_text("")
    (app / "tasks.py").write_text(
        "from delayed_queue.tasks import delayed_task\n@delayed_task\ndef cancel_unpaid(order_id): ...\n"
    )
    program = """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["delayed_queue", "shop"])
django.setup()
from delayed_queue.tasks import tasks_by_kind
print(list(tasks_by_kind()))
"""
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    assert shown.stdout.strip() == "['shop.tasks.cancel_unpaid']"
