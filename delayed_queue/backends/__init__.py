"""Django's own tasks on top of the queue. In the settings:

    TASKS = {"default": {"BACKEND": "delayed_queue.backends.DelayedQueueBackend"}}

@task ──► backend.validate_task ──► a BackendTask for each queue, in the registry that workers serve from
enqueue ──► one statement: the message, and the row of its result
worker ──► BackendTask ──► attempts.py: start, call, write what came of it
"""

from delayed_queue.backends.backend import DelayedQueueBackend
from delayed_queue.backends.errors import TaskDied, TaskDropped

__all__ = ["DelayedQueueBackend", "TaskDied", "TaskDropped"]
