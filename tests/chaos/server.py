"""A PostgreSQL of the tests' own, which may be restarted, crashed and filled."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from delayed_queue import embedded
from tests.chaos.waiting import wait_until

PROJECT = Path(__file__).parents[2]


class Server:
    """The embedded one of a folder: it ends with the last process that uses it, however that ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._postgres = embedded.EmbeddedPostgres(folder)
        self._postgres.start()
        self.host, self.port = str(self._postgres.socket_folder), embedded.PORT

    def close(self) -> None:
        """This process does not need it any more."""
        os.close(embedded._held.pop(self._postgres.folder))

    def environment(self, **more: str) -> dict[str, str]:
        """For a process whose Django is to use it."""
        ours = {"DJANGO_SETTINGS_MODULE": "tests.chaos.settings", "CHAOS_HOST": self.host, "CHAOS_PORT": self.port}
        return {**os.environ, **ours, **more}

    def connect(self, name: str = "chaos-observer") -> psycopg.Connection[Any]:
        return psycopg.connect(
            host=self.host, port=self.port, user="postgres", dbname="postgres", application_name=name, autocommit=True
        )

    def ask(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            cursor = connection.execute(statement, parameters or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *parameters: object) -> Any:
        return self.ask(statement, *parameters)[0][0]

    def crash_and_restart(self) -> None:
        """As if its host had lost its power: nothing is written down, nobody is told, and it recovers from its log."""
        self._postgres._run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", self._postgres.data)
        self._postgres.start()

    def configure(self, **settings: object) -> None:
        """Set these (None: as they were), and restart for them."""
        for name, value in settings.items():
            change = sql.SQL("ALTER SYSTEM RESET {}") if value is None else sql.SQL("ALTER SYSTEM SET {} = {}")
            parts = [sql.Identifier(name)] + ([] if value is None else [sql.Literal(value)])
            with self.connect() as connection:
                connection.execute(change.format(*parts))
        self._postgres._run("pg_ctl", "stop", "-w", "-m", "fast", "-D", self._postgres.data)
        self._postgres.start()

    def empty(self) -> None:
        tables = "delayed_queue, delayed_queue_dead, delayed_queue_delivery, delayed_queue_worker, delayed_queue_slot"
        self.ask(f"TRUNCATE {tables}, chaos_ledger")


@contextmanager
def prepared_server() -> Iterator[Server]:
    """A new one with all tables, in a folder that is removed when its last user has ended."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))  # a socket's path is short
    folder.chmod(0o755)  # the server may be another user
    server = Server(folder)
    try:
        server.configure(fsync="off")  # its crashes are not the machine's
        migrate = [sys.executable, "manage.py", "migrate", "--run-syncdb", "--verbosity=0"]
        subprocess.run(migrate, cwd=PROJECT, env=server.environment(), check=True)
        yield server
    finally:
        server.close()
        wait_until(lambda: _is_free(folder / "keeper.lock"), "the server's end", every=0.02)
        shutil.rmtree(folder, ignore_errors=True)


def _is_free(lock: Path) -> bool:
    if not lock.exists():
        return True
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
