"""The state machine: values in, values out. No clock, no randomness, no I/O, no logging, no asyncio.

Importing the package registers all commands with the shard.
"""

from holdfast.core import admin, cursors, enqueue, leasing, reading, sweeps, workflow
from holdfast.core.memory import CellMemory
from holdfast.core.shard import Shard

__all__ = [
    "CellMemory",
    "Shard",
    "admin",
    "cursors",
    "enqueue",
    "leasing",
    "reading",
    "sweeps",
    "workflow",
]
