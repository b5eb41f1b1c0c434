"""The tables. Times are milliseconds since 1970, as in the JVM library's table (see clocks.py)."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from delayed_queue.managers import DelayedMessageManager


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

    class Meta:
        db_table = "delayed_queue_dead"
        required_db_vendor = "postgresql"
        verbose_name = _("dead message")
        verbose_name_plural = _("dead messages")
        indexes: ClassVar = [models.Index(fields=["kind", "died_at"], name="delayed_queue_dead_kind")]

    def __str__(self) -> str:
        return f"{self.key} ({self.kind}): {self.reason}"
