"""Functions that are called later: the decorator, the task, the registry, and what a handler raises."""

from delayed_queue.tasks.calls import TaskCall
from delayed_queue.tasks.decorator import delayed_task
from delayed_queue.tasks.deliveries import Delivery, current_delivery
from delayed_queue.tasks.offers import Offered, Offering
from delayed_queue.tasks.registry import discover, find, isolated_registry, register, tasks_by_kind
from delayed_queue.tasks.snapshots import TaskMessage
from delayed_queue.tasks.task import Task
from delayed_queue.tasks.verdicts import DeadLetter, Retry, Snooze, Verdict

__all__ = [
    "DeadLetter",
    "Delivery",
    "Offered",
    "Offering",
    "Retry",
    "Snooze",
    "Task",
    "TaskCall",
    "TaskMessage",
    "Verdict",
    "current_delivery",
    "delayed_task",
    "discover",
    "find",
    "isolated_registry",
    "register",
    "tasks_by_kind",
]
