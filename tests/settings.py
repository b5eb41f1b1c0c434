"""The example's settings, without waiting for the disk at each commit, and with the aliases that some tests need."""

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES, INSTALLED_APPS

DATABASES["default"].setdefault("OPTIONS", {})["options"] = "-c synchronous_commit=off"  # type: ignore[union-attr]
INSTALLED_APPS = [*INSTALLED_APPS]
