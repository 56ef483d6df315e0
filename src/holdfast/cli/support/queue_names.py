"""Names of queues as arguments, which a shell completes by a request to the server."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from holdfast.cli.support.connection import Connection, connection_of
from holdfast.errors import HoldfastError

COMPLETIONS_MAX = 200  # names offered at most


class QueueName(click.ParamType[str]):
    """A queue's name. Any text is accepted here: the server checks it."""

    name = "queue"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Queues with this prefix; none if the server cannot be reached, since a completion must not print errors."""
        wanted: Connection | None = connection_of(ctx)
        if wanted is None or wanted.user is not None:  # a password would have to be prompted for
            return []
        try:
            with wanted.open(quick=True) as client:
                return [CompletionItem(queue.name) for queue in client.queues(incomplete)[:COMPLETIONS_MAX]]
        except HoldfastError:
            return []


QUEUE = QueueName()
