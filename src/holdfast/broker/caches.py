"""Every cache and buffer of the node whose size depends on the load: what it takes, and what it may take.

The bounds are settings. What a connection may buffer, and what one request may hold, is bounded beside its code.
"""

from __future__ import annotations

from holdfast.broker.cell import Cell
from holdfast.config import Config
from holdfast.core.memory import ENDED_LEASE_BYTES, MASK_BYTES, PLACE_BYTES


def limits_bytes(config: Config) -> dict[str, int]:
    """The most that each may take, by name."""
    limits, store = config.limits, config.store
    embedded = {"blocks": store.cache_bytes, "write_buffers": store.write_buffer_bytes} if store.kind == "rocks" else {}
    return {
        **embedded,
        "payloads": limits.hot_cache_bytes,
        "inbox": limits.inbox_bytes,
        "ended_leases": limits.remembered_settlements * ENDED_LEASE_BYTES,
        "settled": limits.settled_cache * MASK_BYTES,
        "windows": limits.window_places * PLACE_BYTES,
    }


def used_bytes(cell: Cell) -> dict[str, int]:
    """What each takes now, by the same names; without the engine's while the store is away."""
    used = {**cell.store.memory_bytes(), "inbox": cell.inbox.size_bytes}
    engine = cell.open_engine
    if engine is not None:
        memory = engine.memory
        used["payloads"] = memory.cache_used_bytes
        used["ended_leases"] = memory.ended_leases.size * ENDED_LEASE_BYTES
        used["settled"] = memory.masks.size * MASK_BYTES
        used["windows"] = memory.places.size * PLACE_BYTES
    return used
