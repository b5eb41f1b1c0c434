"""What a result names as its error where no handler could: they are never raised."""

from __future__ import annotations

from delayed_queue.errors import DelayedQueueError


class TaskDied(DelayedQueueError):
    """The message is with the dead ones, and not by its function's doing: each worker that had it was killed, say."""


class TaskDropped(DelayedQueueError):
    """The message was taken out of the queue, or discarded from the dead ones, before its function was through."""
