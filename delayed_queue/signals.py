"""What happens to messages, told to receivers in the worker process where it happens.

Each signal has the ``sender`` (the task) and a ``delivery`` (what ``current_delivery()`` gives). A receiver that raises
is logged, and changes nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django.dispatch import Signal

if TYPE_CHECKING:
    from delayed_queue.tasks.deliveries import Delivery

logger = logging.getLogger("delayed_queue")

delivery_started = Signal()
delivery_done = Signal()
delivery_retried = Signal()
delivery_snoozed = Signal()
message_dead = Signal()
lease_lost = Signal()

# Sent by the process with ``identity`` (id, host, pid); the sender is the Worker class.
worker_started = Signal()
worker_stopped = Signal()

BY_OUTCOME = {
    "done": delivery_done,
    "retried": delivery_retried,
    "snoozed": delivery_snoozed,
    "dead": message_dead,
    "lost": lease_lost,
}


def send(signal: Signal, delivery: Delivery) -> None:
    for receiver, result in signal.send_robust(sender=delivery.task, delivery=delivery):
        if isinstance(result, Exception):
            logger.error("The receiver %r of a signal failed", receiver, exc_info=result, extra=delivery.told)
