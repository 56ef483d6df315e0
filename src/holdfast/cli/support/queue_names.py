"""Names of queues as arguments, which a shell can complete by asking the server."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from holdfast.cli.support.connection import Connection, connection_of
from holdfast.errors import HoldfastError

COMPLETIONS_MAX = 200  # names offered: more help nobody


class QueueName(click.ParamType[str]):
    """A queue's name. Any text will do here: the server knows what is allowed."""

    name = "queue"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Queues that start so; nothing if the server cannot be asked, since a completion must not complain."""
        wanted: Connection | None = connection_of(ctx)
        if wanted is None or wanted.user is not None:  # a password would have to be asked for
            return []
        try:
            with wanted.open(quick=True) as client:
                return [CompletionItem(queue.name) for queue in client.queues(incomplete)[:COMPLETIONS_MAX]]
        except HoldfastError:
            return []


QUEUE = QueueName()
