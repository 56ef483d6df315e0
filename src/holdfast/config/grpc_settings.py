"""The settings of the gRPC front."""

from typing import Annotated

import msgspec

from holdfast.config.kinds import Address, Count, Duration, Size
from holdfast.units import GIB, HOUR, KIB, MIB, MILLISECOND, MINUTE


class GrpcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The gRPC services. They need `pip install "holdfast[grpc]"`."""

    listen: Annotated[str, Address(flag="--grpc", optional=True)] = ""
    """The address the gRPC services listen on, usually port 50051. Port 0 takes any free one, which the log then names.
    Empty: none, and gRPC's libraries are not loaded."""

    max_request_bytes: Annotated[int, Size(KIB, GIB)] = 16 * MIB
    """The largest message of a client: one request, or one batch of a stream. It is held in memory until its messages
    are stored: 16 MiB are 10,000 messages of 1.6 KiB. Clients send as much as they like by default, and receive 4
    MiB."""

    max_buffered_bytes: Annotated[int, Size(KIB, 64 * GIB)] = 256 * MIB
    """Requests and batches that were received and are being worked on, over all calls. Past it a request is refused as
    `overloaded`, and a stream is not read any further.

    As many requests as fit, of max_request_bytes, may take longer than a second to arrive; past that the oldest is
    refused, of the caller that has most. How much has arrived of the batch of a stream is not known: at worst each
    stream of clients who mean harm holds max_request_bytes, which quotas.long_polls bounds for a namespace."""

    max_connections: Annotated[int, Count(1, 1_000_000)] = 10_000
    """Connections at the same time. Further ones are closed. Those without calls end after a minute."""

    max_calls: Annotated[int, Count(1, 1_000_000)] = 1_000
    """Calls at the same time, not counting those that wait or stream. Past it a call is refused as `overloaded`."""

    max_streams: Annotated[int, Count(1, 1_000_000)] = 5_000
    """Streams and calls that wait for a delivery, at the same time. Each is a task with some 30 KiB, and a consumer may
    have stream_bytes of deliveries in memory."""

    stream_bytes: Annotated[int, Size(1, GIB)] = 4 * MIB
    """Payload bytes that a consuming stream may have unsettled, and those that a producing one may have unconfirmed:
    past it no further deliveries are sent, and no further batches are read, but one always is."""

    body_timeout: Annotated[int, Duration(100 * MILLISECOND, HOUR)] = MINUTE
    """How long the request of a call that is no stream may take to arrive, and the first one of a stream."""

    write_timeout: Annotated[int, Duration(100 * MILLISECOND, HOUR)] = MINUTE
    """How long a client may leave what it is sent unread before its call is ended, and what was leased for it
    released."""
