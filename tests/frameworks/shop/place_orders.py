"""Places three orders, of which one is rolled back; then says what there is."""

from __future__ import annotations

import contextlib

import django
from django.db import transaction

django.setup()

from holdfast.frameworks.django.outbox import enqueue  # noqa: E402
from tests.frameworks.shop.jobs import pack  # noqa: E402
from tests.frameworks.shop.models import Order  # noqa: E402


class NotPaid(Exception):
    pass


for item, paid in (("tea", True), ("gold", False), ("cup", True)):
    with contextlib.suppress(NotPaid), transaction.atomic():
        order = Order.objects.create(item=item)
        enqueue("parcels", pack.draft(order.pk, place=1))
        if not paid:
            raise NotPaid
