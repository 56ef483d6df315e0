"""The user's options, with their defaults, validated."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from pyspark_holdfast.wire import Server

OPTIONS = {
    "url": "http://127.0.0.1:8080",
    "token": "",
    "tokenFile": "",
    "namespace": "",
    "queue": "",
    "view": "messages",
    "group": "",
    "startingOffsets": "earliest",
    "endingOffsets": "latest",
    "maxMessagesPerTrigger": "100000",
    "maxBytesPerTrigger": "",
    "minPartitions": "0",
    "failOnDataLoss": "true",
    "columns": "",
    "includeProperties": "true",
    "pushdown": "false",
    "delivery": "transactional",
    "transactionId": "",
    "batchRows": "10000",
    "ratePerSecond": "",
    "retryTimeout": "120",
}
_NAMES = {name.lower(): name for name in OPTIONS}
_ASYNCHRONOUS = "asyncprogresstrackingenabled"
_SPARKS_OWN = {"path", "checkpointlocation", "queryname"}

VIEWS = ("messages", "deliveries", "dead_letters")
_PROPERTIES = {"true": "map", "array": "array", "false": "none"}
DELIVERIES = ("transactional", "idempotent", "atLeastOnce")

BATCH_ROWS_MAX = 100_000
TRANSACTION_BYTES_MAX = 255
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

Place = str | datetime | dict[int, int]
"""`earliest`, `latest`, an instant, or by partition a sequence."""


class Options:
    """See the module. Opens no connection before it is used."""

    def __init__(self, given: Mapping[str, str]) -> None:
        given_options = {name.lower(): value for name, value in given.items()}
        if given_options.pop(_ASYNCHRONOUS, "false").lower() != "false":
            raise ValueError(
                "holdfast: asyncProgressTrackingEnabled must stay off: the broker would remove messages before Spark"
                " has noted that it has read them"
            )
        for name in sorted(set(given_options) - set(_NAMES) - _SPARKS_OWN):
            close = difflib.get_close_matches(name, _NAMES, 1)
            meant = f"; did you mean {_NAMES[close[0]]}?" if close else ""
            raise ValueError(f"holdfast: unknown option {name!r}{meant} Known are {', '.join(OPTIONS)}")
        chosen = {name: given_options.get(name.lower(), default) for name, default in OPTIONS.items()}
        self.queue = chosen["queue"] or given_options.get("path", "")
        self.group = chosen["group"]
        self.view = _one_of("view", chosen["view"], VIEWS)
        self.starting = _place("startingOffsets", chosen["startingOffsets"])
        self.ending = _place("endingOffsets", chosen["endingOffsets"])
        self.max_messages = _number("maxMessagesPerTrigger", chosen["maxMessagesPerTrigger"], 1)
        self.max_bytes = _size("maxBytesPerTrigger", chosen["maxBytesPerTrigger"])
        self.min_partitions = _number("minPartitions", chosen["minPartitions"], 0, 10_000)
        self.fail_on_loss = _flag("failOnDataLoss", chosen["failOnDataLoss"])
        self.columns = [name.strip() for name in chosen["columns"].split(",") if name.strip()]
        self.properties = _PROPERTIES[
            _one_of("includeProperties", chosen["includeProperties"].lower(), tuple(_PROPERTIES))
        ]
        self.pushdown = _flag("pushdown", chosen["pushdown"])
        self.delivery = _one_of("delivery", chosen["delivery"], DELIVERIES)
        self.transaction = chosen["transactionId"]
        if len(self.transaction.encode()) > TRANSACTION_BYTES_MAX:
            raise ValueError(f"holdfast: option transactionId is at most {TRANSACTION_BYTES_MAX} bytes")
        if self.transaction and self.delivery != "transactional":
            raise ValueError(f"holdfast: option transactionId means nothing with delivery {self.delivery}")
        self.batch_rows = _number("batchRows", chosen["batchRows"], 1, BATCH_ROWS_MAX)
        rate = chosen["ratePerSecond"]
        self.rate = _number("ratePerSecond", rate, 1) if rate else 0
        if not chosen["url"].startswith(("http://", "https://")):
            raise ValueError(f"holdfast: option url is http://host:port or https://host:port, not {chosen['url']!r}")
        retry = _number("retryTimeout (seconds)", chosen["retryTimeout"], 0)
        if chosen["token"] and chosen["tokenFile"]:
            raise ValueError("holdfast: options token and tokenFile cannot be given together: choose one")
        self.server = Server(chosen["url"], chosen["token"] or None, retry, chosen["tokenFile"] or None)
        self.namespace = chosen["namespace"]

    def need(self, *names: str) -> None:
        for name in names:
            if not getattr(self, name):
                raise ValueError(f"holdfast: option {name!r} is needed here: .option({name!r}, …)")

    def check_namespace(self) -> None:
        """A credential belongs to one namespace: the option must name that one."""
        if self.namespace:
            found = self.server.namespace(self.queue)
            if found not in (None, self.namespace):
                raise ValueError(
                    f"holdfast: the token is for namespace {found!r}, not {self.namespace!r}; use a token of that one"
                )


def _number(name: str, value: str, low: int, high: int = 1 << 53) -> int:
    if not value.isdecimal() or not low <= int(value) <= high:
        limit = f" to {high}" if high < 1 << 53 else ""
        raise ValueError(f"holdfast: option {name} is a whole number from {low}{limit}, not {value!r}")
    return int(value)


def _size(name: str, value: str) -> int:
    """Bytes; 0: no limit."""
    if not value:
        return 0
    match = _SIZE.fullmatch(value.strip())
    if match is None or not int(match[1]):
        raise ValueError(f"holdfast: option {name} is a size such as 64m or 1048576, not {value!r}")
    return int(match[1]) * _UNITS[match[2].lower()]


def _flag(name: str, value: str) -> bool:
    return _one_of(name, value.lower(), ("true", "false")) == "true"


def _one_of(name: str, value: str, words: tuple[str, ...]) -> str:
    for word in words:
        if value.lower() == word.lower():
            return word
    raise ValueError(f"holdfast: option {name} is {', '.join(words[:-1])} or {words[-1]}, not {value!r}")


def _place(name: str, value: str) -> Place:
    if value in ("earliest", "latest"):
        return value
    try:
        if value.lstrip().startswith("{"):
            given = {int(partition): int(sequence) for partition, sequence in json.loads(value).items()}
            if all(partition >= 0 and sequence >= 1 for partition, sequence in given.items()):
                return given
        else:
            found = datetime.fromisoformat(value)
            return found if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, AttributeError, TypeError):
        pass
    raise ValueError(
        f"holdfast: option {name} is earliest, latest, an instant such as 2026-03-01T12:00:00Z, or JSON of partition "
        f'to sequence such as {{"0": 17}}, not {value!r}'
    )
