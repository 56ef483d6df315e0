"""The HTTP front: translates requests to calls of the node, and its answers back. It holds no queue rules."""

from holdfast.http_api.server.front import HttpFront as HttpFront
