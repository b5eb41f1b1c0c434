"""The example's settings, without waiting for the disk at each commit, and with the aliases that some tests need."""

from typing import Any

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES

_default: dict[str, Any] = DATABASES["default"]
_options = _default.setdefault("OPTIONS", {})
if "host" in _options:  # from DATABASE_URL=...?host=; some tests connect to the same database by another way
    _default["HOST"] = _options.pop("host")
_options["options"] = "-c synchronous_commit=off"
# A second database on the same server, for queues that are elsewhere.
DATABASES["second"] = _default | {"TEST": {"NAME": "test_second"}}
