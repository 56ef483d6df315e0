"""Connections, requests and responses: HTTP itself, without queues."""
