"""`python -m holdfast.outbox DATABASE`: relay an outbox until SIGTERM or Ctrl-C.

The server is the one that HOLDFAST_URL and HOLDFAST_TOKEN name. It needs the right to produce into the queues.
"""

from __future__ import annotations

import logging
import signal
import threading

import click

from holdfast.client import Retries, SyncClient
from holdfast.errors import HoldfastError
from holdfast.outbox.connected import connected_table
from holdfast.outbox.relay import BATCH, Relay
from holdfast.outbox.table import NAME, Outbox


@click.command(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None})
@click.argument("database")
@click.option("--table", default=NAME, show_default=True, help="The table of the outbox.")
@click.option("--create", is_flag=True, help="Make the table first, unless it exists.")
@click.option("--once", is_flag=True, help="Relay what waits, then end.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=BATCH, show_default=True, help="Rows read at once.")
def main(database: str, table: str, create: bool, once: bool, batch: int) -> None:
    """Enqueue what waits in the outbox of DATABASE (postgresql://… or sqlite:PATH), and go on doing so.

    Of several relays of one PostgreSQL one works, and the others stand by.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        outbox = connected_table(database, Outbox(table))
        with SyncClient(retries=Retries(attempts=1)) as client:
            if create:
                outbox.create()
            relay = Relay(outbox, client, batch=batch)
            if once:
                click.echo(f"relayed {relay.relay()} messages")
                return
            stop = threading.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda _number, _frame: stop.set())
            logging.info("relaying %s to %s", table, client.url)
            relay.run(stop)
        outbox.close()
    except HoldfastError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
