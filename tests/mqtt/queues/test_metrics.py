"""What the MQTT front counts, as `/metrics` shows it."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from holdfast.http_api.endpoints.metrics import described
from holdfast.mqtt.codec import V5, V311, Packet, PingReq, PubAck, Publish, PubRel, encode
from holdfast.mqtt.net.meter import KINDS, SERIES, Traffic
from tests.mqtt.codec.strategies import from_server
from tests.mqtt.queues.rig import Server


async def scrape(http: httpx.AsyncClient) -> dict[str, dict[str, float]]:
    """By name and the value of the one label."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families((await http.get("/metrics")).text):
        for sample in family.samples:
            if sample.name.startswith("holdfast_mqtt_"):
                label = next(iter(sample.labels.values()), "")
                found.setdefault(sample.name.removeprefix("holdfast_mqtt_"), {})[label] = sample.value
    return found


async def test_connections_sessions_packets_and_what_is_kept_are_counted(
    server: Server, http: httpx.AsyncClient
) -> None:
    client = await server.client("a", clean=False, expiry_s=600)
    other = await server.client("b")
    await client.subscribe("news/#")
    await client.subscribe("$queue/jobs", consumer_group="g")
    other.send(Publish("news/today", b"x" * 7, 1, retain=True, packet_id=9))
    await other.expect(PubAck)
    await other.publish("$queue/jobs", b"job")
    news = await client.expect(Publish, lambda packet: packet.topic == "news/today")
    job = await client.expect(Publish, lambda packet: packet.topic == "$queue/jobs")
    await client.ping()
    found = await scrape(http)
    assert (found["connections"], found["sessions"], found["subscriptions"]) == ({"": 2}, {"": 2}, {"": 2})
    assert (found["retained"], found["retained_bytes"], found["inflight"]) == ({"": 1}, {"": 17}, {"": 2})
    count_received, count_sent = found["packets_received_total"], found["packets_sent_total"]
    assert count_received == {"CONNECT": 2, "SUBSCRIBE": 2, "PUBLISH": 2, "PINGREQ": 1}
    assert count_sent == {"CONNACK": 2, "SUBACK": 2, "PUBLISH": 2, "PUBACK": 2, "PINGRESP": 1}
    client.accept(news)
    client.accept(job)
    await client.settle(job)
    client.vanish()
    while (found := await scrape(http))["connections"] == {"": 2}:
        pass
    assert (found["connections"], found["sessions"], found["inflight"]) == ({"": 1}, {"": 2}, {"": 0})
    assert found["packets_received_total"]["PUBACK"] == 2


async def test_what_does_not_reach_a_session_and_who_is_not_let_in_is_counted(
    server: Server, http: httpx.AsyncClient
) -> None:
    client = await server.client("a", packet_bytes_max=100)
    await client.subscribe("news")
    other = await server.client("b")
    await other.publish("news", b"x" * 1_000)
    client.send(PubRel(7), PingReq())
    client._writer.write(bytes([0xFF, 0]))  # there is no such packet
    await client.closed()
    found = await scrape(http)
    assert found["dropped_total"] == {"large": 1}
    assert found["violations_total"] == {"": 1}


async def test_every_series_is_there_under_its_documented_name(server: Server, http: httpx.AsyncClient) -> None:
    text = (await http.get("/metrics")).text
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE holdfast_mqtt_"))
    assert types == {name: kind for name, kind, _, _ in map(described, SERIES.values())}


@given(st.data(), st.sampled_from([V311, V5]))
def test_packets_are_counted_from_the_bytes_that_go_out(data: st.DataObject, version: int) -> None:
    packets: list[Packet] = data.draw(st.lists(from_server(version), max_size=8))
    traffic = Traffic()
    traffic.count_sent(b"".join(encode(packet, version) for packet in packets))
    sent = {KINDS[kind]: count for kind, count in enumerate(traffic.sent) if count}
    kinds = [type(packet).__name__.upper() for packet in packets]
    assert sent == {kind: kinds.count(kind) for kind in kinds}


@pytest.mark.parametrize("version", [V311, V5])
def test_large_packets_and_runs_of_answers_are_counted(version: int) -> None:
    traffic = Traffic()
    large = encode(Publish("t", b"\x40\x02" * 200_000), version)
    run = b"".join(encode(PubAck(number), version) for number in range(1, 101))
    traffic.count_sent(large + large)
    traffic.count_sent(run)
    traffic.count_sent(run[:4] + large)
    assert (traffic.sent[3], traffic.sent[4]) == (3, 101)
