"""What the MQTT front counts, as `/metrics` shows it."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from holdfast.errors import StoreUnavailable
from holdfast.http_api.endpoints.metrics import described
from holdfast.mqtt.codec import PingReq, PubAck, Publish, PubRel
from holdfast.mqtt.net.meter import SERIES
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


async def test_packets_that_are_sent_together_are_counted_one_by_one(server: Server, http: httpx.AsyncClient) -> None:
    client = await server.client("a", packet_bytes_max=400)
    other = await server.client("b")
    await client.subscribe("$queue/jobs", consumer_group="g")
    sizes = (1, 2, 1_000, 3)  # one is too large for the client
    other.send(*(Publish("$queue/jobs", b"x" * size, 1, packet_id=size) for size in sizes))
    for _ in sizes:
        await other.expect(PubAck)
    for _ in range(3):
        await client.expect(Publish)
    assert (await scrape(http))["packets_sent_total"] == {"CONNACK": 2, "SUBACK": 1, "PUBLISH": 3, "PUBACK": 4}


async def test_packets_of_before_a_failure_of_the_store_stay_counted(server: Server, http: httpx.AsyncClient) -> None:
    client = await server.client("a")
    await client.ping()
    server.node.cell.commit.fail(StoreUnavailable(problem="a test"))
    assert (await scrape(http))["packets_sent_total"] == {"CONNACK": 1, "PINGRESP": 1}
