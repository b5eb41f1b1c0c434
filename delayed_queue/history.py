"""The history of deliveries: what became of a key, and a partition for each day."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import psycopg
from django.db import ProgrammingError, connections, models, transaction

from delayed_queue.conf import settings
from delayed_queue.validation import check_key, check_kind

if TYPE_CHECKING:
    from delayed_queue.models import Delivery

logger = logging.getLogger("delayed_queue")

# So that nobody need look at the queue over a weekend, nor while a dump of the database holds up new partitions.
DAYS_AHEAD = 5
LONGEST_RETENTION_DAYS = 366 * 1000
_warned: set[str] = set()


class DeliveryManager(models.Manager["Delivery"]):
    def of(self, kind: str, key: str) -> models.QuerySet[Delivery]:
        """What became of each attempt at the message, the first one first."""
        # The index has the hash; the key itself tells apart those that share one.
        hashed = models.Func("key", function="hashtext", output_field=models.IntegerField())
        wanted = models.Func(models.Value(check_key(key)), function="hashtext", output_field=models.IntegerField())
        found = self.alias(key_hash=hashed).filter(key_hash=wanted, key=key, kind=check_kind(kind))
        return found.order_by("finished_at", "id")


def make_partitions(using: str | None = None) -> list[str]:
    """Make the partitions of the days to come and drop those past HISTORY_RETENTION; return what was done.

    Any number of processes may call it: one works, for the others there is nothing to do. A role that does not own the
    tables cannot, and is told so once; the history then goes into the default partition.
    """
    alias = using or settings.DATABASE
    retention = min(math.ceil(settings.HISTORY_RETENTION / 86400), LONGEST_RETENTION_DAYS)
    try:
        with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            cursor.execute("SELECT delayed_queue_make_partitions(%s, %s)", [DAYS_AHEAD, retention])
            ((done,),) = cursor.fetchall()
            return list(done)
    except ProgrammingError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        if alias not in _warned:
            _warned.add(alias)
            logger.warning(
                "The partitions of delayed_queue_delivery cannot be made or dropped with this role (%s). Run "
                "manage.py delayed_queue_prune each day as their owner; until then the history goes into the default "
                "partition and stays.",
                str(error).strip(),
            )
        return []
