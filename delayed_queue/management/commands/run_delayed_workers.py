"""``manage.py run_delayed_workers``"""

from __future__ import annotations

import atexit
import logging
import signal
import threading
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from types import FrameType
from typing import Any

from django.conf import settings as django_settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.utils import autoreload

from delayed_queue.conf import settings
from delayed_queue.errors import InvalidInput
from delayed_queue.models import StoredResult
from delayed_queue.workers.board import Board
from delayed_queue.workers.budget import Budget
from delayed_queue.workers.health import HealthServer
from delayed_queue.workers.options import WorkerOptions
from delayed_queue.workers.supervisor import SILENCE, Supervisor
from delayed_queue.workers.worker import Worker, new_board

LEVELS = {0: logging.ERROR, 1: logging.INFO, 2: logging.DEBUG, 3: logging.DEBUG}


class Command(BaseCommand):
    help = "Delivers messages to the tasks of this project: at their time, at least once, until it is told to stop."

    def add_arguments(self, parser: ArgumentParser) -> None:
        def number(least: float, kind: type) -> Callable[[str], Any]:
            def parse(text: str) -> Any:
                try:
                    value = kind(text)
                except ValueError:
                    value = None
                if value is None or not least <= value < float("inf"):
                    raise ArgumentTypeError(f"it must be a number of at least {least:g}, not {text!r}")
                return value

            return parse

        add = parser.add_argument
        add("--processes", type=number(1, int), default=1, help="worker processes (default: %(default)s)")
        add("--threads", type=number(1, int), default=8, help="plain handlers at once in each (default: %(default)s)")
        add("--kinds", action="append", default=[], metavar="KIND,...", help="only these, or patterns such as 'shop.*'")
        add("--namespaces", action="append", default=[], metavar="NAME,...", help="only kinds of these namespaces")
        add("--exclude", action="append", default=[], metavar="KIND,...", help="not these kinds, or patterns")
        add("--database", default=None, help="the alias of the database that has the queue")
        add("--batch", type=number(1, int), default=500, help="leased at once, at the most (default: %(default)s)")
        add("--lease", type=number(0.1, float), default=None, help="seconds; default: as each task says, 60")
        add("--poll-period", type=number(0.01, float), default=None, help="seconds; default: the setting POLL_PERIOD")
        add("--until-empty", action="store_true", help="end when nothing is due and nothing runs")
        add("--max-messages", type=number(1, int), default=None, help="end after so many messages")
        add("--with-cron", action="store_true", help="install the ticks of schedules, too")
        add(
            "--shutdown-timeout",
            type=number(0, float),
            default=30.0,
            help="seconds for running handlers to end after SIGTERM; the rest is given back (default: %(default)g)",
        )
        add("--autoreload", action="store_true", help="start anew when code changes; for development")
        add("--health-port", type=number(0, int), default=None, help="answer /healthz and /readyz on this port")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["with_cron"]:
            raise CommandError("--with-cron needs schedules, which this version does not have yet.")
        self._set_up_logging(options["verbosity"])
        for name in ("processes", "max_messages"):
            if options[name] is not None and options[name] < 1:
                raise CommandError(f"--{name.replace('_', '-')} must be at least 1, not {options[name]}.")
        if options["autoreload"]:
            if options["processes"] > 1:
                raise CommandError("--autoreload runs one process: leave --processes out.")
            autoreload.run_with_reloader(self._run_here, **options)
            return
        try:
            if options["processes"] > 1 or self._called_from_command_line:  # type: ignore[attr-defined]
                self._run_supervised(**options)
            else:
                self._run_here(**options)
        except InvalidInput as error:
            raise CommandError(str(error)) from error
        except (OSError, OverflowError) as error:
            if options["health_port"] is None:
                raise
            raise CommandError(f"--health-port {options['health_port']} cannot be listened on: {error}") from error

    def _run_supervised(self, **options: Any) -> None:
        chosen = self._options(options)
        supervisor = Supervisor(chosen, options["processes"], options["max_messages"], options["health_port"])
        self._announce(chosen, options["processes"])
        supervisor.run()

    def _run_here(self, **options: Any) -> None:
        """One worker in this very process: for call_command, tests and --autoreload."""
        chosen = self._options(options)
        board = new_board(chosen)
        worker = Worker(chosen, board=board, budget=Budget(options["max_messages"]))
        health = None
        if options["health_port"] is not None:
            health = HealthServer(options["health_port"], lambda: _report(board))
            health.serve_in_thread()
        self._announce(chosen, 1)
        restore = _stop_on_signals(worker)
        try:
            worker.run()
        finally:
            restore()
            if health is not None:
                health.shutdown()
                health.server_close()

    def _options(self, options: dict[str, Any]) -> WorkerOptions:
        database = options["database"] or settings.DATABASE
        if database not in django_settings.DATABASES:
            raise CommandError(f"There is no database {database!r}. Known: {', '.join(django_settings.DATABASES)}.")
        if (options["poll_period"] or 0) > settings.POLL_PERIOD:
            raise CommandError(
                f"--poll-period may be {settings.POLL_PERIOD:g} at the most: what is due sooner is announced by those "
                "who offer it, and what is due later is not. Raise DELAYED_QUEUE['POLL_PERIOD'] for them all instead."
            )
        chosen = WorkerOptions(
            database=database,
            threads=options["threads"],
            batch=options["batch"],
            lease=options["lease"],
            poll_period=options["poll_period"],
            shutdown_timeout=options["shutdown_timeout"],
            until_empty=options["until_empty"],
            kinds=_names(options["kinds"]),
            namespaces=_names(options["namespaces"]),
            exclude=_names(options["exclude"]),
        )
        _check_tables(database)
        if not chosen.served_kinds():
            raise CommandError(
                "There are no tasks to serve. Decorate functions in a tasks.py of an installed app with @delayed_task, "
                "and look at --kinds, --namespaces and --exclude."
            )
        return chosen

    def _announce(self, chosen: WorkerOptions, processes: int) -> None:
        kinds = [served.kind for served in chosen.served_kinds()]
        each = f"{chosen.threads} thread{'s' if chosen.threads > 1 else ''}"
        self.stdout.write(
            f"{processes} worker process{'es' if processes > 1 else ''} with {each} on {chosen.database!r}, "
            "for these kinds. Stop with Ctrl-C."
        )
        for kind in kinds:
            self.stdout.write(f"  {kind}")
        self.stdout.flush()

    def _set_up_logging(self, verbosity: int) -> None:
        """So that something is seen where a project has configured nothing; what it has configured is left alone."""
        logger = logging.getLogger("delayed_queue")
        if logger.hasHandlers():
            return
        handler = logging.StreamHandler(self.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(LEVELS[verbosity])


def _check_tables(database: str) -> None:
    """A worker waits for a database that is away, but nobody would make the tables meanwhile."""
    connection = connections[database]
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass(%s)", [StoredResult._meta.db_table])
            (table,) = cursor.fetchone() or (None,)
    except DatabaseError:
        return
    finally:
        if not connection.in_atomic_block:
            connection.close()
    if table is None:
        raise CommandError(
            f"The database {database!r} does not have the tables of this version. Run manage.py migrate delayed_queue"
            + (f" --database {database}." if database != DEFAULT_DB_ALIAS else ".")
        )


def _names(given: list[str] | str) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def _report(board: Board) -> tuple[bool, bool, dict[str, Any]]:
    is_alive = board.beaten_ago < SILENCE
    return is_alive, is_alive and board.is_ready, {"processes": 1}


def _stop_on_signals(worker: Worker) -> Callable[[], None]:
    """The first lets handlers finish, the second does not. Returns what puts the old handlers back."""
    if threading.current_thread() is not threading.main_thread():
        atexit.register(worker.stop_and_wait)  # --autoreload: Django ends the process, from its main thread
        return lambda: atexit.unregister(worker.stop_and_wait)
    received = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        worker.request_stop(None if received == 1 else 0.0)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore
