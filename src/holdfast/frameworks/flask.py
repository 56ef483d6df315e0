"""Flask: one client for each process, and commands.

    holdfast = Holdfast(app)                   # HOLDFAST_URL and HOLDFAST_TOKEN of app.config or the environment

    @app.post("/orders")
    def place() -> str:
        return holdfast.client.send("orders", request.get_json()).id

    flask holdfast-worker shop.jobs:app        # handlers have an application context

Jobs (`send_email.send_sync(…)`) that a request sends go by this client too.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager

import click
from flask import Flask, g

from holdfast.client import Client, SyncClient, use_client
from holdfast.client.workers.loading import load_workers

_ENTERED = "_holdfast_entered"


class Holdfast:
    """The extension."""

    def __init__(self, app: Flask | None = None) -> None:
        self._clients: dict[int, SyncClient] = {}  # by process: a client does not survive a fork
        self._opening = threading.Lock()
        self._url: str | None = None
        self._token: str | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Read the configuration, and hold the client ready for requests."""
        self._url, self._token = app.config.get("HOLDFAST_URL"), app.config.get("HOLDFAST_TOKEN")
        app.extensions["holdfast"] = self
        app.before_request(self._enter)
        app.teardown_request(self._leave)
        app.cli.add_command(self._worker_command(app))

    @property
    def client(self) -> SyncClient:
        """The client of this process; any thread may use it."""
        with self._opening:
            number = os.getpid()
            if number not in self._clients:
                self._clients = {number: SyncClient(self._url, token=self._token)}
            return self._clients[number]

    def _enter(self) -> None:
        block = use_client(self.client)
        block.__enter__()
        setattr(g, _ENTERED, block)

    def _leave(self, _error: BaseException | None) -> None:
        block: AbstractContextManager[None] | None = g.pop(_ENTERED, None)
        if block is not None:
            block.__exit__(None, None, None)

    def _worker_command(self, app: Flask) -> click.Command:
        @click.command("holdfast-worker")
        @click.argument("target", metavar="MODULE[:NAME]")
        @click.option("--burst", is_flag=True, help="Work until nothing is ready, then end.")
        @click.pass_context
        def run(context: click.Context, target: str, burst: bool) -> None:
            """Run workers; what a handler calls finds the application's context."""
            workers = load_workers(target)
            for worker in workers.workers:
                worker.call_within(app.app_context)
            context.exit(workers.run(lambda: Client(self._url, token=self._token), burst=burst))

        return run
