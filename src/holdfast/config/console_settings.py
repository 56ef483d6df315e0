"""The settings of the console, in the way of `settings`."""

from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.config.kinds import Count, Duration, Location, Switch
from holdfast.units import DAY, HOUR, MINUTE


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The console: pages for people, at `/` of the HTTP server."""

    enabled: Annotated[bool, Switch()] = True
    """Whether the server has the pages. Without them `/` is not found; the API is the same."""

    read_only: Annotated[bool, Switch()] = False
    """Whether the pages show and change nothing, whatever a caller's scopes allow. A person can choose the same for one
    session when signing in."""

    session_age: Annotated[int, Duration(MINUTE, 30 * DAY)] = 12 * HOUR
    """How long somebody stays signed in, at most. Twelve hours are a day's work. A session ends earlier with the
    credential that it was opened with, and when the server stops."""

    session_idle: Annotated[int, Duration(MINUTE, 30 * DAY)] = 2 * HOUR
    """How long a session lasts that nobody uses. A page that is open and shows live numbers is being used."""

    max_sessions: Annotated[int, Count(1, 100_000)] = 1_000
    """Sessions at a time; the one that was unused for longest makes room for another. Only who has a credential can
    open one, and one person has 20 at most."""

    max_live: Annotated[int, Count(1, 10_000)] = 200
    """Pages that are open and updated live, over all callers. Each is a connection; an update of a page takes some
    milliseconds every two seconds."""

    sampled_queues: Annotated[int, Count(0, 100_000)] = 500
    """Queues whose rates and depths are kept for plots, for seven days, the most recently active ones: 25 KiB of memory
    each, and as much on disk. 0 keeps the sums over a namespace only."""

    reports: Annotated[Path, Location()] = Path("reports")
    """Where the pipeline's HTML reports are that the page *Lake* shows, relative to `journal.directory`: write them
    with `holdfast pipeline report --html`. Who may look at the server (`node`) sees them."""

    descriptors: Annotated[Path | None, Location(optional=True)] = None
    """A file of protobuf descriptors, with which the console shows payloads: what `protoc --include_imports
    --descriptor_set_out=FILE` writes. A message's type is that in its content type (`application/x-protobuf;
    proto=shop.Order`), or chosen on its page. Needs the package `protobuf`. A change is seen without a restart."""
