from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction
from django.db.models import QuerySet

from delayed_queue.conf import settings
from delayed_queue.history import make_partitions
from delayed_queue.management.durations import duration
from delayed_queue.models import DeadMessage, Slot, StoredResult, Worker

# Long after anyone would ask what became of it.
WORKERS_KEPT = timedelta(days=1)


class Command(BaseCommand):
    help = "Drop old history, make its partitions for the days to come, and delete what is out of date."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dead-older-than",
            type=duration,
            help="discard messages that died longer ago, such as 30d (default: DELAYED_QUEUE['DEAD_RETENTION'])",
        )
        parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
        parser.add_argument("--database", help="the alias of the queue's database (default: the setting)")

    def handle(
        self, *args: Any, dead_older_than: timedelta | None, dry_run: bool, database: str | None, **options: Any
    ) -> None:
        alias = database or settings.DATABASE
        if dry_run:
            self.stdout.write("Nothing is changed; this is what would be done:")
        # A dry run makes and drops the partitions and takes it back, so that it cannot say anything else.
        with transaction.atomic(using=alias):
            partitions = make_partitions(alias)
            transaction.set_rollback(dry_run, using=alias)
        for done in partitions:
            self.stdout.write(f"History: {done}")
        if not partitions:
            self.stdout.write("History: no partition to make or to drop")
        workers = _delete(Worker.objects.using(alias).silent(WORKERS_KEPT), dry_run)
        self.stdout.write(f"Workers: deleted {workers} that were silent for more than a day")
        slots = _delete(Slot.objects.using(alias).expired(), dry_run)
        self.stdout.write(f"Slots: deleted {slots} that had expired")
        results = StoredResult.objects.prune(older_than=settings.RESULT_RETENTION, dry_run=dry_run, using=alias)
        self.stdout.write(f"Results: deleted {results} that were finished too long ago, or have no message")
        self._discard_dead(alias, dead_older_than or settings.DEAD_RETENTION, dry_run)

    def _discard_dead(self, alias: str, retention: timedelta | float | None, dry_run: bool) -> None:
        if retention is None:
            self.stdout.write("Dead messages: kept, as neither DEAD_RETENTION nor --dead-older-than says for how long")
            return
        discarded = DeadMessage.objects.discard(older_than=retention, dry_run=dry_run, using=alias)
        age = retention if isinstance(retention, timedelta) else timedelta(seconds=retention)
        days = age / timedelta(days=1)
        self.stdout.write(f"Dead messages: discarded {discarded} that died more than {days:g} days ago")


def _delete(found: QuerySet[Any, Any], dry_run: bool) -> int:
    return found.count() if dry_run else found.delete()[0]
