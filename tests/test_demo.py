"""The first thing that anyone sees must work, and show what it says it shows."""

from __future__ import annotations

import re

import pytest
from django.core.management import CommandError, call_command

from delayed_queue.models import DeadMessage


@pytest.mark.django_db(transaction=True)
def test_the_demo_delivers_what_it_offered_and_shows_how_late(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("demo", messages=60, seconds=1.5)
    shown = capsys.readouterr().out
    counts = {name: int(count) for name, count in re.findall(r"│ (\w+) +│ +(\d+) │", shown)}
    assert counts == {"offered": 61, "updated": 7, "dropped": 8, "delivered": 52, "dead": 1}
    assert re.findall(r"late, (p50|p95|max) +│ +[\d.]+ ms", shown) == ["p50", "p95", "max"]
    assert "none was lost" in shown
    assert DeadMessage.objects.get().reason == "undecodable"


@pytest.mark.django_db
def test_the_demo_refuses_what_it_cannot_show() -> None:
    with pytest.raises(CommandError, match="at least 10 messages"):
        call_command("demo", messages=3)
