"""What a database must be like to hold queues. Each refusal says what is wrong and what to do.

A database that does not sync loses confirmed messages in a power cut, and nobody would notice before.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import DatabaseUnsuitable
from holdfast.store.postgres.session import DatabaseSession

OLDEST_SERVER: Final = 14  # the oldest that is still maintained
CHECK_SECONDS: Final = 10.0

_LOOK = """
SELECT pg_backend_pid(), current_setting('fsync'), current_setting('full_page_writes'),
       current_setting('server_encoding'), current_setting('server_version_num'),
       coalesce((SELECT string_agg(application_name, ', ') FROM pg_stat_replication WHERE sync_state = 'async'), '')
"""


def check(session: DatabaseSession, database: str) -> list[str]:
    """Refuse a database that cannot hold queues. Returns warnings about one that can."""
    values = [(value or b"").decode() for value in session.script(_LOOK, CHECK_SECONDS)[0]]
    pid, fsync, full_pages, encoding, version, followers = values

    def refuse(problem: str, advice: str) -> DatabaseUnsuitable:
        return DatabaseUnsuitable(database=database, problem=problem, advice=advice)

    if int(pid) != session.server_pid:
        raise refuse(
            "there is a pooler between, which may give every transaction another session of the server",
            "Let store.url name PostgreSQL itself: Holdfast keeps a few connections open and needs no pooler",
        )
    if int(version) < OLDEST_SERVER * 10_000:
        raise refuse(f"it is PostgreSQL {int(version) // 10_000}", f"Upgrade it to PostgreSQL {OLDEST_SERVER} or newer")
    if fsync == "off":
        raise refuse("fsync is off: a power cut may destroy it", "Set fsync = on in postgresql.conf and reload it")
    if full_pages == "off":
        raise refuse(
            "full_page_writes is off: a power cut may destroy it",
            "Set full_page_writes = on in postgresql.conf and reload it",
        )
    if encoding != "UTF8":
        raise refuse(
            f"its encoding is {encoding}: names of queues may be any Unicode",
            "Create one with it: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )
    if followers:
        risk = "if that takes over, confirmed messages may be missing, and Holdfast stops with store_went_back"
        return [f"its standby {followers} is asynchronous: {risk}. Set synchronous_standby_names to exclude that"]
    return []
