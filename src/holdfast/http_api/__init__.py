"""The HTTP front: translates requests to calls of the node, and its results to responses. It holds no queue rules."""

from holdfast.http_api.server.connection import Upgrade as Upgrade
from holdfast.http_api.server.front import HttpFront as HttpFront
