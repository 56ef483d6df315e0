"""How log lines look and where they go: standard error, for a person or for a machine.

Everybody logs through `structlog.get_logger()`; only the server calls `configure`. Lines of libraries that use the
standard logging take the same shape, so that a machine reading the log has one format to understand.
"""

from __future__ import annotations

import logging
import sys

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from holdfast.config import LogSettings
from holdfast.config.secret import HIDDEN, is_secret_name
from holdfast.escapes import escape_controls

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(settings: LogSettings) -> None:
    """Set up logging for the whole process."""
    level = _LEVELS[settings.level]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide_secrets,
        _escape,
    ]
    rendering = _rendering(settings.format)

    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    # Libraries log every step at `info`: shown at the level `debug` only.
    logging.basicConfig(handlers=[handler], level=level if level == logging.DEBUG else logging.WARNING, force=True)


def _hide_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The last line of defence: nobody should log a password, and if somebody does it is not shown."""
    for name in event:
        if is_secret_name(name):
            event[name] = HIDDEN
    return event


def _escape(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """What callers sent cannot do anything to the terminal, nor begin a line of its own."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = escape_controls(value).replace("\n", "\\n")
    return event


def _rendering(shape: str) -> list[Processor]:
    if shape == "console":
        # The library's own tracebacks show the values of variables: payloads, passwords.
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=30, exception_formatter=plain)]
    return [structlog.processors.format_exc_info, _json]


def _json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    ordered = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return msgspec.json.encode(ordered | dict(event), enc_hook=str).decode()
