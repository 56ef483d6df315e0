"""Errors of the store and of the journal's lake, and of what copies them."""

from __future__ import annotations

from holdfast.errors.base import HoldfastError


class StoreError(HoldfastError):
    """The store failed: {problem}."""

    code = "store_error"
    http = 503
    mqtt = 0x88
    grpc = "UNAVAILABLE"


class StoreUnavailable(StoreError):
    """The store could not take the write: {problem}. It may or may not have been stored; nothing was confirmed. The
    node refuses writes until the store works again. Retry with the same message_id so that nothing doubles."""

    code = "store_unavailable"
    retryable = True


class StoreAway(StoreUnavailable):
    """The store does not answer: {problem}. Nothing was changed. Retry in a moment; what needs nothing that only the
    store has goes on meanwhile."""

    code = "store_away"


class CopyUnsupported(StoreError):
    """The {store} store cannot be copied while it works. Run the node on the rocks store, which can."""

    code = "copy_unsupported"
    http = 409
    grpc = "FAILED_PRECONDITION"


class SnapshotFailed(StoreError):
    """The snapshot could not be taken: {problem}. Nothing was changed; try again."""

    code = "snapshot_failed"
    retryable = True


class StoreFull(StoreUnavailable):
    """The disk holding {path} became full during a write. It may or may not have been stored; nothing was confirmed.
    Leases and settlements go on as soon as the store can be opened again, new messages when there is room for them."""

    code = "store_full"
    http = 507


class StoreReadOnly(StoreUnavailable):
    """{path} cannot be written: {problem}. Give the server's user write permission, or choose another --data-dir."""

    code = "store_read_only"


class StoreLocked(StoreError):
    """{path} is in use by another process{holder}. Stop that one first, or choose another --data-dir."""

    code = "store_locked"


class StoreCorrupt(StoreError):
    """{path} is damaged: {problem}. Nothing was changed. Restore it from a backup, or stop the server and have
    `holdfast store salvage` make a new data directory of what can be read; `holdfast store check` looks for more."""

    code = "store_corrupt"


class StoreWentBack(StoreError):
    """The {store} store has lost what it had confirmed: batch {confirmed} was stored, it ends with {found} now. Most
    likely a replica that lacked it took over. Nothing more is written. Bring the store back that has it; if it is
    gone, restart the server to go on with what is left: the journal in the lake says what is missing."""

    code = "store_went_back"


class FormatUnknown(StoreError):
    """{path} was written in format {found}; this version reads formats up to {known}. Install a newer Holdfast."""

    code = "format_unknown"


class FormatTooOld(StoreError):
    """{path} was written in format {found}; this version reads formats {oldest} to {known}. Nothing was changed.
    First start a version on it that reads format {found} and writes a later one, or choose another --data-dir."""

    code = "format_too_old"


class DatabaseUnsuitable(StoreError):
    """{database} cannot hold queues: {problem}. {advice}."""

    code = "database_unsuitable"


class DatabaseUnreachable(StoreUnavailable):
    """{database} cannot be reached: {problem}. Check the address in store.url, that PostgreSQL runs there, and that it
    lets this user in (pg_hba.conf, password)."""

    code = "database_unreachable"


class LakeUnavailable(StoreError):
    """The journal cannot be written to {path}: {problem}. It stays in the store, which grows until this works again:
    make room, or give the server's user the right to write there."""

    code = "lake_unavailable"
    retryable = True


class LakeFull(LakeUnavailable):
    """The journal is not written to {path}: {free_bytes} bytes are left on the disk, which the store needs to lease and
    settle ({kept_bytes} and its reserve). It stays in the store until there is more. Make room, or give the lake a disk
    of its own (journal.directory)."""

    code = "lake_full"


class LakeUnreadable(StoreError):
    """The journal's lake cannot be read now: {problem}. Nothing was changed; retry in a moment. If it stays so, look at
    the disk that holds the lake (journal.directory)."""

    code = "lake_unreadable"
    retryable = True


class LakeDamaged(StoreError):
    """The journal's lake is damaged at {path}: {problem}. Nothing was changed, and the journal stays in the store.
    Restore the lake from a backup, or move it aside to start a new one."""

    code = "lake_damaged"


class Fenced(StoreError):
    """Another node has taken over (epoch {current}); writes under epoch {epoch} are refused. This node must stop."""

    code = "fenced"


class StoreUnfinished(StoreError):
    """The {store} store was being filled by a copy or a restore that has not ended: it lacks records. Run that again,
    with --replace."""

    code = "store_unfinished"


class StoreInUse(StoreError):
    """{store} is in use by a running server. Stop that first: what it writes meanwhile would be missing."""

    code = "store_in_use"
    http = 409
    grpc = "FAILED_PRECONDITION"


class StoreNotEmpty(StoreError):
    """{store} has records already, and nothing was changed. Choose another one, or say --replace, and what it has is
    lost."""

    code = "store_not_empty"
    http = 409
    grpc = "FAILED_PRECONDITION"


class BackupFailed(StoreError):
    """The backup was not made: {problem}. Nothing was changed on the server; run it again, and it sends only what is
    not there yet."""

    code = "backup_failed"
    retryable = True


class BackupUnwritable(StoreError):
    """No backup can be written to {path}: {problem}."""

    code = "backup_unwritable"


class BackupNotFound(StoreError):
    """{path} cannot be restored from: {problem}."""

    code = "backup_not_found"
    http = 404
    grpc = "NOT_FOUND"


class BackupDamaged(StoreError):
    """The backup is damaged at {path}: {problem}. `holdfast backup verify` says what of which backups is whole."""

    code = "backup_damaged"


class RestoreRefused(StoreError):
    """Nothing was restored: {problem}. {advice}"""

    code = "restore_refused"
    http = 409
    grpc = "FAILED_PRECONDITION"
