"""The demo: orders that are cancelled if they are not paid in time, with everything that can happen on the way."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connections
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from delayed_queue import BytesSerializer, DelayedQueue, JsonSerializer, ScheduledMessage
from delayed_queue.models import DeadMessage

CONSUMERS = 2
PATIENCE = 30  # seconds after the last due time until the demo gives up


@dataclass
class Ledger:
    """What was asked for and what happened, to compare them at the end."""

    offered: int = 0
    updated: int = 0
    dropped: int = 0
    expected: dict[str, Any] = field(default_factory=dict)
    delivered: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, key: str, payload: Any, late: timedelta) -> None:
        with self.lock:
            self.delivered[key] += 1
            self.late_ms.append(late / timedelta(milliseconds=1))
            if self.expected.get(key) != payload:
                self.wrong.append(key)

    @property
    def problems(self) -> list[str]:
        found = [f"{key}: not what was offered last" for key in self.wrong]
        found += [f"{key}: delivered {times} times" for key, times in self.delivered.items() if times > 1]
        found += [f"{key}: never delivered" for key in self.expected if key not in self.delivered]
        return found


class Demo:
    def __init__(self, console: Console, messages: int, seconds: float) -> None:
        self.console = console
        self.messages = messages
        self.seconds = seconds
        self.ledger = Ledger()
        self.queue: DelayedQueue[Any] = DelayedQueue("unpaid-orders", JsonSerializer(), acquire_timeout=30)
        self.late_orders: list[ScheduledMessage[Any]] = []
        self.random = random.Random(7)

    def run(self) -> bool:
        self.queue.drop_all("Yes, please, I know what I'm doing!")
        DeadMessage.objects.filter(kind=self.queue.kind).delete()
        stop = threading.Event()
        consumers = [threading.Thread(target=self.consume, args=[stop]) for _ in range(CONSUMERS)]
        for consumer in consumers:
            consumer.start()
        try:
            self.offer()
            self.change_some()
            self.watch()
        finally:
            stop.set()
            for consumer in consumers:
                consumer.join()
        return self.report()

    def offer(self) -> None:
        now = datetime.now(UTC)
        orders = []
        for number in range(self.messages):
            payload = {"order": number, "total": f"{self.random.randint(5, 500)}.00"}
            due = now + timedelta(seconds=self.random.uniform(0.5, self.seconds))
            orders.append(ScheduledMessage(f"order-{number}", payload, due))
        self.late_orders = [order for order in orders if order.schedule_at > now + timedelta(seconds=self.seconds / 2)]
        self.ledger.expected = {order.key: order.payload for order in orders}
        self.ledger.offered = len(self.queue.offer_batch(orders))
        self.console.print(
            f"[bold]{self.ledger.offered}[/] unpaid orders, each to be cancelled at its own time "
            f"within the next [bold]{self.seconds:g} s[/]"
        )

    def change_some(self) -> None:
        """Customers ask for more time, customers pay, and one order was written by a program with a bug."""
        # Not those that are due soon: what is being delivered is changed by nobody here, so that the sums are exact.
        changing = self.random.sample([order.key for order in self.late_orders], self.messages // 4)
        more_time, paid = changing[: len(changing) // 2], changing[len(changing) // 2 :]
        for key in more_time:
            payload = self.ledger.expected[key] | {"more_time": True}
            due = datetime.now(UTC) + timedelta(seconds=self.seconds + self.random.uniform(0, 1))
            self.queue.offer_or_update(key, payload, due)
            self.ledger.expected[key] = payload
            self.ledger.updated += 1
        for key in paid:
            if self.queue.drop(key):
                del self.ledger.expected[key]
                self.ledger.dropped += 1
        poisonous = DelayedQueue.for_kind(self.queue.kind, BytesSerializer())
        poisonous.offer_or_update("order-poison", b'{"order": \xff', datetime.now(UTC) + timedelta(seconds=1))
        self.ledger.offered += 1
        self.console.print(
            f"[bold]{self.ledger.updated}[/] got more time, [bold]{self.ledger.dropped}[/] were paid, "
            "and [bold]1[/] has a payload that nobody can read"
        )

    def consume(self, stop: threading.Event) -> None:
        while not stop.is_set():
            envelope = self.queue.poll(timeout=0.5)
            if envelope is not None:
                late = datetime.now(UTC) - envelope.scheduled_for
                with envelope:
                    self.ledger.record(envelope.key, envelope.payload, late)
        connections.close_all()

    def watch(self) -> None:
        columns = (TextColumn("delivering"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        deadline = time.monotonic() + self.seconds + PATIENCE
        with Progress(*columns, console=self.console, transient=True) as progress:
            delivering = progress.add_task("", total=len(self.ledger.expected))
            while len(self.ledger.delivered) < len(self.ledger.expected) and time.monotonic() < deadline:
                progress.update(delivering, completed=len(self.ledger.delivered))
                time.sleep(0.05)
            progress.update(delivering, completed=len(self.ledger.delivered))

    def report(self) -> bool:
        stats = self.queue.stats()
        table = Table(show_header=False, title="What became of them", title_justify="left")
        table.add_column(style="bold")
        table.add_column(justify="right")
        for name, count in (
            ("offered", self.ledger.offered),
            ("updated", self.ledger.updated),
            ("dropped", self.ledger.dropped),
            ("delivered", self.ledger.delivered.total()),
            ("dead", stats.dead),
        ):
            table.add_row(name, f"{count:,}")
        if self.ledger.late_ms:
            late = statistics.quantiles(self.ledger.late_ms, n=100, method="inclusive")
            table.add_section()
            for name, milliseconds in (("p50", late[49]), ("p95", late[94]), ("max", max(self.ledger.late_ms))):
                table.add_row(f"late, {name}", f"{milliseconds:.1f} ms")
        self.console.print(table)
        for dead in DeadMessage.objects.filter(kind=self.queue.kind):
            self.console.print(f"dead: {dead.key}, {dead.reason}: {dead.error}", markup=False)
        problems = self.ledger.problems
        for problem in problems[:10]:
            self.console.print(problem, style="red")
        good = not problems and stats.dead == 1 and stats.due + stats.scheduled + stats.leased + stats.stalled == 0
        if good:
            self.console.print("[green]Every order was delivered once, as it was offered last; none was lost.")
        return good
