"""Its workers."""

from __future__ import annotations

from holdfast.client import worker
from tests.frameworks.shop.models import Order


@worker("parcels")
def pack(order: int, place: int) -> None:
    Order.objects.filter(id=order).update(packed=place == 1)
