"""Who calls an action, on which node, and how queues are named to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from holdfast.auth.principal import Action
from holdfast.core.queue import QueueRecord, check_name
from holdfast.engine.catalog import QueueName
from holdfast.errors import InvalidArgument
from holdfast.http_api.dialects.sqs.identifiers import queue_arn, queue_in_url, queue_url
from holdfast.http_api.dialects.sqs.refusals import Refusal
from holdfast.http_api.server.request import Request

REGION_DEFAULT: Final = "us-east-1"
PROTOCOL: Final = "sqs"


class Caller:
    """See the module."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.node = request.node
        self.principal = request.principal

    @property
    def region(self) -> str:
        """The region that the caller signs for: it gets its queues' ARNs with it. There is but one here."""
        scope = (self.request.header(b"authorization") or "").partition("Credential=")[2].split("/")
        return scope[2] if len(scope) > 4 and scope[2] else REGION_DEFAULT

    def url(self, name: str) -> str:
        request = self.request
        secure = request.api.config.tls.certificate_file is not None or request.header(b"x-forwarded-proto") == "https"
        return queue_url(f"{'https' if secure else 'http'}://{request.header(b'host') or 'localhost'}", name)

    def arn(self, name: str) -> str:
        return queue_arn(self.region, name)

    def name(self, queue: str) -> QueueName:
        """A queue of the caller's own namespace."""
        return (self.principal.namespace, check_name(queue))

    def queue(self, url: str, action: Action | None = None) -> QueueRecord:
        """The queue that a URL names, if the caller may do that with it; without an action: if it may see it. Raises
        Forbidden or QueueNotFound."""
        name = self.name(queue_in_url(url))
        if action is None:
            self.principal.require_sight(name[1])
        else:
            self.principal.require(action, name[1])
        return self.node.queues.get(name)

    @asynccontextmanager
    async def act(self, act: str, queue: str) -> AsyncIterator[dict[str, object]]:
        """Around an act of administration: the audit log has it before it is answered, also if it is refused."""
        audit = self.request.api.gate.audit
        try:
            with audit.act(self.principal, act, queue, front=PROTOCOL, peer=self.request.peer) as details:
                try:
                    yield details
                except Refusal as refusal:  # the log has the codes of errors that it knows
                    raise InvalidArgument(field=act, problem=refusal.message) from refusal
        except InvalidArgument as error:
            if isinstance(error.__cause__, Refusal):
                raise error.__cause__ from None
            raise
        finally:
            await audit.synced()
