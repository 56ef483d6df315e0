"""Messages: browse, one and its life, payloads in all views, send, edit, delete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from grpc_tools import protoc

from holdfast import wire
from holdfast.console.payloads import NODES_MAX, show
from holdfast.console.protobuf_types import NoProtobuf, ProtobufTypes, named_by
from holdfast.console.snippets import SHOWN_BYTES_MAX, snippets
from tests.console.accessibility import check_accessible
from tests.console.rig import Served, Window, config_with, csrf, serving

ORDERS = ("default", "shop/orders")
MAILS = ("default", "dlq/shop/mails")


async def first_id(served: Served, queue: tuple[str, str]) -> int:
    return (await served.node.inspection.browse(queue, 1)).messages[0][1].id


def ids(text: str) -> list[str]:
    return re.findall(r"/messages/(\d+)\">", text)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 43),
        ("state=leased", 1),
        ("state=scheduled", 2),
        ("key=customer-2", 8),
        ("priority=128", 43),
        ("priority=1", 0),
        ("after=2100-01-01T00:00", 0),
        ("before=2100-01-01T00:00", 43),
        ("state=ready&key=customer-2&group=default", 8),
    ],
)
async def test_messages_are_found_by_what_they_have(shop: Served, query: str, count: int) -> None:
    async with shop.http() as http:
        page = await http.get(f"/queues/shop%2Forders/messages?{query}")
        assert len(ids(page.text)) == count


async def test_a_number_of_many_digits_is_none(shop: Served) -> None:
    digits = "9" * 5_000
    async with shop.http() as http:
        assert (await http.get(f"/queues?page={digits}&count={digits}&did=purged")).status_code == 200
        form = {"csrf": csrf(await http.get("/queues")), "payload": "x", "priority": digits}
        assert (await http.post("/queues/shop%2Forders/send", data=form)).status_code == 400


async def test_a_time_that_is_none_is_refused(shop: Served) -> None:
    async with shop.http() as http:
        assert (await http.get("/queues/shop%2Forders/messages?after=soon")).status_code == 400


async def test_messages_come_in_pages(shop: Served) -> None:
    await shop.node.queues.create(("default", "long"))
    async with shop.client() as client, shop.http() as http:
        await client.send_many("long", [str(index) for index in range(70)])
        first = await http.get("/queues/long/messages")
        following = re.search(r'href="([^"]*cursor[^"]*)"', first.text)
        assert following is not None
        second = await http.get(following[1].replace("&amp;", "&"))
        assert len(set(ids(first.text) + ids(second.text))) == 70
    await shop.node.queues.delete(("default", "long"))


async def test_one_message_shows_everything_it_has(shop: Served) -> None:
    message_id = await first_id(shop, ORDERS)
    async with shop.http() as http:
        sought = await http.get(f"/queues/shop%2Forders/messages?id={message_id}")
        page = await http.get(sought.headers["location"])
        for text in ("4711", "customer-0", "north", "timeout after 17 ms", "Attempt"):
            assert text in page.text, text
        assert f"http://{http.base_url.netloc.decode()}/api/v1/queues/shop%2Forders/messages" in page.text
        file = await http.get(f"/queues/shop%2Forders/messages/{message_id}/payload")
        assert msgspec.json.decode(file.content)["order"] == 4711
        assert file.headers["content-disposition"].startswith("attachment")


async def test_the_life_of_a_dead_letter_begins_with_its_source(shop: Served) -> None:
    message_id = await first_id(shop, MAILS)
    async with shop.http() as http:
        page = await http.get(f"/queues/dlq%2Fshop%2Fmails/messages/{message_id}")
        part = re.search(r'hx-get="([^"]*/life[^"]*)"', page.text)
        assert part is not None
        life = (await http.get(part[1].replace("&amp;", "&"))).text
        events = re.findall(r"<strong>(\w+)</strong>", life)
        assert events == ["enqueued", "leased", "enqueued", "dead"]
        assert "as a dead letter" in life
        assert "SMTP 550" in life


async def test_a_message_that_is_gone_has_a_life_still(shop: Served) -> None:
    await shop.node.queues.create(("default", "done"))
    async with shop.client() as client, shop.http() as http:
        sent = await client.send("done", "x")
        for message in await client.receive("done"):
            await message.ack()
        page = await http.get(f"/queues/done/messages/{sent.id}")
        assert page.status_code == 200
        assert "not in the queue" in page.text
        life = (await http.get(f"/queues/done/messages/{sent.id}/life")).text
        assert re.findall(r"<strong>(\w+)</strong>", life) == ["enqueued", "leased", "acked"]
        assert "no steps" in (await http.get("/queues/done/messages/12345/life")).text
        assert (await http.get("/queues/done/messages/nonsense")).status_code == 400
    await shop.node.queues.delete(("default", "done"))


async def test_send_edit_and_delete(shop: Served) -> None:
    await shop.node.queues.create(("default", "in"))
    async with shop.http() as http:
        form = await http.get("/queues/in/send")
        token = {"csrf": csrf(form)}
        fields = {"kind": "json", "payload": '{"a": [1]}', "key": "k", "priority": "7", "properties": "x=1\r\ny = 2"}
        sent = await http.post("/queues/in/send", data={**token, **fields})
        assert sent.status_code == 303
        _, message, _ = (await shop.node.inspection.browse(("default", "in"), 1)).messages[0]
        assert (message.payload, message.priority, message.extra.key) == (b'{"a": [1]}', 7, "k")
        assert message.extra.properties == (("x", "1"), ("y", "2"))
        page = await http.get(sent.headers["location"])
        assert "The message is stored." in page.text

        path = f"/queues/in/messages/{message.id}"
        edited = await http.post(f"{path}/edit", data={**token, "priority": "9", "deliver_at": "2100-01-01T00:00:00Z"})
        assert edited.status_code == 303
        _, message, _ = (await shop.node.inspection.browse(("default", "in"), 1)).messages[0]
        assert message.priority == 9
        assert message.deliver_at > 0
        assert (await http.post(f"{path}/edit", data={**token, "priority": "high"})).status_code == 400
        assert "Delete message" in (await http.get(f"{path}/delete")).text
        await http.post(f"{path}/delete", data=token)
        assert shop.node.queues.depth(("default", "in")) == 0

        for wrong in ({"kind": "json", "payload": "{"}, {"kind": "base64", "payload": "%"}, {"delay": "soon"}):
            refused = await http.post("/queues/in/send", data={**token, **wrong})
            assert refused.status_code == 400, wrong
            assert 'role="alert"' in refused.text
        assert shop.node.queues.depth(("default", "in")) == 0
    await shop.node.queues.delete(("default", "in"))


async def test_who_may_not_read_messages_sees_none(guarded: Served) -> None:
    for name in ("shop/m", "other/m"):
        if not guarded.node.queues.exists(("default", name)):
            await guarded.node.queues.create(("default", name))
    async with guarded.http("reader") as http:
        assert (await http.get("/queues/other%2Fm/messages")).status_code == 200
        assert (await http.get("/queues/other%2Fm/send")).status_code == 403
    async with guarded.http("shop") as http:
        for path in ("messages", "messages/1", "messages/1/life", "messages/1/payload", "partitions"):
            assert (await http.get(f"/queues/other%2Fm/{path}")).status_code == 403, path
        token = {"csrf": csrf(await http.get("/queues"))}
        assert (await http.post("/queues/other%2Fm/send", data={**token, "payload": "x"})).status_code == 403
        assert (await http.post("/queues/shop%2Fm/messages/1/delete", data=token)).status_code == 403
        assert (await http.post("/queues/shop%2Fm/messages/1/edit", data={**token, "priority": "1"})).status_code == 403


# --- payloads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "content_type", "view"),
    [
        (b'{"a":1}', None, "json"),
        (b'{"a":1}', "text/plain", "text"),
        (b"hello", None, "text"),
        (b"\xff\x00", None, "hex"),
        (b"", None, "hex"),
        (msgspec.msgpack.encode({"a": b"\x01"}), "application/msgpack", "msgpack"),
        (b"\xc1", "application/msgpack", "hex"),
    ],
)
def test_a_payload_is_shown_as_what_it_is(payload: bytes, content_type: str | None, view: str) -> None:
    assert show(payload, content_type).view == view


def test_nothing_in_a_payload_is_taken_for_html() -> None:
    nasty = "<script>alert(1)</script>"
    for payload in (nasty.encode(), msgspec.json.encode({nasty: [nasty]}), msgspec.msgpack.encode({nasty: nasty})):
        for view in ("json", "text", "hex", "msgpack"):
            assert "<script" not in show(payload, None, view).html


def test_a_payload_that_is_not_what_is_wanted_is_shown_in_hex() -> None:
    shown = show(b"hello", None, "json")
    assert shown.view == "hex"
    assert "json" in shown.problem


@pytest.mark.parametrize("value", [[0] * (3 * NODES_MAX), [[0]] * (2 * NODES_MAX), "x" * 400_000])
def test_a_page_does_not_grow_without_end(value: Any) -> None:
    assert len(show(msgspec.json.encode(value), "application/json").html) < 3_000_000


def test_a_payload_of_many_levels_is_cut() -> None:
    assert "not shown" in show(b"[" * 100 + b"1" + b"]" * 100, None).html


def test_a_command_that_is_copied_quotes_what_the_message_has() -> None:
    message = wire.Message(
        id="1", sequence=1, partition=0, enqueued_at="", text="it's; rm -rf $HOME", key="a b", content_type="text/plain"
    )
    found = {snippet.title: snippet.code for snippet in snippets("http://h", "a/b", message)}
    assert "'\"'\"'" in found["curl"]
    assert "queues/a%2Fb/messages" in found["curl"]
    assert found["Command line"].startswith("holdfast --url http://h send a/b --as message '")
    compile(found["Python"], "snippet", "exec")
    message.text = "x" * (SHOWN_BYTES_MAX + 1)
    assert snippets("http://h", "q", message) == []


PROTO = """
syntax = "proto3";
package shop;
message Order {
  int64 number = 1; repeated Line lines = 2; map<string, string> tags = 3;
  message Note { string text = 1; }
}
message Line { string sku = 1; }
"""


@pytest.fixture
def descriptors(tmp_path: Path) -> Path:
    """A file of descriptors, as protoc writes it."""
    (tmp_path / "shop.proto").write_text(PROTO)
    file = tmp_path / "shop.desc"
    arguments = ["protoc", f"-I{tmp_path}", "--include_imports", f"--descriptor_set_out={file}", "shop.proto"]
    assert protoc.main(arguments) == 0
    return file


ORDER = b"\x08\x2a\x12\x05\x0a\x03A-1\x1a\x06\x0a\x01k\x12\x01v"


def test_protobuf_is_read_with_the_descriptors_that_are_given(descriptors: Path) -> None:
    types = ProtobufTypes(descriptors)
    assert types.names() == ["shop.Line", "shop.Order", "shop.Order.Note"]
    expected = {"number": "42", "lines": [{"sku": "A-1"}], "tags": {"k": "v"}}
    assert types.values(ORDER, "shop.Order") == expected
    for payload, name in ((b"\xff", "shop.Order"), (ORDER, "shop.Nothing"), (ORDER, "")):
        with pytest.raises(NoProtobuf):
            types.values(payload, name)
    descriptors.write_bytes(b"no descriptors, and longer")
    with pytest.raises(NoProtobuf, match="cannot be read"):
        types.names()
    descriptors.unlink()
    with pytest.raises(NoProtobuf, match="cannot be read"):
        types.names()
    assert named_by('application/x-protobuf; charset=x; messageType="shop.Order"') == "shop.Order"


async def test_a_message_is_shown_as_the_protobuf_that_it_is(tmp_path: Path, descriptors: Path) -> None:
    async with (
        serving(config_with(tmp_path, descriptors=descriptors)) as served,
        served.client() as client,
        served.http() as http,
    ):
        named = await client.send("orders", ORDER, content_type="application/x-protobuf; proto=shop.Order")
        bare = await client.send("orders", ORDER, content_type="application/x-protobuf")
        page = (await http.get(f"/queues/orders/messages/{named.id}")).text
        for text in ("A-1", ">number<", 'aria-current="true">Protobuf', "shop.Line"):
            assert text in page.replace("&#34;", ""), text
        page = (await http.get(f"/queues/orders/messages/{bare.id}")).text
        assert "choose the message" in page
        assert "A-1" in (await http.get(f"/queues/orders/messages/{bare.id}?as=protobuf&type=shop.Order")).text


async def test_without_descriptors_there_is_no_such_view(shop: Served) -> None:
    message_id = await first_id(shop, ORDERS)
    async with shop.http() as http:
        page = await http.get(f"/queues/shop%2Forders/messages/{message_id}?as=protobuf")
    assert page.status_code == 200
    assert "Protobuf" not in page.text


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everybody_can_use_it(view: Window, shop: Served, axe: str, scheme: str) -> None:
    await view.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    message_id = await first_id(shop, ORDERS)
    await view.page.goto(f"/queues/shop%2Forders/messages/{message_id}")
    await view.page.wait_for_selector(".timeline")
    await check_accessible(view, axe)
    await view.page.goto("/queues/shop%2Forders/messages")
    await check_accessible(view, axe)
    await view.page.goto("/queues/shop%2Forders/send")
    await check_accessible(view, axe)


async def test_every_action_with_a_browser(view: Window, shop: Served) -> None:
    name = ("default", "hand")
    await shop.node.queues.create(name)
    page = view.page
    await view.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto("/queues/hand")
    await page.get_by_role("link", name="Send").click()
    await page.fill("#payload", '{"colour": "größer"}')
    await page.fill("#key", "k")
    await page.get_by_role("button", name="Send").click()
    await page.get_by_text("The message is stored.").wait_for()
    await page.locator(".timeline").get_by_text("enqueued").wait_for()
    await page.get_by_role("link", name="Hex").click()
    await page.get_by_text("7b 22 63 6f").wait_for()
    await page.get_by_role("link", name="JSON").click()
    await page.locator(".j-text").get_by_text("größer").wait_for()
    await page.get_by_role("button", name="Copy").first.click()
    await page.get_by_role("button", name="Copied").wait_for()
    assert "curl -H" in await page.evaluate("navigator.clipboard.readText()")
    await page.fill("#priority", "7")
    await page.fill("#deliver_at", "2100-01-01T00:00:00Z")
    await page.get_by_role("button", name="Save").click()
    await page.get_by_text("The message was changed.").wait_for()
    _, message, _ = (await shop.node.inspection.browse(name, 1)).messages[0]
    assert (message.priority, message.deliver_at > 0) == (7, True)
    await view.keep("message-edited")
    await page.get_by_role("link", name="Messages", exact=True).click()
    await page.fill("input[name=key]", "none")
    await page.get_by_role("button", name="Show").click()
    await page.get_by_text("None fits.").wait_for()
    await page.get_by_role("link", name="Show all").click()
    await page.locator("tbody a").first.click()
    await page.get_by_role("link", name="Delete …").click()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_text("The message was deleted.").wait_for()
    assert shop.node.queues.depth(name) == 0
    await shop.node.queues.delete(name)


async def test_no_page_is_wider_than_a_phone(view: Window, shop: Served) -> None:
    await view.page.set_viewport_size({"width": 390, "height": 844})
    message_id = await first_id(shop, ORDERS)
    for path in ("messages", f"messages/{message_id}", "send"):
        await view.page.goto(f"/queues/shop%2Forders/{path}")
        assert await view.page.evaluate("document.documentElement.scrollWidth") <= 390
