"""The page about one message's walk: every file and name on it exists, and its diagrams are true."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from struct import Struct as Layout

from holdfast.core.codecs import ready_value, write_message
from holdfast.core.records import NO_EXTRA, Table, message_key, ready_key
from holdfast.pipeline.lake.tables import TABLES

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdfast"
PAGE = (ROOT / "docs" / "explanation" / "walk.md").read_text()
DIAGRAMS = re.findall(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)


def defined_in(source: str) -> set[str]:
    """Functions, classes and methods of a module, methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{member.name}" for member in members}
    return found


def problems(prose: str) -> list[str]:
    """Files that do not exist, and names that none of the page's files defines."""
    files = sorted(set(re.findall(r"`([a-z_/]+\.py)`", prose)))
    missing = [file for file in files if not (SOURCE / file).exists()]
    known = {name for file in files if file not in missing for name in defined_in((SOURCE / file).read_text())}
    names = set(re.findall(r"`([A-Z][A-Za-z]+(?:\.[a-z_]+)?|[a-z]+_[a-z_]+|enqueue|lease|settle)`", prose))
    tables = set(TABLES) | {"lease_lost"}
    return missing + sorted(names - known - tables - {table.name for table in Table})


def test_every_file_and_name_exists() -> None:
    assert len(re.findall(r"`[a-z_/]+\.py`", PROSE)) > 15
    assert problems(PROSE) == []


def test_a_name_that_is_gone_is_found() -> None:
    assert problems("`engine/engine.py` has `Engine.enqueue`, `Engine.hear` and `sort_of`; see `engine/gone.py`.") == [
        "engine/gone.py",
        "Engine.hear",
        "sort_of",
    ]


def test_there_are_four_diagrams_of_kinds_that_git_hosts_render() -> None:
    kinds = [diagram.split()[0] for diagram in DIAGRAMS]
    assert sorted(kinds) == ["erDiagram", "flowchart", "sequenceDiagram", "sequenceDiagram"]


def layouts(entity: str) -> tuple[Layout, Layout]:
    """Key and fixed part of the value, as the diagram of records has them."""
    (diagram,) = [diagram for diagram in DIAGRAMS if diagram.startswith("erDiagram")]
    (body,) = re.findall(rf"^    {entity} \{{\n(.*?)\}}", diagram, re.DOTALL | re.MULTILINE)
    codes = {"u8": "B", "u32": "I", "u64": "Q"}
    fields = [(codes[kind], note) for kind, note in re.findall(r"(u\d+) \w+(.*)", body)]
    keys = [code for code, note in fields if '"key' in note]
    return Layout(">" + "".join(keys)), Layout(">" + "".join(code for code, note in fields if '"key' not in note))


def test_the_record_diagram_is_the_layout_on_disk() -> None:
    key, value = layouts("MESSAGES")
    assert key.pack(7, 100) == message_key(7, 100)
    record = write_message(11, 12, 13, 14, 15, NO_EXTRA, b"invoice 4711")
    assert record == value.pack(1, 11, 12, 13, 14, 15, 0) + b"invoice 4711"
    key, value = layouts("READY")
    assert key.pack(7, 128, 11) == ready_key(7, 128, 11)
    assert value.pack(100, 0x0102030405060708, 1, 12) == ready_value(100, bytes(range(1, 9)), 1, 12)


def test_the_record_diagram_has_tables_of_the_store() -> None:
    (diagram,) = [diagram for diagram in DIAGRAMS if diagram.startswith("erDiagram")]
    entities = re.findall(r"^    ([A-Z_]+) \{$", diagram, re.MULTILINE)
    assert len(entities) == 4
    assert set(entities) <= {table.name for table in Table}


def test_the_lake_diagram_has_every_table() -> None:
    (lake,) = [diagram for diagram in DIAGRAMS if diagram.startswith("flowchart")]
    assert set(re.findall(r'\[\("(\w+)"\)\]', lake)) == set(TABLES)
