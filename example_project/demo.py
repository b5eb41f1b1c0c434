"""The demo: a shop on a busy day, with real worker processes, one of which is killed on the way."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

from django.db import connection
from django.utils import timezone
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from delayed_queue.models import DeadMessage, DelayedMessage, Delivery, Worker
from example_project import shop, tasks
from example_project.models import Order, Payment
from example_project.partner import Partner

ROOT = Path(__file__).resolve().parent.parent
KINDS = [task.kind for task in (tasks.cancel_unpaid, tasks.remind, tasks.charge, tasks.call_webhook)]
PROCESSES = 2
PATIENCE = 60  # seconds after the last deadline until the demo gives up


class Demo:
    def __init__(self, console: Console, orders: int, seconds: float) -> None:
        self.console = console
        self.count = orders
        self.seconds = seconds
        self.random = random.Random(7)
        self.paid: set[str] = set()
        self.more_time: set[str] = set()
        self.killed = 0

    def run(self) -> bool:
        self.clean_up()
        partner = Partner(refused_order="order-13")
        with self.workers(partner.url):
            self.place_orders()
            self.change_some()
            self.watch()
        return self.report(partner)

    def clean_up(self) -> None:
        Order.objects.all().delete()
        for model in (DelayedMessage, DeadMessage, Delivery):
            model._default_manager.filter(kind__in=KINDS).delete()

    @contextmanager
    def workers(self, webhook_url: str) -> Iterator[None]:
        command = [sys.executable, "manage.py", "run_delayed_workers", f"--processes={PROCESSES}", "--verbosity=0"]
        environment = os.environ | {"WEBHOOK_URL": webhook_url, "DATABASE_URL": _database_url()}
        # The deaths of handlers and processes are part of the plan here; what came of them is shown at the end.
        process = subprocess.Popen(  # noqa: S603
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self.wait_for(lambda: Worker.objects.alive().count() >= PROCESSES, process)
            self.console.print(f"[bold]{PROCESSES}[/] worker processes: run_delayed_workers --processes {PROCESSES}")
            yield
        finally:
            process.terminate()
            process.wait(60)

    def place_orders(self) -> None:
        now = timezone.now()
        for number in range(self.count):
            pay_by = now + timedelta(seconds=self.random.uniform(1.5, self.seconds))
            shop.place_order(f"order-{number}", Decimal(self.random.randint(500, 50_000)) / 100, pay_by)
        self.console.print(
            f"[bold]{self.count}[/] orders, to be cancelled at their deadlines within {self.seconds:g} s unless paid"
        )

    def change_some(self) -> None:
        """Customers pay, others ask for more time."""
        orders = {order.number: order for order in Order.objects.all()}
        soon = timezone.now() + timedelta(seconds=self.seconds / 3)  # what is due before may be cancelled while we look
        late = [order for order in orders.values() if order.pay_by > soon]
        changing = self.random.sample(late, len(late) // 2)
        for order in {orders["order-13"], *changing[::2]}:
            shop.check_out(order)
            self.paid.add(order.number)
        for order in changing[1::2]:
            if order.number not in self.paid:
                shop.give_more_time(order, order.pay_by + timedelta(seconds=1))
                self.more_time.add(order.number)
        self.console.print(f"[bold]{len(self.paid)}[/] are paid, [bold]{len(self.more_time)}[/] get more time")

    def watch(self) -> None:
        columns = (TextColumn("working"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        started = time.monotonic()
        total = DelayedMessage.objects.filter(kind__in=KINDS).count()
        with Progress(*columns, console=self.console, transient=True) as progress:
            bar = progress.add_task("", total=total)
            while left := DelayedMessage.objects.filter(kind__in=KINDS).count():
                progress.update(bar, completed=max(0, total - left))
                if not self.killed and time.monotonic() - started > self.seconds / 3:
                    self.kill_one()
                if time.monotonic() - started > self.seconds + PATIENCE:
                    return
                time.sleep(0.05)
            progress.update(bar, completed=total)

    def kill_one(self) -> None:
        """Not politely: what a power failure or the kernel's OOM killer does."""
        worker = self.random.choice(list(Worker.objects.alive()))
        os.kill(worker.pid, signal.SIGKILL)
        self.killed = worker.pid
        self.console.print(f"[red]kill -9 {worker.pid}[/], one of the workers, in the middle of it")

    # Whether it came out right

    def report(self, partner: Partner) -> bool:
        dead = list(DeadMessage.objects.filter(kind__in=KINDS))
        orders = list(Order.objects.all())
        table = Table(show_header=False, title="What became of them", title_justify="left")
        table.add_column(style="bold")
        table.add_column(justify="right")
        for name, count in (
            ("orders", len(orders)),
            ("paid", sum(order.status == Order.Status.PAID for order in orders)),
            ("payments", Payment.objects.count()),
            ("cancelled", sum(order.status == Order.Status.CANCELLED for order in orders)),
            ("reminders", sum(order.reminders for order in orders)),
            ("webhooks", partner.told.total()),
            ("webhook failures", partner.answers[503]),
            ("dead", len(dead)),
        ):
            table.add_row(name, f"{count:,}")
        self.add_lateness(table)
        self.console.print(table)
        for message in dead:
            self.console.print(f"dead: {message.key}, {message.reason}: {message.error}", markup=False)
        problems = self.problems(orders, partner, dead)
        for problem in problems[:10]:
            self.console.print(problem, style="red")
        if not problems:
            self.console.print(
                f"[green]Process {self.killed} died, and nothing was lost: every unpaid order was cancelled, every "
                "payment was taken once, and every webhook arrived but the one that the partner refuses."
            )
        return not problems

    def add_lateness(self, table: Table) -> None:
        lines = Delivery.objects.filter(kind=tasks.cancel_unpaid.kind, attempt=1)
        late = [line.started_at - line.due_at for line in lines if line.started_at is not None]
        if len(late) > 1:
            quantiles = statistics.quantiles(late, n=100, method="inclusive")
            table.add_section()
            for name, milliseconds in (("p50", quantiles[49]), ("p95", quantiles[94]), ("max", max(late))):
                table.add_row(f"late, {name}", f"{milliseconds:.0f} ms")

    def problems(self, orders: list[Order], partner: Partner, dead: list[DeadMessage]) -> list[str]:
        found = []
        payments = list(Payment.objects.values_list("order__number", flat=True))
        for order in orders:
            expected = Order.Status.PAID if order.number in self.paid else Order.Status.CANCELLED
            if order.status != expected:
                found.append(f"{order.number} is {order.status}, not {expected}")
            if payments.count(order.number) != (order.number in self.paid):
                found.append(f"{order.number} was charged {payments.count(order.number)} times")
            if order.number in self.paid - {partner.refused_order} and not partner.told[order.number]:
                found.append(f"the partner was not told of {order.number}")
        if [message.key for message in dead] != [partner.refused_order]:
            found.append(f"dead: {', '.join(message.key for message in dead) or 'none'}, not {partner.refused_order}")
        if not self.killed:
            found.append("no worker was killed")
        return found

    def wait_for(self, condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("The workers did not start; run manage.py run_delayed_workers to see why.")
            time.sleep(0.02)


def _database_url() -> str:
    """Of the database that this process uses, for the workers."""
    settings = connection.settings_dict
    login = quote(settings["USER"] or "", safe="")
    if settings["PASSWORD"]:
        login += f":{quote(settings['PASSWORD'], safe='')}"
    host, port, name = str(settings["HOST"] or ""), settings["PORT"] or 5432, settings["NAME"]
    is_folder = host.startswith("/")  # of a socket; then the path has two slashes, as django-environ has it
    return f"postgres://{login}@" + (f":{port}/{host}/{name}" if is_folder else f"{host}:{port}/{name}")
