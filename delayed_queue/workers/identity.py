"""Who a worker process is: to people, in the table of workers, and in the locks of what it leases."""

from __future__ import annotations

import os
import random
import socket
from dataclasses import dataclass, field

_random = random.SystemRandom()


@dataclass(frozen=True)
class Identity:
    """The first half of a worker's lock uuids is its id, so that what it held can be found when it is dead."""

    id: int = field(default_factory=lambda: _random.getrandbits(63))
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @property
    def lock_prefix(self) -> str:
        text = f"{self.id:016x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:]}-"

    def new_lock_uuid(self) -> str:
        """Another one for each lease: it is the fence, also against an older lease of the same worker."""
        text = f"{_random.getrandbits(64):016x}"
        return f"{self.lock_prefix}{text[:4]}-{text[4:]}"
