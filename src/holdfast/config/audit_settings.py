"""The settings of the audit log, in the way of `settings`."""

from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.config.kinds import Count, Duration, Location, SecretWebAddress, Size, Switch, SyslogAddress
from holdfast.config.secret import SecretText
from holdfast.units import DAY, GIB, KIB, MIB


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The audit log: one JSON line for each administrative act, who did what, when, and how it ended."""

    enabled: Annotated[bool, Switch()] = True
    """Whether it is written. When it is off, there is no record of who deleted a queue."""

    file: Annotated[Path, Location()] = Path("audit.log")
    """Where it is written, relative to data_dir. An absolute path puts it on another disk."""

    file_bytes: Annotated[int, Size(64 * KIB, 4 * GIB)] = 16 * MIB
    """A file is closed and numbered at this size. A line has about 300 bytes, so 16 MiB are some 50,000 acts."""

    refusals_per_minute: Annotated[int, Count(1, 1_000_000)] = 60
    """Acts that failed or were refused and are written in a minute; the rest is counted in the line after. Who is
    refused again and again must not push what was done out of the files: 60 a minute fill 160 MiB in six days."""

    logins_per_minute: Annotated[int, Count(1, 1_000_000)] = 600
    """Logins that succeeded and are written in a minute; the rest is counted in the line after. A credential is written
    when it is checked, not each time that it is used again."""

    files: Annotated[int, Count(1, 1_000)] = 10
    """Files kept, with the current one; the oldest is deleted if it is older than `keep`. Ten of 16 MiB are 160 MiB."""

    keep: Annotated[int, Duration(0, 3_650 * DAY)] = 90 * DAY
    """How long an entry is kept at least, however many there are: nobody can push an entry out by adding others. While
    files are younger there are more than `files`, and the log warns."""

    webhook: Annotated[SecretText, SecretWebAddress()] = SecretText("")
    """Where entries are sent too, as a POST of JSON lines (`application/x-ndjson`), at most 500 lines and 1 MiB at a
    time. They come in order and at least once, and are known by their `number`. Anything but a 2xx is sent again, after
    1 s to 60 s, for as long as the server runs; it continues after a restart. A new receiver gets the whole log first.
    A user and password in the address are sent; all of it is hidden. `webhooks.allow` does not apply to it."""

    syslog: Annotated[str, SyslogAddress()] = ""
    """The syslog server that entries are sent to as well, one RFC 5424 message each: `udp://host:514`,
    `tcp://host:601` (octet counting) or `unix:///dev/log`. In order and continued after a restart, like `webhook`. TCP
    is sent again until the other system has acknowledged it; of UDP nobody knows what arrives, and an entry is cut
    at 65,000 bytes."""
