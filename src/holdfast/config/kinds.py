"""What a setting can be. A kind reads a raw value, checks it, says what is allowed, and writes it back as text.

A kind stands in the annotation of a field in `settings.py`, so that the type, the range and the default of a setting
are one line. A raw value is whatever TOML, the environment (always text) or a flag gave. `read` raises ValueError
whose text completes "Setting x cannot be y: ...".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import ClassVar, Final, Protocol

from holdfast.config.secret import SecretText
from holdfast.error_text import SUGGESTED_LENGTH_MAX
from holdfast.files import local_path
from holdfast.units import TIB, format_duration, format_size, parse_duration, parse_size
from holdfast.web_address import URL_LENGTH_MAX, is_key_address, is_web_address


class Kind(Protocol):
    """One kind of setting."""

    @property
    def flag(self) -> str | None:
        """The command-line flag that sets it, for the few that have one."""

    def read(self, raw: object) -> object:
        """The checked value, or ValueError."""

    def allowed(self) -> str:
        """What may be written, for messages and documentation."""

    def show(self, value: object) -> str:
        """The value as one would write it."""


NONE: Final = "none"
UNSET: Final = ("", NONE)
"""How one writes that an optional setting is not set."""

_HOST: Final = re.compile(r"(\*\.)?[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")

RATE_MESSAGES_MAX: Final = 1_000_000_000
RATE_BYTES_MAX: Final = TIB
"""More a second than any node can take: a higher figure is a slip of the pen."""


@dataclass(frozen=True)
class Rate:
    """What one namespace may send; 0 is no limit."""

    namespace: str
    messages_per_second: int
    bytes_per_second: int

    def __str__(self) -> str:
        return f"{self.namespace}={self.messages_per_second}/{format_size(self.bytes_per_second)}"


@dataclass(frozen=True)
class Count:
    """A whole number in a range."""

    low: int
    high: int
    flag: str | None = None

    def read(self, raw: object) -> int:
        """Digits, with `_` between them where that helps the eye."""
        if isinstance(raw, str):
            try:
                raw = int(raw)
            except ValueError:
                raise ValueError(self._problem()) from None
        if isinstance(raw, bool) or not isinstance(raw, int) or not self.low <= raw <= self.high:
            raise ValueError(self._problem())
        return raw

    def _problem(self) -> str:
        return f"must be a whole number {self.allowed()}"

    def allowed(self) -> str:
        return f"from {self.low} to {self.high}"

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True)
class Duration:
    """Microseconds inside; `250ms`, `5s`, `2m`, `1h`, `7d` or a number of seconds outside. `or_zero`: 0 is good too,
    though it is below `low`."""

    low: int
    high: int
    flag: str | None = None
    or_zero: bool = False

    def read(self, raw: object) -> int:
        value = parse_duration(raw)
        if not self.low <= value <= self.high and not (self.or_zero and value == 0):
            raise ValueError(f"must be a duration {self.allowed()}")
        return value

    def allowed(self) -> str:
        return f"from {format_duration(self.low)} to {format_duration(self.high)}" + (", or 0" if self.or_zero else "")

    def show(self, value: object) -> str:
        return format_duration(value) if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Size:
    """Bytes inside; a number or `64MiB` outside."""

    low: int
    high: int
    flag: str | None = None

    def read(self, raw: object) -> int:
        value = parse_size(raw)
        if not self.low <= value <= self.high:
            raise ValueError(f"must be a size {self.allowed()}")
        return value

    def allowed(self) -> str:
        return f"from {format_size(self.low)} to {format_size(self.high)}"

    def show(self, value: object) -> str:
        return format_size(value) if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Switch:
    """True or false."""

    WORDS: ClassVar = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(
        ("false", "no", "off", "0"), False
    )
    flag: str | None = None

    def read(self, raw: object) -> bool:
        """A TOML boolean, or one of the usual words where everything is text."""
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        value = words.get(raw.lower()) if isinstance(raw, str) else raw
        if not isinstance(value, bool):
            raise ValueError(f"must be {self.allowed()}")
        return value

    def allowed(self) -> str:
        return "true or false"

    def show(self, value: object) -> str:
        return "true" if value else "false"


@dataclass(frozen=True)
class Choice:
    """One word of a few."""

    words: tuple[str, ...]
    flag: str | None = None

    def read(self, raw: object) -> str:
        if not isinstance(raw, str) or raw not in self.words:
            close = closest(raw, self.words)
            raise ValueError(f"must be {self.allowed()}" + (f"; did you mean {close}?" if close else ""))
        return raw

    def allowed(self) -> str:
        return " or ".join([", ".join(self.words[:-1]), self.words[-1]])

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True)
class Location:
    """A path. A relative one starts at the directory the server was started in; `~` is the user's home."""

    flag: str | None = None
    optional: bool = False

    def read(self, raw: object) -> Path | None:
        """The path, not looked at: whether it can be used is found out by who uses it."""
        if self.optional and raw in UNSET:
            return None
        if isinstance(raw, Path):
            raw = str(raw)
        if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
            raise ValueError("must be a path")
        return local_path(raw).expanduser()

    def allowed(self) -> str:
        return "a path, or none" if self.optional else "a path"

    def show(self, value: object) -> str:
        return NONE if value is None else str(value)


@dataclass(frozen=True)
class Text:
    """One line of text, or none."""

    length_max: int
    flag: str | None = None

    def read(self, raw: object) -> str:
        if not isinstance(raw, str) or len(raw) > self.length_max or not raw.isprintable():
            raise ValueError(f"must be {self.allowed()}")
        return "" if raw in UNSET else raw

    def allowed(self) -> str:
        return f"one line of at most {self.length_max} characters, or none"

    def show(self, value: object) -> str:
        return str(value) or NONE


@dataclass(frozen=True)
class KeyAddress:
    """A URL that keys are fetched from."""

    query: bool
    """Whether it may have one: the name of an issuer has none."""

    flag: str | None = None

    def read(self, raw: object) -> str:
        if raw in UNSET:
            return ""
        if not isinstance(raw, str) or not is_key_address(raw, self.query):
            raise ValueError(f"must be {self.allowed()}")
        return raw

    def allowed(self) -> str:
        without = "user and fragment" if self.query else "user, query and fragment"
        return f"an https URL without {without} (http for loopback addresses only), or none"

    def show(self, value: object) -> str:
        return str(value) or NONE


@dataclass(frozen=True)
class Secret:
    """Text that nobody but its user may see: it is hidden wherever settings are shown, and in error messages."""

    bytes_min: int
    bytes_max: int
    flag: None = None
    """Never a flag: the command line of a process is there for everybody on the machine to read."""

    def read(self, raw: object) -> SecretText:
        if isinstance(raw, str) and raw in UNSET:
            return SecretText("")
        if not isinstance(raw, str) or not self.bytes_min <= len(raw.encode()) <= self.bytes_max:
            raise ValueError(f"must be {self.allowed()}")
        return SecretText(raw)

    def allowed(self) -> str:
        return f"text of {self.bytes_min} to {self.bytes_max} bytes, or none"

    def show(self, value: object) -> str:
        return str(value) or NONE


@dataclass(frozen=True)
class SecretWebAddress(Secret):
    """An address to send to, all of which is hidden: its path and query are often the receiver's credentials."""

    bytes_min: int = 1
    bytes_max: int = URL_LENGTH_MAX

    def read(self, raw: object) -> SecretText:
        text = super().read(raw)
        if text and not is_web_address(text.reveal()):
            raise ValueError(f"must be {self.allowed()}")
        return text

    def allowed(self) -> str:
        return "an address with http:// or https://, or none"


@dataclass(frozen=True)
class SyslogAddress:
    """A syslog server: `udp://host:514`, `tcp://host:601` or `unix:///dev/log`."""

    flag: str | None = None

    def read(self, raw: object) -> str:
        if raw in UNSET:
            return ""
        scheme, _, where = raw.partition("://") if isinstance(raw, str) else ("", "", "")
        if scheme == "unix" and where.startswith("/") and where.isprintable():
            return f"unix://{where}"
        if scheme in ("udp", "tcp"):
            try:
                return f"{scheme}://{Address().read(where)}"
            except ValueError:
                pass
        raise ValueError(f"must be {self.allowed()}")

    def allowed(self) -> str:
        return "udp://host:port, tcp://host:port, unix:///path, or none"

    def show(self, value: object) -> str:
        return str(value) or NONE


class _ListKind(Protocol):
    @property
    def entries_max(self) -> int: ...
    def allowed(self) -> str: ...


def _entries(kind: _ListKind, raw: object) -> list[object]:
    """The entries of a setting with several: a text with commas, or in a file also a list."""
    if raw in UNSET:
        return []
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list) or len(parts) > kind.entries_max:
        raise ValueError(f"must be {kind.allowed()}")
    return parts


@dataclass(frozen=True)
class Rates:
    """Rates of namespaces: `acme=5000/10MiB` is 5,000 messages and 10 MiB a second, 0 stands for no limit."""

    entries_max: int
    flag: str | None = None

    def read(self, raw: object) -> tuple[Rate, ...]:
        """A text with commas, or in a file also a list of texts."""
        rates = tuple(self._entry(part) for part in _entries(self, raw))
        if len({rate.namespace for rate in rates}) != len(rates):
            raise ValueError("must name each namespace once")
        return rates

    def _entry(self, part: object) -> Rate:
        if not isinstance(part, str):
            raise ValueError(f"must be {self.allowed()}")
        namespace, _, limits = part.strip().rpartition("=")
        messages, slash, size = limits.partition("/")
        try:
            return Rate(
                namespace=Name().read(namespace),
                messages_per_second=Count(0, RATE_MESSAGES_MAX).read(messages),
                bytes_per_second=Size(0, RATE_BYTES_MAX).read(size) if slash else 0,
            )
        except ValueError:
            raise ValueError(f"must be {self.allowed()}") from None

    def allowed(self) -> str:
        return f"none, or up to {self.entries_max} times namespace=messages/bytes with commas between"

    def show(self, value: object) -> str:
        rates: tuple[Rate, ...] = value if isinstance(value, tuple) else ()
        return ", ".join(map(str, rates)) or NONE


@dataclass(frozen=True)
class Receivers:
    """Who may be called: `public`, `private`, networks (`10.0.0.0/8`) and hosts (`alerts.example`, `*.example`)."""

    entries_max: int
    flag: str | None = None

    def read(self, raw: object) -> tuple[str, ...]:
        """A text with commas, or in a file also a list of texts."""
        return tuple(self._entry(part) for part in _entries(self, raw))

    def _entry(self, part: object) -> str:
        text = part.strip().lower() if isinstance(part, str) else ""
        if _HOST.fullmatch(text) and not text.rpartition(".")[2].isdigit():
            return text
        try:
            return str(ip_network(text))
        except ValueError:
            raise ValueError(f"must be {self.allowed()}") from None

    def allowed(self) -> str:
        return f"none, or up to {self.entries_max} of public, private, networks and hosts with commas between"

    def show(self, value: object) -> str:
        return ", ".join(value if isinstance(value, tuple) else ()) or NONE


@dataclass(frozen=True)
class Networks:
    """Addresses and networks: `10.0.0.5, 10.1.0.0/16, 2001:db8::/32`."""

    entries_max: int
    flag: str | None = None

    def read(self, raw: object) -> tuple[str, ...]:
        """A text with commas, or in a file also a list of texts."""
        try:
            return tuple(str(ip_network(str(part).strip())) for part in _entries(self, raw))
        except ValueError:
            raise ValueError(f"must be {self.allowed()}") from None

    def allowed(self) -> str:
        return f"none, or up to {self.entries_max} addresses and networks with commas between"

    def show(self, value: object) -> str:
        return ", ".join(value if isinstance(value, tuple) else ()) or NONE


@dataclass(frozen=True)
class Address:
    """A host and a port to listen on: `127.0.0.1:8080`, `[::1]:8080`, `localhost:0` (any free port)."""

    flag: str | None = None
    optional: bool = False

    def read(self, raw: object) -> str:
        if self.optional and raw in UNSET:
            return ""
        host, colon, port = raw.rpartition(":") if isinstance(raw, str) else ("", "", "")
        bare = host.removeprefix("[").removesuffix("]")
        well_formed = bare and colon and port.isascii() and port.isdigit() and int(port) <= 65_535
        if not well_formed or set(bare) & set("[]/ \0") or (":" in bare and bare == host):
            raise ValueError(f"must be {self.allowed()}")
        return f"{host}:{int(port)}"

    def allowed(self) -> str:
        return "host:port, with an IPv6 address in brackets" + (", or none" if self.optional else "")

    def show(self, value: object) -> str:
        return str(value) if value or not self.optional else NONE


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address as `Address` reads it."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


@dataclass(frozen=True)
class Name:
    """A name of a namespace: 1 to 255 bytes, one level."""

    flag: str | None = None

    def read(self, raw: object) -> str:
        if isinstance(raw, str) and 1 <= len(raw.encode()) <= 255 and raw[0] != "$" and not set(raw) & set("/+#\0"):
            return raw
        raise ValueError(f"must be {self.allowed()}")

    def allowed(self) -> str:
        return "1 to 255 bytes without '/', '+', '#' or NUL, not starting with '$'"

    def show(self, value: object) -> str:
        return str(value)


def closest(wrong: object, known: Sequence[str]) -> str | None:
    """What was probably meant, for "did you mean". A long text is no slip of the pen."""
    if len(str(wrong)) > SUGGESTED_LENGTH_MAX:
        return None
    return next(iter(get_close_matches(str(wrong), known, n=1, cutoff=0.6)), None)
