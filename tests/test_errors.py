"""Errors are of a bounded size, and quick to make, whatever a caller sent."""

from __future__ import annotations

import difflib

import pytest

from holdfast.config.kinds import closest
from holdfast.core.queue import from_fields
from holdfast.error_text import MESSAGE_LENGTH_MAX, SHOWN_LENGTH_MAX, shown
from holdfast.errors import HoldfastError, InvalidConfig, QueueNotFound, all_errors

LONG = "x" * 1_000_000


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.code)
@pytest.mark.parametrize(
    "value", [LONG, [LONG] * 100, {LONG: LONG}, LONG.encode()], ids=["text", "list", "dict", "bytes"]
)
def test_a_callers_text_is_cut_in_every_error(kind: type[HoldfastError], value: object) -> None:
    names = ("queue", "name", "field", "value", "resource", "problem", "namespace", "path", "given", "group", "what")
    error = kind(**dict.fromkeys(names, value))
    assert len(str(error)) <= MESSAGE_LENGTH_MAX + 3
    assert all(len(str(detail)) <= MESSAGE_LENGTH_MAX + 3 for detail in error.details.values())


def test_of_a_name_two_hundred_characters_are_shown_and_the_rest_of_the_sentence_stays() -> None:
    error = QueueNotFound(queue=LONG, namespace="default")
    assert str(error).startswith("Queue 'xxx")
    assert str(error).count("x") - "exist exist".count("x") <= SHOWN_LENGTH_MAX + 5
    assert "Create it first" in str(error)
    assert shown("short") == "short"
    assert len(shown(LONG)) == SHOWN_LENGTH_MAX


def test_no_name_is_suggested_for_one_that_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    find = difflib.get_close_matches

    def counted(word: str, *rest: object, **options: object) -> list[str]:
        compared.append(word)
        return find(word, *rest, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("difflib.get_close_matches", counted)
    monkeypatch.setattr("holdfast.config.kinds.get_close_matches", counted)
    with pytest.raises(InvalidConfig, match="did you mean max_depth"):
        from_fields({"max_deep": 1})
    with pytest.raises(InvalidConfig, match="there is no such setting"):
        from_fields({"max_depth" * 8: 1})
    assert closest("fsinc", ["fsync"]) == "fsync"
    assert closest(LONG, ["fsync"]) is None
    assert compared == ["max_deep", "fsinc"]
