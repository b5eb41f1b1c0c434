"""A small shop: orders that must be paid in time."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    class Status(models.TextChoices):
        UNPAID = "unpaid"
        PAID = "paid"
        CANCELLED = "cancelled"

    number = models.CharField(max_length=40, unique=True)
    total = models.DecimalField(max_digits=10, decimal_places=2)
    status = models.CharField(max_length=10, choices=Status, default=Status.UNPAID)
    pay_by = models.DateTimeField()
    reminders = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return self.number


class Payment(models.Model):
    """Money that was taken. Nothing but the task keeps there from being two for an order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)
    amount = models.DecimalField(max_digits=10, decimal_places=2)

    def __str__(self) -> str:
        return f"{self.amount} for {self.order}"
