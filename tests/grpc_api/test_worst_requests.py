"""No request, whatever it holds, keeps others waiting: each method is sent the worst requests that it takes.

What is counted is the work of one pass of the loop: see `tests/work.py`. What the decoder of protobuf allocates is not
in it; a request that could be millions of objects must be refused before it is decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from holdfast.grpc_api import GrpcFront
from holdfast.grpc_api.call import SMALL_BYTES_MAX
from holdfast.grpc_api.front import METHODS
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.grpc_api.methods import Method
from tests.auth.rig import settings
from tests.grpc_api.rig import SECRET, bearer, config_for, serving
from tests.waiting import PATIENCE_SECONDS
from tests.work import Work

BULK_BYTES = 256 << 10
TYPES = {
    f"/{service.full_name}/{method.name}": method.input_type
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
DECODE = "<built-in method FromString>"
MANY = "many"
SUBSCRIBE = pb.ConsumeRequest(subscribe=pb.Subscribe(queue="jobs")).SerializeToString()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GrpcFront]:
    config = config_for(tmp_path_factory.mktemp("worst"), auth=settings(token_secret=SECRET))
    async with serving(config) as front:
        yield front


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number: int, content: bytes, *, long: bool = False) -> bytes:
    """A field with a length. `long`: its tag has a byte more than it needs."""
    tag = bytes([number << 3 | 2 | 128, 0]) if long else varint(number << 3 | 2)
    return tag + varint(len(content)) + content


def bodies(kind: Descriptor, size: int, path: tuple[int, ...] = ()) -> Iterator[tuple[str, bytes]]:
    """Every field at every level, as often as it fits."""

    def wrapped(content: bytes) -> bytes:
        for number in reversed(path):
            content = field(number, content)
        return content

    for one in kind.fields:
        many = f"{MANY} " if one.is_repeated else ""
        name = many + ".".join(str(number) for number in (*path, one.number))
        if one.message_type is not None:
            least = field(one.number, b"")
            yield f"{name} empty", wrapped(least * (size // len(least)))
            some = field(one.number, b"\x08\x01")
            yield f"{name} least", wrapped(some * (size // len(some)))
            overlong = field(one.number, b"", long=True)
            yield f"{name} long tags", wrapped(overlong * (size // len(overlong)))
            mixed = b"\x7b\x7c" + least  # a group that nobody knows, before each
            yield f"{name} after groups", wrapped(mixed * (size // len(mixed)))
            if path:  # in as many of what it is in
                each = wrapped(least)
                yield f"{name} apart", each * (size // len(each))
            if one.message_type.file is pb.DESCRIPTOR or one.message_type.GetOptions().map_entry:
                yield from bodies(one.message_type, size, (*path, one.number))
        elif one.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            yield f"{name} texts", wrapped(field(one.number, b"") * (size // 2))
            yield f"{name} long text", wrapped(field(one.number, b"a" * size))
        else:
            yield f"{name} numbers", wrapped(varint(one.number << 3) + b"\x01") * (size // 2 if not path else 1)
            yield f"{name} packed", wrapped(field(one.number, b"\x01" * size))


def ask(channel: grpc.Channel, path: str, requests: list[bytes]) -> tuple[grpc.StatusCode, str]:
    """The status of a call with these requests, from another thread than the server's."""
    metadata = bearer("produce:#", "consume:#", "admin:#")
    call: Any = channel.stream_stream(path)
    responses = call(iter(requests), metadata=metadata, timeout=PATIENCE_SECONDS)
    with suppress(grpc.RpcError):
        for _ in responses:
            pass
    return responses.code(), responses.details()


METHODS_OF_OURS = [method for methods in METHODS for method in methods.found if method.path in TYPES]


@pytest.mark.parametrize("method", METHODS_OF_OURS, ids=lambda method: method.path)
async def test_no_request_keeps_others_waiting(
    guarded: GrpcFront, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting = method.path.endswith("/Consume")
    bulk = method.check is not None or method.path.endswith("/Produce") or lasting
    size = BULK_BYTES if bulk else SMALL_BYTES_MAX - 100
    found = {**dict(bodies(TYPES[method.path], size)), "nonsense": b"\xff" * size, "zeros": b"\0" * size}
    excessive = {}
    with grpc.insecure_channel(f"127.0.0.1:{guarded.address[1]}") as channel:
        for name, body in found.items():
            # A stream of deliveries is ended by a second subscription.
            requests = [SUBSCRIBE, body, SUBSCRIBE] if lasting else [body]
            work = Work()
            async with work.counted(monkeypatch):
                code, text = await asyncio.to_thread(ask, channel, method.path, requests)
            assert code not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), (name, text)
            if bulk and name.startswith(MANY):
                assert work.calls_by_name[DECODE] == lasting, (name, text)
            if work.excessive(stored=code is grpc.StatusCode.OK):
                excessive[name] = work
    assert excessive == {}


async def test_what_is_no_batch_is_small(guarded: GrpcFront) -> None:
    """Whoever has no right to a queue could send it too."""
    topics = field(11, field(1, b"") * SMALL_BYTES_MAX)
    with grpc.insecure_channel(f"127.0.0.1:{guarded.address[1]}") as channel:
        code, text = await asyncio.to_thread(
            ask, channel, "/holdfast.v1.QueueAdmin/CreateQueue", [field(1, b"jobs") + field(2, topics)]
        )
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"larger than {SMALL_BYTES_MAX} bytes" in text
