"""What the shop does when customers do something. Each is a transaction, and what is offered in it is part of it."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from django.db import transaction
from django.utils import timezone

from example_project import tasks
from example_project.models import Order


@transaction.atomic
def place_order(number: str, total: Decimal, pay_by: datetime) -> Order:
    """Remind halfway to the deadline, and cancel at it."""
    order = Order.objects.create(number=number, total=total, pay_by=pay_by)
    tasks.cancel_unpaid.using(key=number, at=pay_by).offer(order.pk)
    now = timezone.now()
    tasks.remind.using(key=number, at=now + (pay_by - now) / 2, expires=60).offer(order.pk)
    return order


@transaction.atomic
def give_more_time(order: Order, pay_by: datetime) -> None:
    """The same key: the message that is there is moved."""
    order.pay_by = pay_by
    order.save(update_fields=["pay_by"])
    tasks.cancel_unpaid.using(key=order.number, at=pay_by).offer(order.pk)


@transaction.atomic
def check_out(order: Order) -> None:
    """There is nothing to remind of or to cancel any more; the money is taken, and a partner is told."""
    tasks.remind.drop(order.number)
    tasks.cancel_unpaid.drop(order.number)
    tasks.charge.using(key=order.number, priority=10).offer(order.pk)
