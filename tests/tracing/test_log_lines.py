"""Log lines about a request that belongs to a trace say which, whatever front it came by."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest

from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.mqtt.codec import V5, Connect, Properties, Publish
from tests.http_api.tenants import SECRET
from tests.mqtt.net.client import Client
from tests.test_server import serving
from tests.waiting import PATIENCE_SECONDS, until_sync


def new_context() -> tuple[dict[str, str], str]:
    """What a log line says of a trace, and the header that brings it."""
    fields = {"trace_id": secrets.token_hex(16), "span_id": secrets.token_hex(8)}
    return fields, f"00-{fields['trace_id']}-{fields['span_id']}-01"


class Log:
    """The lines that a server writes."""

    def __init__(self) -> None:
        self.lines: list[dict[str, str]] = []

    def one(self, event: str) -> dict[str, str]:
        until_sync(lambda: any(line["event"] == event for line in list(self.lines)))
        return next(line for line in list(self.lines) if line["event"] == event)

    def says(self, event: str, fields: dict[str, str], do: Callable[[], object]) -> bool:
        """Whether there comes such a line of this trace, or of none. Of some events there is at most one line a second,
        and one of an earlier request may still come: so do it until then."""
        del self.lines[:]

        def found() -> bool:
            do()
            return any(line["event"] == event and _trace_of(line) == fields for line in list(self.lines))

        until_sync(found)
        return True


def _trace_of(line: dict[str, str]) -> dict[str, str]:
    return {name: line[name] for name in ("trace_id", "span_id") if name in line}


@contextmanager
def logged(path: Path, **environ: str) -> Iterator[Log]:
    """A server with all fronts."""
    with serving(path / "data", "--grpc", "127.0.0.1:0", **environ) as server:
        log, stderr = Log(), server.process.stderr
        assert stderr is not None

        def read() -> None:
            for line in stderr:
                log.lines.append(json.loads(line))

        reader = threading.Thread(target=read)
        reader.start()
        log.one("holdfast is running")
        yield log
        server.process.terminate()
        reader.join()


def test_of_requests_over_http_and_grpc(tmp_path: Path) -> None:
    with logged(tmp_path, HOLDFAST_AUTH_TOKEN_SECRET=SECRET) as log:
        url, address = log.one("HTTP API is listening")["url"], log.one("gRPC is listening")["address"]

        def over_http(**headers: str) -> None:
            headers["authorization"] = "Bearer wrong"
            assert httpx.get(f"{url}/api/v1/queues", headers=headers, timeout=PATIENCE_SECONDS).status_code == 401

        def over_grpc(parent: str) -> None:
            with grpc.insecure_channel(address) as channel:
                lease = channel.unary_unary(
                    "/holdfast.v1.QueueService/Lease",
                    request_serializer=pb.LeaseRequest.SerializeToString,
                    response_deserializer=pb.LeaseResponse.FromString,
                )
                metadata = (("authorization", "Bearer wrong"), ("traceparent", parent))
                with pytest.raises(grpc.RpcError):
                    lease(pb.LeaseRequest(queue="q"), metadata=metadata, timeout=PATIENCE_SECONDS)

        fields, parent = new_context()
        assert log.says("token refused", fields, lambda: over_http(traceparent=parent))
        assert log.says("token refused", {}, over_http), "what another request brought stays with that"
        assert log.says("token refused", {}, lambda: over_http(traceparent="00-nonsense"))
        fields, parent = new_context()
        assert log.says("token refused", fields, lambda: over_grpc(parent))


def test_of_a_message_over_mqtt(tmp_path: Path) -> None:
    with logged(tmp_path) as log:
        host, _, port = log.one("MQTT is listening")["address"].rpartition(":")
        fields, parent = new_context()

        async def publish() -> None:
            client = await Client.open(host, int(port))
            await client.connect(Connect("c", V5))
            properties = Properties(user_properties=(("traceparent", parent), ("priority", "none")))
            await client.send(Publish("$queue/q", b"x", properties=properties))
            await client.ping()
            client.cut()

        assert log.says("message refused", fields, lambda: asyncio.run(publish()))
