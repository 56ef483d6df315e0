"""Every statement of the standards is proved by a test that exists, or there is a reason; and the page says so."""

from __future__ import annotations

from tests.mqtt.net import index


def test_every_statement_is_proved_or_there_is_a_reason() -> None:
    proved = {*index.covered(), *index.elsewhere()}
    known = set(index.catalogue())
    assert proved - known == set(), "no such statement"
    assert known - proved - set(index.unproved()) == set(), "nobody proves these"
    assert proved & set(index.unproved()) == set(), "these are proved after all"


def test_tests_of_other_rooms_are_there() -> None:
    for test in index.elsewhere().values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (index.HERE.parent / file).read_text(), test


def test_the_page_is_fresh() -> None:
    assert index.PAGE.read_text() == index.page(), "run `python -m tests.mqtt.net.index`"
