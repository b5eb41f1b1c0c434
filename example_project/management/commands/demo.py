from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console

from example_project.demo import Demo


class Command(BaseCommand):
    help = "Offer orders that are due within seconds, change and drop some, deliver them, and show how late they were."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--messages", type=int, default=400, help="how many orders (default: 400)")
        parser.add_argument("--seconds", type=float, default=6, help="within which time they are due (default: 6)")

    def handle(self, *args: Any, messages: int, seconds: float, **options: Any) -> None:
        if messages < 10 or seconds <= 0:
            raise CommandError("The demo needs at least 10 messages and some time.")
        if not Demo(Console(), messages, seconds).run():
            raise CommandError("Not everything was delivered as it should; see above.")
