"""The list of mutants fits the code as it is. `make mutants` runs them, which takes minutes; this does not."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tools.mutants.__main__ import Verdict, table
from tools.mutants.listed import ROOT, Mutant, read_list

MUTANTS = read_list()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.bug))
def test_a_mutant_is_the_code_with_one_change_and_has_tests_that_exist(mutant: Mutant) -> None:
    source = (ROOT / mutant.path).read_text()
    broken = mutant.apply(source)
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(source))
    for selection in mutant.tests.split():
        file, _, test = selection.partition("::")
        assert (ROOT / file).exists()
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text() if test else Path(file).parts[0] == "tests"


def test_there_are_enough_of_them_in_every_part() -> None:
    assert len(MUTANTS) >= 60
    assert len({mutant.bug for mutant in MUTANTS}) == len(MUTANTS)
    rooms = Counter(Path(mutant.file).parts[0] for mutant in MUTANTS)
    assert all(
        rooms[room] >= 3 for room in ("core", "engine", "journal", "broker", "store", "mqtt", "auth", "http_api")
    )


def test_a_mutant_whose_text_has_gone_is_an_error() -> None:
    mutant = Mutant("wrong", "core/ids.py", "no such text", "", "tests/core")
    with pytest.raises(ValueError, match="0 times"):
        mutant.apply("text")


def test_the_table_names_each_mutant_and_the_test_that_noticed() -> None:
    one, other = MUTANTS[:2]
    page = table([Verdict(one, "killed", "tests/core/test_ids.py::test_ids", 1.0), Verdict(other, "SURVIVED", "", 2.0)])
    assert "2 mutants, 1 killed." in page
    assert f"| {one.bug} | `{one.file}` | killed | `core/test_ids.py::test_ids` |" in page
    assert f"| {other.bug} | `{other.file}` | SURVIVED |  |" in page
