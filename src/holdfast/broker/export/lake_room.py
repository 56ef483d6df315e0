"""What the lake may take of a disk that it shares with the store.

A store on a full disk gives up its reserve, so that leases and settlements go on. A lake on the same disk must not take
that: a segment has the payloads of its messages, and is as large as what is acked later makes room for.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import LakeFull
from holdfast.store.contract import Store


class LakeRoom:
    """`kept_bytes`: what is left to a store whose files are in `data_dir`, beside its reserve."""

    def __init__(self, store: Store, data_dir: Path, lake: Path, kept_bytes: int) -> None:
        self._store = store
        self._data_dir = data_dir
        self._lake = lake
        self._kept_bytes = kept_bytes

    def bytes_left(self) -> int | None:
        """How large a segment may become; None: there is no bound. Raises LakeFull if there is room for none."""
        room = self._room()
        if room is None:
            return None
        if room <= self._kept_bytes:
            raise self._full(room)
        return room - self._kept_bytes

    def check(self) -> None:
        """Raises LakeFull if what is written of a segment has come to need the reserve: others fill the disk too."""
        room = self._room()
        if room is not None and room < 0:
            raise self._full(room)

    def full(self) -> LakeFull:
        """Why a segment is not written for which there is too little room."""
        return self._full(self._room() or 0)

    def _full(self, room: int) -> LakeFull:
        return LakeFull(path=self._lake, free_bytes=max(room, 0), kept_bytes=self._kept_bytes)

    def _room(self) -> int | None:
        """What is left beside the reserve, if both are on the same disk."""
        if self._data_dir.stat().st_dev != self._lake.stat().st_dev:
            return None
        return self._store.room()
