"""The list of mutants, and what must be true of it for its run to mean something."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).parent / "mutants.toml"


class Mutant(msgspec.Struct, frozen=True):
    """One change that a reader would call a bug."""

    bug: str
    """What is wrong with the code then."""
    file: str
    """Below src/holdfast."""
    text: str
    """What the file has exactly once."""
    instead: str
    """What it has in the mutant."""
    tests: str
    """What pytest is given: the narrowest selection that must fail."""

    @property
    def path(self) -> Path:
        return Path("src/holdfast") / self.file

    def apply(self, source: str) -> str:
        """The source of the file with the bug. Raises ValueError unless its text is there exactly once."""
        found = source.count(self.text)
        if found != 1:
            raise ValueError(f"{self.bug!r}: its text is in {self.path} {found} times")
        return source.replace(self.text, self.instead)


def read_list(path: Path = LIST) -> list[Mutant]:
    """All mutants, in their order."""
    return msgspec.convert(tomllib.loads(path.read_text())["mutant"], list[Mutant])
