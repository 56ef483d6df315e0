"""Durable queues as part of MQTT: topics below `$queue/` and `$admin/`, translated to the node's calls and back."""
