"""The ledger's table: one row for each thing that a handler did. Nothing in it is unique: what happens twice shows."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class Entry(models.Model):
    class What(models.TextChoices):
        START = "start"
        EFFECT = "effect"

    what = models.CharField(max_length=10, choices=What)
    kind = models.CharField(max_length=100)
    key = models.CharField(max_length=200)
    attempt = models.IntegerField()
    pid = models.IntegerField()
    lock_uuid = models.CharField(max_length=36)
    host_clock = models.FloatField()  # what the worker's host believes
    at = models.DateTimeField(db_default=Now())  # what the database knows; the statement's, in autocommit

    class Meta:
        db_table = "chaos_ledger"

    def __str__(self) -> str:
        return f"{self.what} of {self.key} by {self.pid}"
