"""The manager that a task's messages go through, one for each database."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from delayed_queue.conf import settings

if TYPE_CHECKING:
    from delayed_queue.managers import DelayedMessageManager


def messages_in(database: str | None) -> DelayedMessageManager:
    """That of the alias; None is the setting's, read at each call so that a change of it is seen."""
    return _manager(database or settings.DATABASE)


@cache  # a configured manager keeps the connection of its thread, which is 4 % of an offer
def _manager(alias: str) -> DelayedMessageManager:
    from delayed_queue.models import DelayedMessage

    return DelayedMessage.objects.configured(using=alias)
