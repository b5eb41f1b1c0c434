"""Every snippet in README and docs runs, one after the other as a reader would type them, page by page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from delayed_queue.testing import isolated_registry

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str, int]]:
    text = page.read_text()
    return [(found[1], found[2], text[: found.start()].count("\n") + 1) for found in BLOCK.finditer(text)]


@pytest.mark.django_db
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "snippet"}
    with isolated_registry():
        for language, source, line in blocks(page):
            if language == "python":
                program = compile("\n" * line + source, str(page), "exec")
                if not source.startswith("# settings.py"):
                    exec(program, names)  # noqa: S102
            elif "CONCURRENTLY" not in source:
                with connection.cursor() as cursor:
                    cursor.execute(source)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_every_setting_and_check_is_in_the_reference() -> None:
    from dataclasses import fields

    from delayed_queue.conf import Settings

    reference = (ROOT / "docs" / "reference.md").read_text()
    assert [field.name for field in fields(Settings) if f"`{field.name}`" not in reference] == []
    ids = set(re.findall(r"delayed_queue\.[EW]\d+", (ROOT / "delayed_queue" / "checks.py").read_text()))
    assert ids == set(re.findall(r"delayed_queue\.[EW]\d+", reference))


def test_every_module_is_on_the_map() -> None:
    design = (ROOT / "docs" / "design" / "README.md").read_text()
    modules = {path.name for path in (ROOT / "delayed_queue").glob("*.py")} - {"__init__.py"}
    assert {name for name in modules if f"`{name}`" not in design} == set()
