"""What is offered before a disturbance, to fall due in the course of it.

Offered in advance, so that no offer is hit by the disturbance itself: one whose answer is lost may be stored and
delivered twice, which is another promise, kept by other tests.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from delayed_queue.tasks import Task
from delayed_queue.tasks.calls import TaskCall


class Load:
    def __init__(self) -> None:
        self.offered: dict[str, set[str]] = defaultdict(set)

    def offer(self, task: Task[..., Any], count: int, *arguments: object, over: float = 0.0) -> list[str]:
        """So many of a task, due one after the other in the next seconds. Returns their keys."""
        first = len(self.offered[task.kind])
        keys = [f"{task.kind}-{first + number}" for number in range(count)]
        task.offer_many(
            TaskCall(args=arguments, key=key, delay=over * number / count) for number, key in enumerate(keys)
        )
        self.offered[task.kind].update(keys)
        return keys

    def __len__(self) -> int:
        return sum(len(keys) for keys in self.offered.values())
