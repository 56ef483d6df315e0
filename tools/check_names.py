"""Refuses names that the glossary avoids, files that are too long and folders that are too full.

    python tools/check_names.py     one line for each finding, `file:line: what is wrong`; exit status 1 if there is any

The words come from the tables of docs/explanation/glossary.md, so that there is one list. What stands in the column
`avoid` is refused as part of an identifier, unless it is part of a name in the column `use` (`dead_letters` contains
`letters`). Identifiers in a table `name | where` are public, and allowed as they stand.
"""

from __future__ import annotations

import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GLOSSARY = "docs/explanation/glossary.md"
NAMES_IN = ("src", "tests", "benchmarks", "examples", "docs", "tools")
LINES_MAX = 800
"""A file is one idea; past this many lines it is several."""
MODULES_MAX = 25
"""A folder is read as a list; past this many modules nobody reads it to the end."""

Words = tuple[str, ...]
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
IDENTIFIER = re.compile(r"[^\W\d]\w*")


class Glossary(NamedTuple):
    avoided: dict[Words, str]
    """Words in a row, and what to use instead."""
    preferred: set[Words]
    public: set[str]


def words_of(identifier: str) -> Words:
    return tuple(word.lower() for word in WORD.findall(identifier))


def table_rows(text: str, *columns: str) -> Iterator[list[str]]:
    """Cells of the Markdown tables whose first columns have these titles."""
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells[: len(columns)] == list(columns):
            inside = True
        elif not cells:
            inside = False
        elif inside and set(cells[0]) != {"-"}:
            yield cells


def read_glossary(text: str) -> Glossary:
    quoted = re.compile(r"`(\w+)`")
    glossary = Glossary({}, set(), set())
    for avoid, use, *_ in table_rows(text, "avoid", "use"):
        glossary.avoided.update((words_of(name), use.replace("`", "")) for name in quoted.findall(avoid))
        glossary.preferred.update(words_of(name) for name in quoted.findall(use))
    for name, *_ in table_rows(text, "name", "where"):
        glossary.public.update(quoted.findall(name))
    if not glossary.avoided:
        raise SystemExit(f"{GLOSSARY} has no table with the columns avoid and use")
    return glossary


def avoided_in(identifier: str, glossary: Glossary) -> list[str]:
    if identifier in glossary.public:
        return []
    words = words_of(identifier)
    free = list(words)
    for phrase in glossary.preferred:
        for start in occurrences(phrase, words):
            free[start : start + len(phrase)] = [""] * len(phrase)
    return [
        f"avoid {'_'.join(phrase)}, use {use}"
        for phrase, use in glossary.avoided.items()
        if any(True for _ in occurrences(phrase, tuple(free)))
    ]


def occurrences(phrase: Words, words: Words) -> Iterator[int]:
    return (i for i in range(len(words) - len(phrase) + 1) if words[i : i + len(phrase)] == phrase)


class Names:
    """Checks files. What it found out about an identifier it remembers for the files that follow."""

    def __init__(self, glossary: Glossary) -> None:
        self._glossary = glossary
        self._known: dict[str, list[str]] = {}

    def check(self, path: Path, text: str) -> Iterator[str]:
        for finding in self._avoided(path.stem):
            yield f"1: the file's name: {finding}"
        # Tokens take 10 s for all files, words 1 s: only a file that has an avoided word somewhere is read by tokens.
        if any(self._avoided(word) for word in set(IDENTIFIER.findall(text))):
            yield from self._check_tokens(path)

    def _avoided(self, identifier: str) -> list[str]:
        known = self._known.get(identifier)
        if known is None:
            known = self._known[identifier] = avoided_in(identifier, self._glossary)
        return known

    def _check_tokens(self, path: Path) -> Iterator[str]:
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.NAME:
                    for finding in self._avoided(token.string):
                        yield f"{token.start[0]}: {token.string}: {finding}"


def findings(root: Path) -> Iterator[str]:
    """Each as `file:line: what is wrong`."""
    names = Names(read_glossary((root / GLOSSARY).read_text()))
    modules: Counter[Path] = Counter()
    for folder in NAMES_IN:
        for path in sorted((root / folder).rglob("*.py")):
            shown = path.relative_to(root)
            text = path.read_text()
            yield from (f"{shown}:{finding}" for finding in names.check(path, text))
            lines = len(text.splitlines())
            if folder in {"src", "tests"} and lines > LINES_MAX:
                yield f"{shown}:{LINES_MAX + 1}: {lines} lines, at most {LINES_MAX}"
            if folder == "src":
                modules[shown.parent] += 1
    for shown, count in modules.items():
        if count > MODULES_MAX:
            yield f"{shown}:1: {count} modules in one folder, at most {MODULES_MAX}"


def main() -> int:
    found = list(findings(ROOT))
    sys.stdout.writelines(f"{finding}\n" for finding in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
