"""`holdfast serve --grpc`: a real process, a client in another language, and what gRPC costs where it is off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from holdfast.grpc_api.generated import queue_pb2 as pb
from tests.npm import npm_package
from tests.waiting import PATIENCE_SECONDS
from tools.proto import CONTRACT, ROOM

# What `node` runs: a client that @grpc/grpc-js makes of the contract.
NODE_CLIENT = """
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const [contracts, contract, address] = process.argv.slice(2);
const loaded = loader.loadSync(contract, {includeDirs: [contracts], longs: String, keepCase: true, oneofs: true});
const {QueueService} = grpc.loadPackageDefinition(loaded).holdfast.v1;
const client = new QueueService(address, grpc.credentials.createInsecure());
const call = (name, request) => new Promise((resolve, reject) =>
  client[name](request, (error, response) => error ? reject(error) : resolve(response)));
const confirmations = () => new Promise((resolve, reject) => {
  const stream = client.Produce(), seen = [];
  stream.on('data', (response) => seen.push(response.batch));
  stream.on('end', () => resolve(seen));
  stream.on('error', reject);
  for (const batch of [1, 2, 3]) stream.write({batch, queue: 'jobs', messages: [{payload: Buffer.from('x')}]});
  stream.end();
});
const consume = (count) => new Promise((resolve, reject) => {
  const stream = client.Consume(), seen = [];
  stream.on('data', (response) => {
    for (const delivery of (response.deliveries || {deliveries: []}).deliveries) {
      seen.push(delivery.message.payload.toString());
      const {lease_token, message: {id}} = delivery;
      stream.write({settle: {batch: seen.length, settlements: [{id, lease_token}]}});
    }
    if (response.settled && response.settled.batch === String(count)) { resolve(seen); stream.cancel(); }
  });
  stream.on('error', (error) => { if (error.code !== grpc.status.CANCELLED) reject(error); });
  stream.write({subscribe: {queue: 'jobs'}});
});
(async () => {
  const batches = await confirmations();
  const {deliveries: [leased]} = await call('Lease', {queue: 'jobs'});
  const {settled} = await call('Settle', {queue: 'jobs', settlements: [
    {id: leased.message.id, lease_token: leased.lease_token}]});
  const consumed = await consume(2);
  let refused = null;
  try { await call('Lease', {queue: 'none', must_exist: true}); } catch (error) { refused = error.code; }
  console.log(JSON.stringify({batches, settled, consumed, refused}));
  client.close();
})().catch((error) => { console.error(error); process.exit(1); });
"""

LOADED = """
import sys
from holdfast.cli.main import main
import atexit
atexit.register(lambda: print("gRPC loaded:", "grpc" in sys.modules, file=sys.stderr, flush=True))
main(["serve", *sys.argv[1:]])
"""

FLAGS = ("--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0", "--log-format", "json")


@contextmanager
def serving(path: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, object]]]]:
    """A server, and what it has logged until it runs."""
    command = [sys.executable, "-c", LOADED, "--data-dir", str(path / "data"), *FLAGS, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert process.stderr is not None
    lines: list[dict[str, object]] = []
    try:
        for line in process.stderr:
            lines.append(json.loads(line))
            if lines[-1]["event"] == "holdfast is running":
                break
        yield process, lines
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def stopped(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    return rest


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("grpc"), "--grpc", "127.0.0.1:0") as (process, lines):
        (listening,) = [line for line in lines if line["event"] == "gRPC is listening"]
        yield str(listening["address"])
        assert "gRPC loaded: True" in stopped(process)


def test_an_ordinary_client_of_the_library_works(address: str) -> None:
    """Not asyncio's, and another process: the server's own loop is uvloop."""
    with grpc.insecure_channel(address) as channel:
        enqueue = channel.unary_unary(
            "/holdfast.v1.QueueService/Enqueue",
            request_serializer=pb.EnqueueRequest.SerializeToString,
            response_deserializer=pb.EnqueueResponse.FromString,
        )
        request = pb.EnqueueRequest(queue="mails", messages=[pb.Draft(payload=b"1")])
        assert len(enqueue(request, timeout=PATIENCE_SECONDS).ids) == 1


def test_a_client_in_another_language_works(
    address: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    modules = npm_package(request, tmp_path_factory, "@grpc/grpc-js@1")
    script = tmp_path_factory.mktemp("node") / "client.js"
    script.write_text(NODE_CLIENT)
    done = subprocess.run(
        ["node", str(script), str(ROOM / "proto"), CONTRACT, address],
        env={**os.environ, "NODE_PATH": str(modules)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "batches": ["1", "2", "3"],
        "settled": 1,
        "consumed": ["x", "x"],
        "refused": grpc.StatusCode.NOT_FOUND.value[0],
    }


def test_grpc_is_not_even_loaded_where_it_is_off(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, lines):
        assert "gRPC is listening" not in [line["event"] for line in lines]
        assert "gRPC loaded: False" in stopped(process)


def test_a_server_without_the_library_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['grpc'] = None; from holdfast.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", "--grpc", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode != 0
    assert 'pip install "holdfast[grpc]"' in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()
