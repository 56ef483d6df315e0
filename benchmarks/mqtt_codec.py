"""The MQTT codec: microseconds a packet, beside paho-mqtt's decoder and the mqtt5 package in the same run.

Each figure is the best of many short rounds, so that what else the machine does falls out. The others do less: neither
takes a stream apart, paho's checks little, and mqtt5 (compiled Rust) speaks one version.

    python -m benchmarks.mqtt_codec
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from holdfast.mqtt.codec import (
    NO_PROPERTIES,
    V5,
    Decoder,
    PreparedPublish,
    Properties,
    PubAck,
    Publish,
    encode,
    encode_puback,
    encode_pubacks,
    encode_publish,
)  # fmt: skip

RUN = 100  # packets a read: what a publisher with a window of 100 gives
ROUNDS = 300
BUDGET_PUBLISH_US = 2.0
BUDGET_PUBACK_US = 0.5

PAYLOAD = bytes(256)
TOPIC = "$queue/tasks/image"
PLAIN = Publish(TOPIC, PAYLOAD, 1, 77)
WITH_PROPERTIES = Publish(
    TOPIC,
    PAYLOAD,
    1,
    77,
    properties=Properties(
        content_type="application/json", user_properties=(("message-id", "9f3a12c4"), ("priority", "5"))
    ),
)


def best_us(work: Callable[[], object], packets: int) -> float:
    """Microseconds a packet of the fastest round."""
    fastest = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        work()
        fastest = min(fastest, time.perf_counter_ns() - started)
    return fastest / packets / 1000


def repeat(work: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(RUN):
            work()

    return run


def decoding(raw: bytes) -> float:
    decoder = Decoder(V5)
    data = raw * RUN
    return best_us(lambda: decoder.feed(data), RUN)


def paho_decoding(raw: bytes, name: str) -> float:
    packets: Any = importlib.import_module("paho.mqtt._packet")
    version = importlib.import_module("paho.mqtt.enums").MQTTProtocolVersion.MQTTv5
    decode = getattr(packets, f"decode_{name}")
    body = raw[3:] if raw[1] > 127 else raw[2:]
    return best_us(repeat(lambda: decode(raw[0], body, version)), RUN)


def mqtt5_decoding(raw: bytes) -> float:
    read: Any = importlib.import_module("mqtt5").read
    view = memoryview(raw)
    return best_us(repeat(lambda: read(view)), RUN)


def mqtt5_encoding(name: str, *fields: object, **named: object) -> float:
    package: Any = importlib.import_module("mqtt5")
    make = getattr(package, name)
    return best_us(repeat(lambda: make(*fields, **named).write()), RUN)


def line(what: str, ours: float, budget: float | None = None, **others: float) -> None:
    compared = "".join(f"   {name} {us:6.2f} µs (ours {us / ours:4.1f} × as fast)" for name, us in others.items())
    limit = "" if budget is None else f"   budget {budget:.1f} µs"
    print(f"  {what:<34} {ours:6.2f} µs{limit}{compared}")


def main() -> None:
    print(f"MQTT codec, v5, {len(PAYLOAD)} B payloads, reads of {RUN} packets, best of {ROUNDS} rounds")
    plain, rich = encode(PLAIN, V5), encode(WITH_PROPERTIES, V5)
    ack, long_ack = encode_puback(77), encode(PubAck(77, 0x97), V5)
    qos: Any = importlib.import_module("mqtt5").QoS(1)
    pairs = list(WITH_PROPERTIES.properties.user_properties)
    print(" decode")
    line(
        "PUBLISH QoS 1, no properties",
        decoding(plain),
        BUDGET_PUBLISH_US,
        paho=paho_decoding(plain, "publish"),
        mqtt5=mqtt5_decoding(plain),
    )
    line("PUBLISH, 3 properties", decoding(rich), paho=paho_decoding(rich, "publish"), mqtt5=mqtt5_decoding(rich))
    line("PUBACK", decoding(ack), BUDGET_PUBACK_US, paho=paho_decoding(ack, "puback"), mqtt5=mqtt5_decoding(ack))
    line("PUBACK with a reason code", decoding(long_ack), mqtt5=mqtt5_decoding(long_ack))
    decoder = Decoder(V5)
    line("PUBLISH alone in its read", best_us(repeat(lambda: decoder.feed(plain)), RUN))
    print(" encode")
    new = mqtt5_encoding("PublishPacket", TOPIC, PAYLOAD, qos=qos, packet_id=77)
    line("PUBLISH QoS 1, no properties", best_us(repeat(lambda: encode_publish(PLAIN, V5)), RUN), mqtt5=new)
    rich_us = best_us(repeat(lambda: encode_publish(WITH_PROPERTIES, V5)), RUN)
    new = mqtt5_encoding(
        "PublishPacket", TOPIC, PAYLOAD, qos=qos, packet_id=77, content_type="application/json", user_properties=pairs
    )
    line("PUBLISH, 3 properties", rich_us, mqtt5=new)
    prepared = PreparedPublish(TOPIC, PAYLOAD, NO_PROPERTIES, V5)
    line("PUBLISH to one more subscriber", best_us(repeat(lambda: prepared.encode(1, 77)), RUN))
    line("PUBACK", best_us(repeat(lambda: encode_puback(77)), RUN), mqtt5=mqtt5_encoding("PubAckPacket", 77))
    ids = list(range(1, RUN + 1))
    line("PUBACK in a run", best_us(lambda: encode_pubacks(ids), RUN))


if __name__ == "__main__":
    main()
