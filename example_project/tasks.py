"""What the shop does later. ``manage.py run_delayed_workers`` runs these."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request

from django.db.models import F

from delayed_queue import Backoff, DeadLetter, Retry, delayed_task
from example_project.models import Order, Payment


@delayed_task(namespace="shop")
def cancel_unpaid(order_id: int) -> None:
    """At the deadline. Harmless if it runs twice, as at-least-once delivery asks for."""
    Order.objects.filter(pk=order_id, status=Order.Status.UNPAID).update(status=Order.Status.CANCELLED)


@delayed_task(namespace="shop", journal="failures")
async def remind(order_id: int) -> None:
    """An async handler: hundreds of them wait for a mail server at once, on one event loop."""
    await Order.objects.filter(pk=order_id, status=Order.Status.UNPAID).aupdate(reminders=F("reminders") + 1)


@delayed_task(namespace="shop", atomic=True)
def charge(order_id: int) -> None:
    """The payment, the status, the next message and the acknowledgement commit together, or not at all."""
    order = Order.objects.select_for_update().get(pk=order_id)
    Payment.objects.create(order=order, amount=order.total)
    order.status = Order.Status.PAID
    order.save(update_fields=["status"])
    call_webhook.using(key=order.number).offer(order.number)


@delayed_task(namespace="partners", timeout=10, max_attempts=20, backoff=Backoff(initial=0.2, maximum=5))
def call_webhook(number: str) -> None:
    """A partner who is not always well. What passes by itself is tried again; what does not, is not."""
    body = json.dumps({"order": number, "event": "paid"}).encode()
    request = urllib.request.Request(os.environ["WEBHOOK_URL"], body, {"Content-Type": "application/json"})  # noqa: S310
    try:
        urllib.request.urlopen(request, timeout=5).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == 429:
            raise Retry(delay=float(error.headers.get("Retry-After", 1)), reason="the partner is busy") from None
        if error.code < 500:
            raise DeadLetter(f"The partner refuses {number}: {error.code} {error.reason}") from None
        raise
