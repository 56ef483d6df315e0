"""The check of names finds what the glossary avoids, wherever it hides in an identifier, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_names

GLOSSARY = """
| word | meaning |
|---|---|
| letters | not a table of the check |

| avoid | use | note |
|---|---|---|
| `letter`, `letters` | `dead_letter`, `dead_letters` | |
| `at_once` | `inline` | |

| name | where |
|---|---|
| `LetterFate` | the client |
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in check_names.NAMES_IN:
        (tmp_path / folder).mkdir()
    (tmp_path / check_names.GLOSSARY).parent.mkdir()
    (tmp_path / check_names.GLOSSARY).write_text(GLOSSARY)
    return tmp_path


@pytest.mark.parametrize("name", ["letters", "all_letters", "LETTER_MAX", "LetterBox", "dead_letters_letter"])
def test_an_avoided_word_is_found_in_every_spelling(root: Path, name: str) -> None:
    (root / "src" / "a.py").write_text(f"x = 1\n{name} = 2\n")
    [finding] = check_names.findings(root)
    assert finding.startswith(f"src/a.py:2: {name}: avoid letter")


@pytest.mark.parametrize("name", ["newsletter", "dead_letters", "DeadLetter", "LetterFate", "at_least_once", "once"])
def test_other_names_are_allowed(root: Path, name: str) -> None:
    (root / "src" / "a.py").write_text(f"{name} = 'letters'  # letters\n")
    assert list(check_names.findings(root)) == []


def test_words_in_a_row_are_found_and_the_names_of_files_too(root: Path) -> None:
    (root / "tests" / "test_at_once.py").write_text("def do_at_once(): ...\n")
    assert list(check_names.findings(root)) == [
        "tests/test_at_once.py:1: the file's name: avoid at_once, use inline",
        "tests/test_at_once.py:1: do_at_once: avoid at_once, use inline",
    ]


def test_a_file_is_not_too_long_and_a_folder_not_too_full(root: Path) -> None:
    (root / "tests" / "long.py").write_text("\n" * (check_names.LINES_MAX + 1))
    (root / "benchmarks" / "long.py").write_text("\n" * (check_names.LINES_MAX + 1))
    for number in range(check_names.MODULES_MAX + 1):
        (root / "src" / f"m{number}.py").touch()
    assert list(check_names.findings(root)) == [
        "tests/long.py:801: 801 lines, at most 800",
        "src:1: 26 modules in one folder, at most 25",
    ]


def test_a_glossary_without_its_table_is_an_error(root: Path) -> None:
    (root / check_names.GLOSSARY).write_text("# Glossary\n")
    with pytest.raises(SystemExit, match="no table"):
        list(check_names.findings(root))
