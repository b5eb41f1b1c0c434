"""The first thing that anyone sees must work, and show what it says it shows."""

from __future__ import annotations

import re

import pytest
from django.core.management import CommandError, call_command


@pytest.mark.django_db(transaction=True)
def test_the_demo_survives_its_kill_and_shows_how_late_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("demo", orders=60, seconds=3)
    shown = capsys.readouterr().out
    counts = {name: int(count) for name, count in re.findall(r"│ ([a-z]+) +│ +(\d+) │", shown)}
    assert counts["orders"] == 60 == counts["paid"] + counts["cancelled"]
    assert counts["payments"] == counts["paid"]
    assert counts["webhooks"] >= counts["paid"] - 1  # but the one that is refused; a killed worker's may come twice
    assert counts["dead"] == 1
    assert re.findall(r"late, (p50|p95|max) +│ +\d+ ms", shown) == ["p50", "p95", "max"]
    assert "kill -9" in shown
    assert "nothing was lost" in shown


@pytest.mark.django_db
def test_the_demo_refuses_what_it_cannot_show() -> None:
    with pytest.raises(CommandError, match="at least 20 orders"):
        call_command("demo", orders=3)
