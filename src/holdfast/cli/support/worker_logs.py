"""Log lines of `holdfast worker`, for a person or for a machine. Lines of a job's code say which job it is."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

from holdfast.escapes import escape_controls
from holdfast.trace_context import find, log_fields

FIELDS = ("job", "queue", "attempt", "trace_id", "span_id", "process")
"""What a line of a job says of it."""


def configure(level: str, shape: str, process: str | None) -> None:
    """Set up logging to standard error. `process` is the number of this one of several."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_JobFields(process))
    handler.setFormatter(_Json() if shape == "json" else _Console("%(asctime)s [%(levelname)s] %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _JobFields(logging.Filter):
    """Adds what the code that logs works on."""

    def __init__(self, process: str | None) -> None:
        super().__init__()
        self._process = process

    def filter(self, record: logging.LogRecord) -> bool:
        from holdfast.client import handled_message  # noqa: PLC0415

        message = handled_message()
        known: dict[str, object] = {"process": self._process}
        if message is not None:
            known |= {"job": message.id, "queue": message.queue, "attempt": message.attempt}
            texts = [(name, text) for name, text in message.properties.items() if isinstance(text, str)]
            known |= log_fields(find(texts))
        for name in FIELDS:
            if not hasattr(record, name) or name == "process":  # logging has a number of its own there
                setattr(record, name, known.get(name))
        return True


class _Console(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        fields = "".join(f" {name}={value}" for name in FIELDS if (value := getattr(record, name)) is not None)
        return super().formatMessage(record) + fields


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": escape_controls(record.getMessage()),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name)) is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
