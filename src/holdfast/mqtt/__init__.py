"""The MQTT front: rules of the standards, codec, topics, sessions and queues (pure), and `net` (not pure)."""
