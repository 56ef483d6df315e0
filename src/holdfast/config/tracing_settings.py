"""The settings of tracing, in the way of `settings`."""

from typing import Annotated

import msgspec

from holdfast.config.kinds import Count, Switch, Text


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """OpenTelemetry: spans of what the server does with messages, sent to a collector. Needs `holdfast[otel]`.

    The context of a trace travels with messages whether this is on or not."""

    enabled: Annotated[bool, Switch()] = False
    """Whether the server records spans and sends them. Off it costs nothing: not even a check for each message."""

    endpoint: Annotated[str, Text(2_048)] = ""
    """Where spans are sent by OTLP over HTTP, as `http://collector:4318/v1/traces`. Empty: what the variables
    `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` and `OTEL_EXPORTER_OTLP_ENDPOINT` say, else port 4318 of this machine. Headers
    and certificates are taken from OpenTelemetry's variables too."""

    new_traces_percent: Annotated[int, Count(0, 100)] = 100
    """Of a hundred messages that bring no trace context, for how many the server begins a trace. A message that brings
    one is recorded if its producer records it. A recorded message takes some 100 µs more of the server's time, so
    lower this where many a second come without."""
