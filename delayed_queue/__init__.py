"""A delayed queue for Django, on the PostgreSQL that the project already has."""

from delayed_queue.cron import CronDailySchedule, Crontab, Every
from delayed_queue.errors import DelayedQueueError, InvalidInput, QueueUnavailable, UndecodablePayload
from delayed_queue.messages import (
    BatchEnvelope,
    DeliveryType,
    DropOutcome,
    Envelope,
    OfferOutcome,
    QueueStats,
    ScheduledMessage,
)
from delayed_queue.queues import DelayedQueue
from delayed_queue.retry import Backoff, RetryConfig
from delayed_queue.serializers import BytesSerializer, JsonSerializer, Serializer, TextSerializer
from delayed_queue.tasks import (
    DeadLetter,
    Offered,
    Retry,
    Snooze,
    Task,
    TaskCall,
    TaskMessage,
    current_delivery,
    delayed_task,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "Backoff",
    "BatchEnvelope",
    "BytesSerializer",
    "CronDailySchedule",
    "Crontab",
    "DeadLetter",
    "DelayedQueue",
    "DelayedQueueError",
    "DeliveryType",
    "DropOutcome",
    "Envelope",
    "Every",
    "InvalidInput",
    "JsonSerializer",
    "OfferOutcome",
    "Offered",
    "QueueStats",
    "QueueUnavailable",
    "Retry",
    "RetryConfig",
    "ScheduledMessage",
    "Serializer",
    "Snooze",
    "Task",
    "TaskCall",
    "TaskMessage",
    "TextSerializer",
    "UndecodablePayload",
    "current_delivery",
    "delayed_task",
]
