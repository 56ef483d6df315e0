"""Dead letters that died of the same cause, counted together: the same clusters as `holdfast pipeline triage` has."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast import wire
from holdfast.fingerprints import error_pattern, fingerprint_of, payload_shape

EXAMPLES: Final = 3


class Cluster(msgspec.Struct):
    """Dead letters with the same fingerprint."""

    fingerprint: str
    source_queue: str
    reason: str
    error_pattern: str
    payload_shape: str
    error: str
    ids: list[str]
    """Oldest first."""
    first_at: str
    last_at: str

    @property
    def count(self) -> int:
        return len(self.ids)

    @property
    def examples(self) -> list[str]:
        """The newest."""
        return self.ids[: -EXAMPLES - 1 : -1]


def clusters(dead_letters: list[wire.MessageView]) -> list[Cluster]:
    """By queue and fingerprint, the most frequent first."""
    found: dict[tuple[str, str], Cluster] = {}
    for dead_letter in dead_letters:
        origin = dead_letter.origin or wire.Origin(source_id=dead_letter.id)
        pattern, shape = error_pattern(origin.error), payload_shape(dead_letter.body())
        fingerprint = fingerprint_of(origin.reason, pattern, shape)
        cluster = found.get((origin.source_queue, fingerprint))
        at = dead_letter.enqueued_at
        if cluster is None:
            found[origin.source_queue, fingerprint] = Cluster(
                fingerprint, origin.source_queue, origin.reason, pattern, shape, origin.error, [dead_letter.id], at, at
            )
        else:
            cluster.ids.append(dead_letter.id)
            cluster.last_at = max(cluster.last_at, at)
    return sorted(found.values(), key=lambda cluster: (-cluster.count, cluster.fingerprint))
