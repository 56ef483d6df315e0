"""pyarrow without pandas, in processes that are Holdfast's own.

The first list that pyarrow turns into a column makes it import pandas, if that is installed, only to check whether the
list is one of its arrays: 0.4 s of processor time, on whichever thread it happens, and 50 MiB. Neither the server nor
the process that converts its journal needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _PandasBlocker:
    """An import finder that hides pandas."""

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def block_pandas_import() -> None:
    """From here on this process finds no pandas. pyarrow looks for it when it is first used, which may be much later
    or never."""
    sys.meta_path.insert(0, _PandasBlocker)
