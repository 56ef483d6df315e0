"""An application of Flask with a client and workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from flask import Flask, request

from holdfast.client import SyncClient, worker
from holdfast.frameworks.flask import Holdfast
from holdfast.testing import Broker

JOBS = """
from flask import current_app
from holdfast.client import worker

@worker("emails")
def send_email(to: str, text: str) -> None:
    current_app.config["SENT"].append(f"{to}: {text}")
"""


@worker("emails")
def send_email(to: str, text: str) -> None: ...


def application(url: str) -> Flask:
    app = Flask(__name__)
    app.config.update(HOLDFAST_URL=url, SENT=[])
    holdfast = Holdfast(app)

    @app.post("/orders")
    def place() -> str:
        send_email.send_sync(to="ann@example.com", text="thank you")
        return holdfast.client.send("orders", request.get_json()).id

    return app


def test_requests_send_and_handlers_have_the_applications_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flask_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(tmp_path)
    with Broker(http=True) as broker, SyncClient(broker.url) as client:
        app = application(broker.url)
        assert app.test_client().post("/orders", json={"item": "tea"}).status_code == 200
        (order,) = client.receive("orders")
        assert order.json() == {"item": "tea"}
        order.ack()
        done = app.test_cli_runner().invoke(args=["holdfast-worker", "flask_jobs", "--burst"])
        assert done.exit_code == 0, done.output
        assert app.config["SENT"] == ["ann@example.com: thank you"]
        assert client.receive("emails") == []
        app.extensions["holdfast"].client.close()
    sys.modules.pop("flask_jobs")


def test_an_application_made_later_is_the_same() -> None:
    holdfast = Holdfast()
    app = Flask(__name__)
    with Broker(http=True) as broker:
        app.config["HOLDFAST_URL"] = broker.url
        holdfast.init_app(app)
        assert holdfast.client.url == broker.url
        assert holdfast.client is holdfast.client
        holdfast.client.close()
