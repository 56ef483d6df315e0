"""Who may call what: credentials, scopes, TLS, limits, the audit log. The same as on the other fronts."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import trustme
from msgspec.structs import replace

from holdfast.auth import tls
from holdfast.config import AuditSettings, LimitSettings, TlsSettings
from holdfast.config.grpc_settings import GrpcSettings
from holdfast.core.commands import Draft
from holdfast.core.records import Extra, Origin
from holdfast.errors import AddressUnavailable, ExposureRefused, InvalidConfig, all_errors
from holdfast.grpc_api import GrpcFront, arrivals
from holdfast.grpc_api.credentials import server_credentials
from holdfast.grpc_api.front import METHODS
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.grpc_api.status import code_of
from holdfast.quotas import Quota
from tests.auth.rig import settings, user, write_users
from tests.grpc_api.rig import SECRET, Api, bearer, calling, config_for, drafts, refused, serving
from tests.waiting import until

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def basic(name: str, password: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()),)


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(tmp_path: Path) -> AsyncIterator[GrpcFront]:
    """A server with tokens and users."""
    people = write_users(tmp_path / "users.json", user("ann", "open sesame", "produce:#", "consume:#"))
    config = config_for(
        tmp_path,
        auth=settings(token_secret=SECRET, users_file=people, login_failures=2),
        audit=AuditSettings(enabled=True),
    )
    async with serving(config) as front:
        yield front


@pytest_asyncio.fixture(loop_scope="session")
async def api(guarded: GrpcFront) -> AsyncIterator[Api]:
    async with calling(guarded) as opened:
        yield opened


OURS = [method for methods in METHODS for method in methods.found if method.path.startswith("/holdfast.")]


@pytest.mark.parametrize("method", OURS, ids=lambda method: method.path)
async def test_every_method_needs_a_credential_and_a_right(guarded: GrpcFront, method: Any) -> None:
    """The call is refused before its request is sent."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{guarded.address[1]}") as channel:
        call: Any = channel.stream_stream(method.path)
        async with refused("unauthenticated", UNAUTHENTICATED):
            await call().read()
        if method.right is not None:
            async with refused("forbidden", DENIED):
                await call(metadata=bearer("node")).read()


async def test_credentials_of_every_kind_are_taken(api: Api) -> None:
    request = pb.EnqueueRequest(queue="jobs", messages=drafts(b"1"))
    for good in (bearer("produce:jobs"), basic("ann", "open sesame")):
        await api.Enqueue(request, metadata=good)
        await api.Enqueue(request, metadata=good)  # remembered
    wrong = [
        (("authorization", "Bearer eyJ.x.y"),),
        (("authorization", "Digest x"),),
        (("authorization", "Basic ???"),),
        basic("ann", "wrong"),
    ]
    for bad in wrong:
        async with refused("unauthenticated", UNAUTHENTICATED):
            await api.Enqueue(request, metadata=bad)


async def test_a_right_is_for_the_queue_that_the_request_names(api: Api) -> None:
    produce, consume, admin = bearer("produce:a/#"), bearer("consume:a/#"), bearer("admin:a/#")
    await api.Enqueue(pb.EnqueueRequest(queue="a/1", messages=drafts(b"1")), metadata=produce)
    async with refused("forbidden", DENIED):
        await api.Enqueue(pb.EnqueueRequest(queue="b", messages=drafts(b"1")), metadata=produce)
    for queue, group in (("b", "default"), ("a/1", "default")):
        async with refused("forbidden", DENIED):
            await api.Lease(pb.LeaseRequest(queue=queue, group=group), metadata=produce if queue == "a/1" else consume)
    async with refused("forbidden", DENIED):
        await api.PurgeQueue(pb.PurgeQueueRequest(name="b"), metadata=admin)
    async with refused("forbidden", DENIED):
        await api.GetQueue(pb.GetQueueRequest(name="b"), metadata=admin)
    async with refused("forbidden", DENIED):  # it takes the right to consume the dead queue too
        await api.ListDeadLetters(pb.ListDeadLettersRequest(queue="a/1"), metadata=consume)
    async with refused("forbidden", DENIED):  # and a queue must not take what its administrator may not read
        config = pb.QueueConfig(topics=pb.TopicFilters(filters=["b/#"]))
        await api.UpdateQueue(pb.UpdateQueueRequest(name="a/1", config=config), metadata=admin)
    listed = await api.ListQueues(pb.ListQueuesRequest(), metadata=bearer("consume:b"))
    assert not listed.queues
    elsewhere = await api.ListQueues(pb.ListQueuesRequest(), metadata=bearer("admin:#", namespace="acme"))
    assert not elsewhere.queues


async def test_a_batch_for_another_queue_is_refused_within_a_stream(api: Api) -> None:
    call = api.Produce(metadata=bearer("produce:a"))
    await call.write(pb.ProduceRequest(batch=1, queue="b", messages=drafts(b"1")))
    assert (await call.read()).refused.code == "forbidden"
    await call.write(pb.ProduceRequest(batch=2, queue="a", messages=drafts(b"1")))
    assert len((await call.read()).stored.ids) == 1
    call.cancel()


async def test_logins_are_throttled(api: Api) -> None:
    request = pb.EnqueueRequest(queue="jobs", messages=drafts(b"1"))
    codes = set()
    for _ in range(6):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await api.Enqueue(request, metadata=basic("ann", "wrong"))
        codes.add(caught.value.code())
    assert codes == {UNAUTHENTICATED, EXHAUSTED}


async def test_logins_behind_a_trusted_proxy_are_throttled_by_client(tmp_path: Path) -> None:
    people = write_users(tmp_path / "users.json", user("ann", "open sesame", "produce:#"))
    auth = settings(users_file=people, login_failures=2, trusted_proxies=("127.0.0.1",))
    request = pb.EnqueueRequest(queue="jobs", messages=drafts(b"1"))
    async with serving(config_for(tmp_path, auth=auth)) as front, calling(front) as api:
        codes = set()
        forwarded = (*basic("nobody", "wrong"), ("x-forwarded-for", "192.0.2.7"))
        for _ in range(6):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await api.Enqueue(request, metadata=forwarded)
            codes.add(caught.value.code())
        assert codes == {UNAUTHENTICATED, EXHAUSTED}
        other = (*basic("ann", "open sesame"), ("x-forwarded-for", "192.0.2.7, 192.0.2.8"))
        await api.Enqueue(request, metadata=other)


async def test_a_redrive_takes_a_right_at_both_ends(api: Api, guarded: GrpcFront) -> None:
    """Dead letters go where the caller may send, or administers; the others stay."""
    node, dead = guarded.node, ("default", "dlq/x")
    letters = [
        Draft(home.encode(), extra=Extra(origin=Origin(number, home, "", "rejected")))
        for number, home in enumerate(("mine", "foreign"), 1)
    ]
    await node.queues.create(dead, {"dlq.enabled": False})
    await node.queues.create(("default", "repair"))
    await node.messages.enqueue(dead, letters)
    async with refused("forbidden", DENIED):
        await api.Redrive(pb.RedriveRequest(queue="dlq/x"), metadata=bearer("admin:mine", "produce:#", "consume:#"))
    async with refused("forbidden", DENIED):
        await api.Redrive(pb.RedriveRequest(queue="dlq/x", to="repair"), metadata=bearer("admin:dlq/#", "produce:#"))
    own = bearer("admin:dlq/#", "produce:mine")
    job = (await api.Redrive(pb.RedriveRequest(queue="dlq/x"), metadata=own)).job
    while job.state == "running":
        job = (await api.GetRedrive(pb.GetRedriveRequest(queue="dlq/x", id=job.id), metadata=own)).job
    assert (job.moved, node.queues.depth(("default", "mine")), node.queues.depth(dead)) == (1, 1, 1)
    assert not node.queues.exists(("default", "foreign"))


async def test_acts_of_administration_are_in_the_audit_log(api: Api, guarded: GrpcFront) -> None:
    admin = bearer("admin:jobs", subject="olga")
    await api.CreateQueue(pb.CreateQueueRequest(name="jobs"), metadata=admin)
    async with refused("forbidden", DENIED):
        await api.DeleteQueue(pb.DeleteQueueRequest(name="other"), metadata=admin)
    async with refused("forbidden", DENIED):
        await api.DeleteQueue(pb.DeleteQueueRequest(name="jobs"), metadata=bearer("consume:jobs", subject="olga"))
    entries = [json.loads(line) for path in audit_files(guarded) for line in path.read_text().splitlines()]
    seen = [
        (entry["act"], entry["resource"], entry["result"], entry["who"], entry["front"], entry["peer"])
        for entry in entries
        if entry.get("front") == "grpc"
    ]
    assert seen == [
        ("queue.create", "jobs", "ok", "olga", "grpc", "127.0.0.1"),
        ("queue.delete", "other", "forbidden", "olga", "grpc", "127.0.0.1"),
        ("queue.delete", "", "forbidden", "olga", "grpc", "127.0.0.1"),  # its request was not read
    ]


def audit_files(front: GrpcFront) -> list[Path]:
    return sorted(path for path in front.node.config.node.data_dir.rglob("audit*") if path.is_file())


async def test_quotas_hold(api: Api, guarded: GrpcFront) -> None:
    quotas = guarded.node.cell.quotas
    quotas.set_own("small", {Quota.LONG_POLLS: 1, Quota.QUEUES: 1})
    small = bearer("produce:#", "consume:#", "admin:#", namespace="small")
    await api.CreateQueue(pb.CreateQueueRequest(name="one"), metadata=small)
    async with refused("quota_exceeded", EXHAUSTED):
        await api.CreateQueue(pb.CreateQueueRequest(name="two"), metadata=small)
    call = api.Consume(metadata=small)
    await call.write(pb.ConsumeRequest(subscribe=pb.Subscribe(queue="one")))
    await call.read()
    async with refused("quota_exceeded", EXHAUSTED):
        await api.Produce(metadata=small).read()
    call.cancel()
    await until(lambda: quotas.held(Quota.LONG_POLLS, "small") == 0)
    quotas.set_own("slow", {Quota.REQUESTS_PER_SECOND: 1})
    slow = bearer("produce:#", namespace="slow")

    async def send() -> None:
        await api.Enqueue(pb.EnqueueRequest(queue="one", messages=drafts(b"1")), metadata=slow)

    results = await asyncio.gather(*[send() for _ in range(20)], return_exceptions=True)
    refusals = {error.code() for error in results if isinstance(error, grpc.aio.AioRpcError)}
    assert refusals == {EXHAUSTED}


async def test_connections_are_counted_and_are_free_again(api: Api, guarded: GrpcFront) -> None:
    quotas = guarded.node.cell.quotas
    quotas.set_own("small", {Quota.CONNECTIONS: 1})
    small = bearer("produce:#", "consume:#", namespace="small")
    subscribe = pb.ConsumeRequest(subscribe=pb.Subscribe(queue="one"))
    call = api.Consume(metadata=small)
    await call.write(subscribe)
    await call.read()
    await api.Enqueue(pb.EnqueueRequest(queue="one", messages=drafts(b"1")), metadata=small)  # by the same connection
    assert quotas.held(Quota.CONNECTIONS, "small") == 1
    async with calling(guarded, own=True) as other:
        async with refused("quota_exceeded", EXHAUSTED):
            await other.Enqueue(pb.EnqueueRequest(queue="one", messages=drafts(b"1")), metadata=small)
        call.cancel()
        await until(lambda: quotas.held(Quota.CONNECTIONS, "small") == 0)
        await other.Enqueue(pb.EnqueueRequest(queue="one", messages=drafts(b"1")), metadata=small)
    assert quotas.held(Quota.CONNECTIONS, "small") == 0


async def test_more_connections_than_allowed_are_closed(tmp_path: Path) -> None:
    limits = GrpcSettings(listen="127.0.0.1:0", max_connections=1)
    async with serving(config_for(tmp_path, grpc=limits)) as front, calling(front, own=True) as api:
        await api.ListQueues(pb.ListQueuesRequest())
        async with calling(front, own=True) as other:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await other.ListQueues(pb.ListQueuesRequest())
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await api.ListQueues(pb.ListQueuesRequest())


@pytest.mark.parametrize("method", ["/holdfast.v1.QueueService/Enqueue", "/grpc.health.v1.Health/Check"])
async def test_requests_that_do_not_arrive_may_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Each could have all but a byte of its message in memory. The oldest makes room, and not a caller that has few."""
    monkeypatch.setattr(arrivals, "SLOW_SECONDS", 0.0)
    limits = GrpcSettings(listen="127.0.0.1:0", max_request_bytes=1 << 20, max_buffered_bytes=4 << 20)
    config = config_for(tmp_path, grpc=limits, auth=settings(token_secret=SECRET))
    async with serving(config) as front, grpc.aio.insecure_channel(f"127.0.0.1:{front.address[1]}") as channel:
        opened: Any = channel.stream_stream(method)
        slow = front.slow_strangers if "Health" in method else front.slow_arrivals
        few = opened(metadata=bearer("produce:#", subject="few"))
        await until(lambda: len(slow) == 1)
        many = []
        for number in range(2, 5):
            many.append(opened(metadata=bearer("produce:#", subject="many")))
            await until(lambda number=number: len(slow) == number)  # type: ignore[misc]
        many.append(opened(metadata=bearer("produce:#", subject="many")))
        # To strangers nobody is known: the oldest of all goes.
        first, rest = (few, many) if "Health" in method else (many[0], [few, *many[1:]])
        async with refused("overloaded", grpc.StatusCode.UNAVAILABLE):
            await first.read()
        assert len(slow) == 4
        assert not any(call.done() for call in rest)
        for call in rest:
            call.cancel()
        await until(lambda: len(slow) == 0)


async def test_a_stream_ends_with_the_credential_of_its_caller(api: Api, guarded: GrpcFront, tmp_path: Path) -> None:
    call = api.Consume(metadata=basic("ann", "open sesame"))
    await call.write(pb.ConsumeRequest(subscribe=pb.Subscribe(queue="jobs")))
    await call.read()
    write_users(tmp_path / "users.json", user("bob", "open sesame"))
    async with refused("unauthenticated", UNAUTHENTICATED):
        await call.read()


async def test_limits_of_calls_hold(tmp_path: Path) -> None:
    limits = GrpcSettings(listen="127.0.0.1:0", max_streams=1, max_request_bytes=2048)
    async with serving(config_for(tmp_path, grpc=limits)) as front, calling(front) as api:
        call = api.Consume()
        await call.write(pb.ConsumeRequest(subscribe=pb.Subscribe(queue="jobs")))
        await call.read()
        async with refused("limit_exceeded", EXHAUSTED):
            await api.Produce().read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await api.Enqueue(pb.EnqueueRequest(queue="jobs", messages=drafts(b"x" * 4096)))
        assert caught.value.code() is EXHAUSTED
        await front.stop()  # what waits is told why it ends
        async with refused("shutting_down", grpc.StatusCode.UNAVAILABLE):
            await call.read()


async def test_a_batch_is_counted_before_its_messages_are_read(tmp_path: Path) -> None:
    """An empty draft or settlement has two bytes, so that one request could have millions."""
    limits = LimitSettings(enqueue_max=3, settle_max=3)
    async with serving(config_for(tmp_path, limits=limits)) as front, calling(front) as api:
        await api.CreateQueue(pb.CreateQueueRequest(name="jobs"))
        too_many = [pb.Settlement() for _ in range(4)]
        async with refused("limit_exceeded", EXHAUSTED):
            await api.Settle(pb.SettleRequest(queue="jobs", settlements=too_many))
        async with refused("limit_exceeded", EXHAUSTED):
            await api.Extend(pb.ExtendRequest(queue="jobs", leases=[pb.LeaseKey() for _ in range(4)]))
        async with refused("limit_exceeded", EXHAUSTED):
            await api.Enqueue(pb.EnqueueRequest(queue="jobs", messages=[pb.Draft(priority=999) for _ in range(4)]))
        call = api.Consume()
        await call.write(pb.ConsumeRequest(subscribe=pb.Subscribe(queue="jobs")))
        await call.read()
        await call.write(pb.ConsumeRequest(settle=pb.SettleBatch(batch=1, settlements=too_many)))
        async with refused("limit_exceeded", EXHAUSTED):
            await call.read()


async def test_strangers_take_no_room_from_callers(front: GrpcFront) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{front.address[1]}") as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        async with refused("malformed_request", grpc.StatusCode.INVALID_ARGUMENT):
            await check(b"\x0a\x80\x40" + b"x" * 8192)
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        call = watch(b"")
        await call.read()
        assert front.buffered_bytes == 0
        call.cancel()


async def test_a_port_that_is_taken_is_refused(front: GrpcFront, tmp_path: Path) -> None:
    taken = GrpcSettings(listen=f"127.0.0.1:{front.address[1]}")
    with pytest.raises(AddressUnavailable, match=r"grpc\.listen"):
        async with serving(config_for(tmp_path, grpc=taken)):
            raise AssertionError("it must not start")


async def test_without_credentials_it_listens_on_loopback_only(tmp_path: Path) -> None:
    with pytest.raises(ExposureRefused, match="gRPC cannot listen on 0"):
        async with serving(config_for(tmp_path, grpc=GrpcSettings(listen="0.0.0.0:0"))):
            raise AssertionError("it must not start")


def test_every_error_has_a_status() -> None:
    assert {code_of(kind()) for kind in all_errors()} >= {UNAUTHENTICATED, DENIED, EXHAUSTED}


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def issue(authority: trustme.CA, directory: Path, host: str) -> TlsSettings:
    made = authority.issue_cert(host)
    made.private_key_pem.write_to_path(directory / "key.new")
    with (directory / "certificate.new").open("wb") as file:
        for pem in made.cert_chain_pems:
            file.write(pem.bytes())
    for name in ("key", "certificate"):
        os.replace(directory / f"{name}.new", directory / f"{name}.pem")  # noqa: PTH105 - as a renewing tool does it
    authority.cert_pem.write_to_path(directory / "authority.pem")
    return TlsSettings(certificate_file=directory / "certificate.pem", key_file=directory / "key.pem")


async def over_tls(front: GrpcFront, authority: trustme.CA, host: str, client: Any = None) -> Any:
    pair = (client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()) if client is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), *pair)
    options = [("grpc.ssl_target_name_override", host), ("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{front.address[1]}"
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        return await Api(channel).ListQueues(pb.ListQueuesRequest())


async def test_a_renewed_certificate_is_used_without_a_restart(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.0)
    files = issue(authority, tmp_path, "old.example")
    async with serving(config_for(tmp_path, tls=files)) as front:
        await over_tls(front, authority, "old.example")
        issue(authority, tmp_path, "new.example")
        await over_tls(front, authority, "new.example")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await over_tls(front, authority, "old.example")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_certificate_says_who_calls(authority: trustme.CA, tmp_path: Path) -> None:
    known, stranger = (authority.issue_cert(f"{name}@example.org", common_name=name) for name in ("worker", "nobody"))
    subject = tls.subject_of_pem(known.cert_chain_pems[0].bytes())
    assert subject is not None
    assert "worker" in subject
    people = write_users(tmp_path / "users.json", user("worker", None, "consume:#", subject=subject))
    files = replace(
        issue(authority, tmp_path, "localhost"),
        client_ca_file=tmp_path / "authority.pem",
        client_certificates="required",
    )
    async with serving(config_for(tmp_path, tls=files, auth=settings(users_file=people))) as front:
        await over_tls(front, authority, "localhost", known)
        async with refused("unauthenticated", UNAUTHENTICATED):
            await over_tls(front, authority, "localhost", stranger)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await over_tls(front, authority, "localhost")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_what_the_library_cannot_do_is_refused(authority: trustme.CA, tmp_path: Path) -> None:
    files = replace(issue(authority, tmp_path, "localhost"), minimum_version="1.3")
    with pytest.raises(InvalidConfig, match=r"tls\.minimum_version"):
        server_credentials(files)
