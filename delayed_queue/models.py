"""The tables. Times are milliseconds since 1970, as in the JVM library's table (see clocks.py)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from delayed_queue.clocks import Duration, positive_ms
from delayed_queue.controls import ControlManager
from delayed_queue.dead import DeadMessageManager
from delayed_queue.history import DeliveryManager
from delayed_queue.managers import DelayedMessageManager
from delayed_queue.results import StoredResultManager


class DelayedMessage(models.Model):
    """One message. The first eight columns are those of the JVM library, which never writes the others.

    Keys and kinds are compared by their bytes (collation "C"): a key is an identity, not a word of a language, and a
    range of keys with a common prefix is a range of the index.
    """

    key = models.CharField(_("key"), db_column="pKey", max_length=200, db_collation="C")
    kind = models.CharField(_("kind"), db_column="pKind", max_length=100, db_collation="C")
    payload = models.BinaryField(_("payload"))
    scheduled_at = models.BigIntegerField(_("scheduled at"), db_column="scheduledAt")
    scheduled_at_initially = models.BigIntegerField(_("first scheduled at"), db_column="scheduledAtInitially")
    lock_uuid = models.CharField(_("lease"), db_column="lockUuid", max_length=36, null=True, blank=True)
    created_at = models.BigIntegerField(_("created at"), db_column="createdAt")
    priority = models.SmallIntegerField(_("priority"), default=0, db_default=0)
    attempts = models.IntegerField(_("attempts"), default=0, db_default=0)
    max_attempts = models.SmallIntegerField(_("most attempts"), db_column="maxAttempts", null=True, blank=True)
    expires_at = models.BigIntegerField(_("expires at"), db_column="expiresAt", null=True, blank=True)
    last_error = models.TextField(_("last error"), db_column="lastError", null=True, blank=True)
    first_offered_at = models.BigIntegerField(_("first offered at"), db_column="firstOfferedAt", null=True, blank=True)

    objects: ClassVar[DelayedMessageManager] = DelayedMessageManager()

    class Meta:
        db_table = "delayed_queue"
        required_db_vendor = "postgresql"
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        # The key leads: it tells two messages apart at the first comparison, where kinds are long and mostly equal.
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["key", "kind"], name="delayed_queue_key_kind"),
            models.CheckConstraint(
                condition=models.Q(priority__gte=-100, priority__lte=100), name="delayed_queue_priority"
            ),
        ]
        # A lease moves a row in every index, so there is one besides the unique one, and it has the kind's hash: half
        # the size, 6 % less WAL, and a lease beside 1,000,000 rows costs 10 % more than alone instead of 25 %.
        # See docs/design/indexes.md.
        indexes: ClassVar = [
            models.Index(
                models.Func("kind", function="hashtext"), "priority", "scheduled_at", "id", name="delayed_queue_due"
            )
        ]

    def __str__(self) -> str:
        return f"{self.key} ({self.kind})"


class DeadMessage(models.Model):
    """A message that will not be delivered any more, with the reason, kept until someone re-drives or discards it."""

    class Reason(models.TextChoices):
        EXHAUSTED = "exhausted", _("out of attempts")
        EXPIRED = "expired", _("expired")
        UNDECODABLE = "undecodable", _("cannot be decoded")
        REJECTED = "rejected", _("rejected by its handler")

    key = models.CharField(_("key"), max_length=200, db_collation="C")
    kind = models.CharField(_("kind"), max_length=100, db_collation="C")
    payload = models.BinaryField(_("payload"))
    priority = models.SmallIntegerField(_("priority"))
    attempts = models.IntegerField(_("attempts"))
    max_attempts = models.SmallIntegerField(_("most attempts"), null=True, blank=True)
    scheduled_at_initially = models.BigIntegerField(_("first scheduled at"))
    created_at = models.BigIntegerField(_("created at"))
    first_offered_at = models.BigIntegerField(_("first offered at"), null=True, blank=True)
    expires_at = models.BigIntegerField(_("expires at"), null=True, blank=True)
    reason = models.CharField(_("reason"), max_length=20, choices=Reason)
    error = models.TextField(_("error"), null=True, blank=True)
    died_at = models.BigIntegerField(_("died at"))

    objects: ClassVar[DeadMessageManager] = DeadMessageManager()

    class Meta:
        db_table = "delayed_queue_dead"
        required_db_vendor = "postgresql"
        verbose_name = _("dead message")
        verbose_name_plural = _("dead messages")
        indexes: ClassVar = [
            models.Index(fields=["kind", "died_at"], name="delayed_queue_dead_kind"),
            models.Index(fields=["key", "kind"], name="delayed_queue_dead_key"),
        ]

    def __str__(self) -> str:
        return f"{self.key} ({self.kind}): {self.reason}"


class Delivery(models.Model):
    """One line of history: what became of one attempt.

    The table has a partition for each day, made and dropped by sql/make_partitions.sql, so that old history goes at the
    price of a file. A unique constraint would have to contain the time, and so the database has none; the id is there
    because Django wants one. Columns are in the order that wastes no space between them.
    """

    class Outcome(models.TextChoices):
        DONE = "done", _("done")
        RETRIED = "retried", _("to be tried again")
        SNOOZED = "snoozed", _("put off")
        RELEASED = "released", _("given back")
        DEAD = "dead", _("dead")
        LOST = "lost", _("lost its lease")

    finished_at = models.BigIntegerField(_("finished at"))
    due_at = models.BigIntegerField(_("due at"))
    started_at = models.BigIntegerField(_("started at"), null=True, blank=True)
    duration_us = models.BigIntegerField(_("duration in microseconds"), null=True, blank=True)
    worker_id = models.BigIntegerField(_("worker"), null=True, blank=True)
    attempt = models.IntegerField(_("attempt"))
    outcome = models.CharField(_("outcome"), max_length=10, choices=Outcome)
    kind = models.CharField(_("kind"), max_length=100, db_collation="C")
    key = models.CharField(_("key"), max_length=200, db_collation="C")
    error = models.TextField(_("error"), null=True, blank=True)

    objects: ClassVar[DeliveryManager] = DeliveryManager()

    class Meta:
        db_table = "delayed_queue_delivery"
        required_db_vendor = "postgresql"
        verbose_name = _("delivery")
        verbose_name_plural = _("deliveries")
        # For the history of one key, and the only one, as every attempt pays for it: 251 bytes of WAL for a line
        # instead of 172 without; an index on (kind, key) makes it 284, and 392 where keys are random.
        indexes: ClassVar = [
            models.Index(models.Func("key", function="hashtext"), name="delayed_queue_delivery_key"),
        ]

    def __str__(self) -> str:
        return f"{self.key} ({self.kind}), attempt {self.attempt}: {self.outcome}"


# As in sql/statements.py: it moves on inside a transaction, and stands still within a statement.
DATABASE_NOW = models.Func(
    template="floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint", output_field=models.BigIntegerField()
)


class WorkerQuerySet(models.QuerySet["Worker"]):
    def alive(self, within: Duration = timedelta(minutes=1)) -> WorkerQuerySet:
        """Those that have shown a sign of life in this time, by the database's clock."""
        return self.filter(beat_at__gte=DATABASE_NOW - positive_ms(within, "within"))

    def silent(self, longer_than: Duration) -> WorkerQuerySet:
        return self.filter(beat_at__lt=DATABASE_NOW - positive_ms(longer_than, "longer_than"))


class Worker(models.Model):
    """A process that delivers, as it last said of itself. A row whose last beat is old is of one that was killed."""

    class State(models.TextChoices):
        RUNNING = "running", _("running")
        STOPPING = "stopping", _("stopping")

    id = models.BigIntegerField(_("id"), primary_key=True)  # random, and so known before anything is written
    host = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("process"))
    kinds = models.JSONField(_("kinds"), default=list)
    threads = models.IntegerField(_("threads"))
    state = models.CharField(_("state"), max_length=10, choices=State, default=State.RUNNING)
    running = models.IntegerField(_("running"), default=0, db_default=0)
    buffered = models.IntegerField(_("buffered"), default=0, db_default=0)
    handled = models.BigIntegerField(_("handled"), default=0, db_default=0)
    failed = models.BigIntegerField(_("failed"), default=0, db_default=0)
    started_at = models.BigIntegerField(_("started at"))
    beat_at = models.BigIntegerField(_("last sign of life"))
    version = models.CharField(_("version"), max_length=50)

    objects = WorkerQuerySet.as_manager()

    class Meta:
        db_table = "delayed_queue_worker"
        required_db_vendor = "postgresql"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")

    def __str__(self) -> str:
        return f"{self.host}, process {self.pid}"


class Control(models.Model):
    """What holds for a kind, or for all kinds of a namespace: paused, how many run at once, how many start in a time.

    A change is announced to all workers by a trigger, whoever makes it. The two columns of the token bucket are
    written by the statement that leases, which must not wake anybody: the trigger does not look at them.
    """

    class Scope(models.TextChoices):
        KIND = "kind", _("kind")
        NAMESPACE = "namespace", _("namespace")

    scope = models.CharField(_("scope"), max_length=9, choices=Scope)
    name = models.CharField(_("name"), max_length=100, db_collation="C")
    paused = models.BooleanField(_("paused"), default=False, db_default=False)
    max_running = models.IntegerField(_("most that run at once"), null=True, blank=True)
    rate = models.IntegerField(_("most that start in a period"), null=True, blank=True)
    rate_period = models.BigIntegerField(_("period in milliseconds"), default=1000, db_default=1000)
    tokens = models.FloatField(_("tokens left"), null=True, blank=True, editable=False)
    tokens_at = models.BigIntegerField(_("tokens counted at"), null=True, blank=True, editable=False)

    objects: ClassVar[ControlManager] = ControlManager()

    class Meta:
        db_table = "delayed_queue_control"
        required_db_vendor = "postgresql"
        verbose_name = _("control")
        verbose_name_plural = _("controls")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["scope", "name"], name="delayed_queue_control_name"),
            models.CheckConstraint(
                condition=models.Q(scope__in=["kind", "namespace"]), name="delayed_queue_control_scope"
            ),
            models.CheckConstraint(condition=models.Q(max_running__gte=0), name="delayed_queue_control_running"),
            models.CheckConstraint(condition=models.Q(rate__gt=0), name="delayed_queue_control_rate"),
            models.CheckConstraint(condition=models.Q(rate_period__gt=0), name="delayed_queue_control_period"),
        ]

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"


class SlotQuerySet(models.QuerySet["Slot"]):
    def expired(self) -> SlotQuerySet:
        return self.filter(expires_at__lte=DATABASE_NOW)


class Slot(models.Model):
    """How many messages of a limited kind one call of the lease holds; it ends with the lease.

    Logged, small as it is: after a failover an unlogged table is empty, and every limit would be forgotten at the
    moment when all workers come back.
    """

    lock_uuid = models.CharField(_("lease"), max_length=36)
    kind = models.CharField(_("kind"), max_length=100, db_collation="C")
    namespace = models.CharField(_("namespace"), max_length=100, db_collation="C")
    running = models.IntegerField(_("running"))
    expires_at = models.BigIntegerField(_("expires at"))

    objects = SlotQuerySet.as_manager()

    class Meta:
        db_table = "delayed_queue_slot"
        required_db_vendor = "postgresql"
        verbose_name = _("slot")
        verbose_name_plural = _("slots")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["lock_uuid", "kind"], name="delayed_queue_slot_lease"),
        ]

    def __str__(self) -> str:
        return f"{self.running} of {self.kind}"


class StoredResult(models.Model):
    """What became of a task that Django's ``enqueue()`` put into the queue; its id is the key of the message.

    Unlike those of the queue its times are those of Django, for ``run_after`` must come back as it was given. What is
    called and returned is JSON as text: jsonb would refuse NUL, and make 10000000000000000 of 1e16.
    """

    class Status(models.TextChoices):
        READY = "READY", _("ready")
        RUNNING = "RUNNING", _("running")
        FAILED = "FAILED", _("failed")
        SUCCESSFUL = "SUCCESSFUL", _("successful")

    id = models.CharField(_("id"), primary_key=True, max_length=63, db_collation="C")
    kind = models.CharField(_("kind"), max_length=100, db_collation="C")
    backend = models.TextField(_("backend"))
    queue_name = models.TextField(_("queue"))
    priority = models.SmallIntegerField(_("priority"))
    run_after = models.DateTimeField(_("to run after"), null=True, blank=True)
    call = models.TextField(_("call"))
    status = models.CharField(_("status"), max_length=10, choices=Status)
    enqueued_at = models.DateTimeField(_("enqueued at"))
    started_at = models.DateTimeField(_("first started at"), null=True, blank=True)
    last_attempted_at = models.DateTimeField(_("last started at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    return_value = models.TextField(_("return value"), null=True, blank=True)
    errors = models.JSONField(_("errors"), default=list)
    worker_ids = models.JSONField(_("workers"), default=list)
    # The lease that began last: only its handler may write what came of it.
    lock_uuid = models.CharField(_("lease"), max_length=36, null=True, blank=True)

    objects: ClassVar[StoredResultManager] = StoredResultManager()

    class Meta:
        db_table = "delayed_queue_result"
        required_db_vendor = "postgresql"
        verbose_name = _("task result")
        verbose_name_plural = _("task results")

    def __str__(self) -> str:
        return f"{self.id} ({self.kind}): {self.status}"

    @property
    def is_done(self) -> bool:
        return self.status == self.Status.SUCCESSFUL

    @property
    def value(self) -> Any:
        """What the function returned; None also where it has not."""
        return None if self.return_value is None else json.loads(self.return_value)
