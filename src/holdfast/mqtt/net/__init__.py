"""The running MQTT front: listeners over TCP, TLS and WebSocket around the pure hub."""

from holdfast.mqtt.net.front import MqttFront

__all__ = ["MqttFront"]
