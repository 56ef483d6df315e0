"""Entries of batches: their ids, and how a refusal of one is reported."""

from __future__ import annotations

import re
from typing import Final

from holdfast.http_api.dialects.sqs.refusals import Refusal
from holdfast.http_api.dialects.sqs.shapes import EntryError

ENTRIES_MAX: Final = 10

_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


def check_entries(ids: list[str]) -> None:
    """Raises Refusal for a batch that is wrong as a whole."""
    if not ids:
        raise Refusal("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(ids) > ENTRIES_MAX:
        raise Refusal(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent {len(ids)}.",
        )
    for entry_id in ids:
        if not _ID.fullmatch(entry_id):
            raise Refusal(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores."
                " It can be at most 80 letters long.",
            )
    if len(set(ids)) < len(ids):
        raise Refusal("BatchEntryIdsNotDistinct", "Two or more batch entries in the request have the same id.")


def entry_error(entry_id: str, refusal: Refusal) -> EntryError:
    return EntryError(id=entry_id, sender_fault=refusal.sender_fault, code=refusal.query_code, message=refusal.message)
