"""The example's settings, without waiting for the disk at each commit, and with the aliases that some tests need."""

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES

DATABASES["default"].setdefault("OPTIONS", {})["options"] = "-c synchronous_commit=off"  # type: ignore[union-attr]
# A second database on the same server, for queues that are elsewhere.
DATABASES["second"] = DATABASES["default"] | {"TEST": {"NAME": "test_second"}}
