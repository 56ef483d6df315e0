"""Quotas of namespaces: shown to those who have them, set by who administers the server."""

from __future__ import annotations

import msgspec

from holdfast import wire
from holdfast.core.queue import check_name
from holdfast.errors import Forbidden, LimitExceeded
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response, response
from holdfast.http_api.server.routes import Right, Routes

ROUTES = Routes("Quotas")

_change = msgspec.json.Decoder(wire.QuotaChange)


class QuotaQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose quotas."""

    namespace: str = ""
    """Another namespace than the caller's; needs the scope `node`."""


@ROUTES("GET", "/api/v1/quotas", Right.AUTHENTICATED, query=QuotaQuery, gives=wire.QuotaList, errors=(Forbidden,))
async def show(request: Request) -> Response:
    """Show the quotas of the caller's namespace, and how much of each is used."""
    namespace = request.query(QuotaQuery).namespace or request.namespace
    if namespace != request.namespace:
        request.principal.require_node()
        check_name(namespace, "namespace")
    return response(_to_wire(request, namespace))


@ROUTES(
    "PUT",
    "/api/v1/quotas/{namespace}",
    Right.NODE,
    body=wire.QuotaChange,
    gives=wire.QuotaList,
    errors=(LimitExceeded,),
    act="quota.set",
)
async def change(request: Request) -> Response:
    """Set quotas of a namespace. They hold immediately and survive a restart.

    What the namespace has already stays, also if it is more than the new limit.
    """
    body = await request.json(_change)
    namespace = request.parameters[0]
    request.audit_details.update(body.limits)
    await request.node.quotas.change(namespace, body.limits)
    return response(_to_wire(request, namespace))


def _to_wire(request: Request, namespace: str) -> wire.QuotaList:
    found = request.node.quotas.show(namespace)
    quotas = {name: wire.QuotaUse(limit=one.limit, used=one.used, own=one.own) for name, one in found.items()}
    return wire.QuotaList(namespace=namespace, quotas=quotas)
