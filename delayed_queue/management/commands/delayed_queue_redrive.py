from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from delayed_queue.conf import settings
from delayed_queue.dead import RedriveReport
from delayed_queue.errors import InvalidInput
from delayed_queue.management.durations import duration
from delayed_queue.models import DeadMessage

FILTERS = ("kind", "key", "reason", "older_than", "younger_than")


class Command(BaseCommand):
    help = "Put dead messages back into the queue, due now, with all their attempts before them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--kind", help="only of this kind")
        parser.add_argument("--key", help="only with this key")
        parser.add_argument("--reason", choices=DeadMessage.Reason.values, help="only those that died of this")
        parser.add_argument("--older-than", type=duration, help="only those that died longer ago: 90s, 15m, 2h, 7d")
        parser.add_argument("--younger-than", type=duration, help="only those that died since: 90s, 15m, 2h, 7d")
        parser.add_argument("--limit", type=int, help="at most this many, the newest first")
        parser.add_argument("--all", action="store_true", help="every dead message, where no other option chooses")
        parser.add_argument("--dry-run", action="store_true", help="only count what would go back")
        parser.add_argument("--database", help="the alias of the queue's database (default: the setting)")

    def handle(self, *args: Any, database: str | None, dry_run: bool, **options: Any) -> None:
        chosen = {name: options[name] for name in FILTERS if options[name] is not None}
        if not chosen and not options["all"]:
            raise CommandError("Say which: --kind, --key, --reason, --older-than or --younger-than; or --all of them.")
        how = chosen | {"limit": options["limit"], "using": database or settings.DATABASE}
        try:
            if dry_run:
                report = DeadMessage.objects.redrive(dry_run=True, **how)
            else:
                report = self._with_progress(DeadMessage.objects.redrive_in_chunks(**how))
        except InvalidInput as error:
            raise CommandError(str(error)) from error
        self._show(report, dry_run)

    def _with_progress(self, chunks: Iterable[RedriveReport]) -> RedriveReport:
        total = RedriveReport()
        on_terminal = self.stdout.isatty()
        for chunk in chunks:
            total += chunk
            if on_terminal:
                self.stdout.write(f"\r{total.redriven} went back so far", ending="")
                self.stdout.flush()
        if on_terminal:
            self.stdout.write("\r\033[K", ending="")
        return total

    def _show(self, report: RedriveReport, dry_run: bool) -> None:
        if not report.by_kind:
            self.stdout.write("There is no such dead message.")
            return
        heading = "would go back" if dry_run else "went back"
        width = max(len("kind"), len("total"), *map(len, report.by_kind))
        lines = [(kind, *counts) for kind, counts in sorted(report.by_kind.items())]
        if len(lines) > 1:
            lines.append(("total", report.redriven, report.blocked))
        self.stdout.write(f"{'kind':{width}}  {heading:>13}  {'blocked':>7}")
        for kind, redriven, blocked in lines:
            self.stdout.write(f"{kind:{width}}  {redriven:>13}  {blocked:>7}")
        if report.blocked:
            self.stdout.write(
                f"{'Would stay' if dry_run else 'Stayed'} dead: {report.blocked}. "
                "A message with their key is in the queue again, or went back now as the newer of two."
            )
