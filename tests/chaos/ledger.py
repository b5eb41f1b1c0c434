"""The check at the end of every scenario: what was done, against what was offered and what was disturbed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from tests.chaos.load import Load
from tests.chaos.server import Server
from tests.chaos.waiting import wait_until

ATOMIC = ("atomic", "timed_atomic")
UNSETTLED = 5.0  # seconds for which what is done may wait to be acknowledged, on a busy machine; it is milliseconds


@dataclass(frozen=True)
class Effect:
    kind: str
    key: str
    attempt: int
    pid: int
    lock_uuid: str
    at: float

    def is_of(self, worker_id: int, attempt: int) -> bool:
        """The first half of a lock uuid is the id of the worker."""
        return self.attempt == attempt and self.lock_uuid.replace("-", "").startswith(f"{worker_id:016x}")


@dataclass(frozen=True)
class Blow:
    """What was done to a worker process (killed, stopped), and when, by the database's clock."""

    pid: int
    at: float


@dataclass
class Ledger:
    """``blows`` and ``failures`` are what can explain that a plain task was done twice: its process was hit before it
    could acknowledge, or the history has that attempt as one that failed, or lost its lease, where that can happen.
    """

    server: Server
    load: Load
    blows: list[Blow] = field(default_factory=list)
    failures: Collection[str] = ()  # outcomes of the history

    def hit(self, pid: int) -> None:
        """To be called just before it is done."""
        self.blows.append(Blow(pid, self.server.value("SELECT extract(epoch FROM clock_timestamp())::float8")))

    def hit_by(self, kind: str) -> None:
        """Each process in which a handler of this kind was started has died of it."""
        statement = "SELECT pid, extract(epoch FROM at)::float8 FROM chaos_ledger WHERE what = 'start' AND kind = %s"
        self.blows += [Blow(pid, at) for pid, at in self.server.ask(statement, kind)]

    def wait_until_settled(self, seconds: float = 90) -> float:
        """Returns how long that took."""
        return wait_until(lambda: self._unsettled() == 0, "all messages settled", seconds)

    def check(self, dead: Collection[str] = ()) -> int:
        """Returns how many effects there were twice, each of them with its reason."""
        assert self._unsettled() == 0
        assert {key for (key,) in self.server.ask("SELECT key FROM delayed_queue_dead")} == set(dead)
        effects = self._effects()
        self._check_nothing_is_lost(effects, dead)
        return self._check_acknowledgements(effects, dead)

    def _unsettled(self) -> int:
        return int(self.server.value("SELECT count(*) FROM delayed_queue"))

    def _effects(self) -> dict[tuple[str, str], list[Effect]]:
        found = defaultdict(list)
        statement = """
            SELECT kind, key, attempt, pid, lock_uuid, extract(epoch FROM at)::float8
            FROM chaos_ledger WHERE what = 'effect' ORDER BY id
        """
        for row in self.server.ask(statement):
            effect = Effect(*row)
            found[effect.kind, effect.key].append(effect)
        return found

    def _check_nothing_is_lost(self, effects: dict[tuple[str, str], list[Effect]], dead: Collection[str]) -> None:
        for kind, keys in self.load.offered.items():
            lost = {key for key in keys if (kind, key) not in effects} - set(dead)
            assert not lost, f"{len(lost)} of {kind} without effect: {sorted(lost)[:10]}"

    def _check_acknowledgements(self, effects: dict[tuple[str, str], list[Effect]], dead: Collection[str]) -> int:
        """One was accepted for each message, from who had done it; whatever else was done has a reason."""
        statement = """
            SELECT kind, key, count(*) FILTER (WHERE outcome = 'done'), max(attempt) FILTER (WHERE outcome = 'done'),
                max(worker_id) FILTER (WHERE outcome = 'done'), count(*) FILTER (WHERE outcome <> 'released')
            FROM delayed_queue_delivery GROUP BY kind, key
        """
        twice = 0
        for kind, key, count, attempt, worker_id, lines in self.server.ask(statement):
            if key in dead:
                assert count == 0, f"{key} is dead and done"
                continue
            done = effects[kind, key]
            assert count == 1, f"{count} acknowledgements of {key} were accepted: {done}"
            accepted = [effect for effect in done if effect.is_of(worker_id, attempt)]
            assert len(accepted) == 1, f"Attempt {attempt} of {key} was acknowledged by {worker_id:016x}: {done}"
            others = [effect for effect in done if effect is not accepted[0]]
            assert not (others and kind in ATOMIC), f"An atomic effect more than once: {done}"
            for effect in others:
                assert self._was_hit(effect) or self._has_failed(effect), f"{effect} has no reason: {done}"
            if not self.blows:
                assert attempt <= lines, f"{key}: {attempt} attempts, of which the history knows {lines}"
            twice += len(others)
        return twice

    def _was_hit(self, effect: Effect) -> bool:
        return any(blow.pid == effect.pid and effect.at > blow.at - UNSETTLED for blow in self.blows)

    def _has_failed(self, effect: Effect) -> bool:
        statement = """
            SELECT count(*) FROM delayed_queue_delivery
            WHERE kind = %s AND key = %s AND attempt = %s AND outcome = ANY (%s)
        """
        return bool(self.server.value(statement, effect.kind, effect.key, effect.attempt, list(self.failures)))
