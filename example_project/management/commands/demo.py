from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console

from example_project.demo import Demo


class Command(BaseCommand):
    help = "A shop on a busy day: orders, deadlines, payments, webhooks; real workers, one of them killed on the way."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--orders", type=int, default=300, help="how many (default: %(default)s)")
        parser.add_argument("--seconds", type=float, default=8, help="until the last deadline (default: %(default)s)")

    def handle(self, *args: Any, orders: int, seconds: float, **options: Any) -> None:
        if orders < 20 or seconds < 3:
            raise CommandError("The demo needs at least 20 orders and 3 seconds.")
        if not Demo(Console(), orders, seconds).run():
            raise CommandError("Not everything came out as it should; see above.")
