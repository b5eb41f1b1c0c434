"""The scenarios: functions of a Trial, by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.trial import Trial

# By module, as names: who only lists them needs no Django with their settings.
MODULES = {
    "deaths": ("killed_children", "killed_supervisor", "deadly_message"),
    "pauses": ("stopped_process",),
    "stops": ("polite_stop", "impatient_stop", "overdue_stop"),
    "database": ("terminated_backends", "crashed_server", "exhausted_connections"),
    "silence": ("silent_line",),
    "horizon": ("pinned_horizon",),
    "clocks": ("shifted_clocks",),
    "floods": ("flood_beside_one",),
}
NAMES = [name for names in MODULES.values() for name in names]


def scenario(name: str) -> Callable[[Trial], None]:
    module = next(module for module, names in MODULES.items() if name in names)
    found: Callable[[Trial], None] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
