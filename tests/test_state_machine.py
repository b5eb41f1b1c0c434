"""Random operations against a model small enough to be believed: after each, the table is what the model says."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from delayed_queue import DelayedQueue, DeliveryType, DropOutcome, Envelope, OfferOutcome
from delayed_queue.clocks import to_ms
from delayed_queue.models import DeadMessage
from tests.conftest import FrozenClock

LEASE = 10_000


@dataclass
class Message:
    id: int
    payload: str
    at: int
    initially: int
    created: int
    first: int
    priority: int
    max_attempts: int | None
    expires: int | None
    attempts: int = 0
    lock: str | None = None
    error: str | None = None


@dataclass
class Model:
    messages: dict[str, Message] = field(default_factory=dict)
    dead: list[tuple[str, str, int]] = field(default_factory=list)
    ids: count[int] = field(default_factory=count)

    def offer(
        self, now: int, key: str, payload: str, at: int, can_update: bool, options: dict[str, Any], max_wait: int | None
    ) -> OfferOutcome:
        old = self.messages.get(key)
        first = now if old is None else old.first
        at = at if max_wait is None else min(at, first + max_wait)
        new = Message(next(self.ids), payload, at, at, now, first, **options)
        if old is None:
            self.messages[key] = new
            return OfferOutcome.CREATED
        same = (old.payload, old.initially, old.priority, old.max_attempts, old.expires)
        if not can_update or same == (payload, at, new.priority, new.max_attempts, new.expires):
            return OfferOutcome.IGNORED
        new.id, new.created = old.id, max(now, old.created + 1)
        self.messages[key] = new
        return OfferOutcome.UPDATED

    def poll(self, now: int, limit: int) -> list[tuple[str, int, bool]]:
        """Key, attempt, and whether it is a redelivery, in the order of delivery."""
        given: list[tuple[str, int, bool]] = []
        due = [(-m.priority, m.at, m.id, key) for key, m in self.messages.items() if m.at <= now]
        for *_, key in sorted(due):
            if len(given) == limit:
                break
            message = self.messages[key]
            attempt = 1 if message.at == message.initially else message.attempts + 1
            if message.expires is not None and message.expires <= now:
                self.bury(key, "expired")
            elif attempt > (message.max_attempts or attempt):
                self.bury(key, "exhausted")
            else:
                given.append((key, attempt, message.at > message.initially))
                message.attempts = attempt
                message.at = max(now + LEASE, message.initially + 1)
        return given

    def bury(self, key: str, reason: str) -> None:
        self.dead.append((key, reason, self.messages.pop(key).attempts))

    def holder(self, envelope: Envelope[str]) -> Message | None:
        message = self.messages.get(envelope.key)
        return message if message is not None and message.lock == envelope.lock_uuid else None


keys = st.sampled_from("abcd")
seconds = st.integers(-15, 15)


class QueueMachine(RuleBasedStateMachine):
    envelopes = Bundle("envelopes")
    readings = Bundle("readings")

    @initialize()
    def begin(self) -> None:
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.clock = FrozenClock()
        self.queue: DelayedQueue[str] = DelayedQueue("machine", clock=self.clock, acquire_timeout=LEASE / 1000)
        self.model = Model()

    def teardown(self) -> None:
        if hasattr(self, "atomic"):
            transaction.set_rollback(True)
            self.atomic.__exit__(None, None, None)

    @property
    def now(self) -> int:
        return to_ms(self.clock())

    @rule(
        key=keys,
        payload=st.sampled_from("xy"),
        after=seconds,
        can_update=st.booleans(),
        priority=st.sampled_from([0, 0, 7, -7]),
        max_attempts=st.sampled_from([None, None, 1, 2]),
        expires_after=st.sampled_from([None, None, 5, 20]),
        max_wait=st.sampled_from([None, None, 3]),
    )
    def offer(
        self,
        key: str,
        payload: str,
        after: int,
        can_update: bool,
        priority: int,
        max_attempts: int | None,
        expires_after: int | None,
        max_wait: int | None,
    ) -> None:
        expires_at = None if expires_after is None else self.clock() + timedelta(seconds=expires_after)
        at = self.clock() + timedelta(seconds=after)
        offer = self.queue.offer_or_update if can_update else self.queue.offer_if_not_exists
        outcome = offer(
            key, payload, at, priority=priority, max_attempts=max_attempts, expires_at=expires_at, max_wait=max_wait
        )
        expires = None if expires_at is None else to_ms(expires_at)
        options = {"priority": priority, "max_attempts": max_attempts, "expires": expires}
        wait = None if max_wait is None else max_wait * 1000
        assert outcome is self.model.offer(self.now, key, payload, to_ms(at), can_update, options, wait)

    @rule(target=envelopes, limit=st.integers(1, 4))
    def poll(self, limit: int) -> Any:
        expected = self.model.poll(self.now, limit)
        batch = self.queue.try_poll_many(limit)
        found = [(e.key, e.attempt, e.delivery_type is DeliveryType.REDELIVERY) for e in batch]
        assert found == expected
        for envelope in batch:
            message = self.model.messages[envelope.key]
            message.lock = envelope.lock_uuid
            assert envelope.payload == message.payload
            assert to_ms(envelope.scheduled_for) == message.initially
        return batch[-1] if batch else None

    @rule(envelope=envelopes)
    def acknowledge(self, envelope: Envelope[str] | None) -> None:
        if envelope is not None:
            held = self.model.holder(envelope)
            assert envelope.acknowledge() is (held is not None)
            if held:
                del self.model.messages[envelope.key]

    @rule(envelope=envelopes, delay=st.sampled_from([None, 0.5, 5]))
    def release(self, envelope: Envelope[str] | None, delay: float | None) -> None:
        if envelope is not None:
            held = self.model.holder(envelope)
            assert envelope.release(delay, error="failed") is (held is not None)
            if held:
                held.at = max(self.now + int((delay or 0) * 1000), held.initially + 1)
                held.lock, held.error = None, "failed"

    @rule(envelope=envelopes, lease=st.sampled_from([None, 1, 30]))
    def extend(self, envelope: Envelope[str] | None, lease: int | None) -> None:
        if envelope is not None:
            held = self.model.holder(envelope)
            assert envelope.extend(lease) is (held is not None)
            if held:
                held.at = max(self.now + (LEASE if lease is None else lease * 1000), held.initially + 1)

    @rule(key=keys)
    def drop(self, key: str) -> None:
        message = self.model.messages.pop(key, None)
        if message is None:
            expected = DropOutcome.ABSENT
        elif message.lock is not None and message.at > self.now:
            expected = DropOutcome.DROPPED_WHILE_LEASED
        else:
            expected = DropOutcome.DROPPED
        assert self.queue.drop(key) is expected

    @rule(target=readings, key=keys)
    def read(self, key: str) -> Any:
        envelope = self.queue.read(key)
        message = self.model.messages.get(key)
        assert (envelope is None) is (message is None)
        return envelope and message and (envelope, message.id, message.created)

    @rule(reading=consumes(readings))
    def acknowledge_what_was_read(self, reading: tuple[Envelope[str], int, int] | None) -> None:
        if reading is not None:
            envelope, id, created = reading
            message = self.model.messages.get(envelope.key)
            same = message is not None and (message.id, message.created) == (id, created)
            free = message is not None and (message.lock is None or message.at <= self.now)
            assert envelope.acknowledge() is (same and free)
            if same and free:
                del self.model.messages[envelope.key]

    @rule(seconds=st.sampled_from([0.001, 1, 5, 10, 60]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([0.5, 7, 3600]))
    def the_clock_steps_back(self, seconds: float) -> None:
        self.clock.advance(-seconds)

    @invariant()
    def the_table_is_what_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        with connection.cursor() as cursor:
            cursor.execute(
                """
                SELECT "pKey", convert_from(payload, 'UTF8'), "scheduledAt", "scheduledAtInitially", "createdAt",
                    coalesce("firstOfferedAt", "createdAt"), priority, "maxAttempts", "expiresAt", attempts, "lockUuid",
                    "lastError"
                FROM delayed_queue
                """
            )
            found = {key: tuple(rest) for key, *rest in cursor.fetchall()}
        assert found == {
            key: (
                m.payload, m.at, m.initially, m.created, m.first, m.priority, m.max_attempts, m.expires, m.attempts,
                m.lock, m.error,
            )
            for key, m in self.model.messages.items()
        }  # fmt: skip
        dead = DeadMessage.objects.order_by("id").values_list("key", "reason", "attempts")
        assert sorted(dead) == sorted(self.model.dead)


@pytest.mark.django_db
def test_random_operations_agree_with_the_model() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        QueueMachine,
        settings=settings(
            max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
