"""The documentation keeps up with the code: pages made from it are fresh, and nothing a user meets is missing."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from docs import generate
from holdfast.cli.main import main
from holdfast.config import all_fields
from holdfast.engine.stats import GroupStats, QueueStats
from holdfast.errors import all_errors

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])


def page(name: str) -> str:
    return (ROOT / "docs" / "reference" / name).read_text()


def test_pages_made_from_the_code_are_fresh() -> None:
    assert generate.stale() == [], "run `make docs`"


def test_a_page_that_differs_from_the_code_is_called_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    assert generate.stale() == list(generate.PAGES)


def test_every_setting_is_documented() -> None:
    text = page("configuration.md")
    assert [f.dotted for f in all_fields() if f"### `{f.dotted}`" not in text or f"`{f.variable}`" not in text] == []


def test_settings_that_pages_name_exist() -> None:
    names = {field.dotted for field in all_fields()}
    sections = {field.section for field in all_fields()}
    pages = [path for path in PAGES if path.parent.name in ("how-to", "explanation", "tutorial")]
    named = [name for path in pages for name in re.findall(r"`([a-z_]+\.[a-z_]+)`", path.read_text())]
    settings = {name for name in named if name.split(".")[0] in sections}
    assert len(settings) > 20
    assert settings - names == set()


def test_every_command_is_documented() -> None:
    text = page("cli.md")

    def paths(prefix: str, command: click.Command) -> list[str]:
        children = command.commands.items() if isinstance(command, click.Group) else []
        return [prefix, *(path for name, child in children for path in paths(f"{prefix} {name}", child))]

    assert [path for path in paths("holdfast", main) if f"## `{path}`" not in text] == []


def test_every_error_is_documented_and_codes_are_unique() -> None:
    text = page("errors.md")
    codes = [kind.code for kind in all_errors()]
    assert len(set(codes)) == len(codes)
    assert [code for code in codes if f"| `{code}` |" not in text] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    broken = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert broken == []


def test_every_page_can_be_found_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md") if p.name != "README.md"]
    assert [name for name in pages if f"({name})" not in index] == []


def test_every_figure_is_documented() -> None:
    text = page("stats.md")
    fields = {*QueueStats.__struct_fields__, *GroupStats.__struct_fields__}
    assert [field for field in sorted(fields) if f"`{field}`" not in text] == []


def test_what_pages_import_exists() -> None:
    """Of Holdfast, by looking at the source: the pipeline's modules need Spark to be imported."""
    missing: list[str] = []
    seen = 0
    for path in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
            for module, names in re.findall(
                r"^from ((?:pyspark_)?holdfast[\w.]*) import ([\w, ]+)$", block, re.MULTILINE
            ):
                seen += 1
                missing += [f"{path.name}: {module}.{name}" for name in names.split(", ") if not _exists(module, name)]
    assert seen > 5
    assert missing == []


def test_the_jobs_that_the_lake_page_lists_exist() -> None:
    listed = re.findall(r"^\| `([a-z_.]+)\.(\w+)\(", (ROOT / "docs/how-to/ask-the-lake.md").read_text(), re.MULTILINE)
    assert len(listed) > 5
    assert [pair for pair in listed if not _exists(f"holdfast.pipeline.{pair[0]}", pair[1])] == []


def test_a_name_that_does_not_exist_is_found() -> None:
    assert _exists("holdfast.pipeline.jobs", "redrive")
    assert not _exists("holdfast.pipeline.jobs", "refill")
    assert not _exists("holdfast.pipeline.jobs.redrive", "refill")


def _exists(module: str, name: str) -> bool:
    """Whether a module of ours has a submodule, or a name at its top level."""
    at = ROOT / "src" / module.replace(".", "/")
    if (at / f"{name}.py").exists():
        return True
    source = at.with_suffix(".py") if at.with_suffix(".py").exists() else at / "__init__.py"
    defined = rf"^(?:(?:async )?def |class |from .* import .*\b){name}\b|^{name}\b.*="
    return source.exists() and re.search(defined, source.read_text(), re.MULTILINE) is not None


def options_of(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def unknown_options(text: str) -> list[str]:
    """Commands and options of `holdfast` in a page's examples that the command line does not have."""
    code = "\n".join(re.findall(r"^```(?:console|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)).replace("\\\n", " ")
    wrong: list[str] = []
    for line in re.findall(r"\bholdfast ([a-z].*)", code):
        command: click.Command = main
        known = options_of(main)
        plain = re.sub(r"'[^']*'|\"[^\"]*\"", "quoted", line)
        for word in re.split(r"[|;<>&#)]|\$\(", plain)[0].split():
            if isinstance(command, click.Group):
                if word not in command.commands:
                    wrong.append(line)
                    break
                command = command.commands[word]
                known |= options_of(command)
            elif word.startswith("-") and word != "-" and word not in known:
                wrong.append(f"{word} in {line}")
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_examples_have_the_options_they_use(path: Path) -> None:
    assert unknown_options(path.read_text()) == []


def test_an_option_that_does_not_exist_is_found() -> None:
    text = "```console\n$ holdfast queue create a --max-retrys 2\n$ holdfast queues list\n```\n"
    assert unknown_options(text) == ["--max-retrys in queue create a --max-retrys 2", "queues list"]


def avoided_phrases() -> list[str]:
    """What the glossary's table for prose has in its first column."""
    glossary = (ROOT / "docs" / "explanation" / "glossary.md").read_text()
    _, _, table = glossary.partition("| instead of | write |")
    rows = [line for line in table.partition("\n\n")[0].splitlines() if line.startswith("| `")]
    return [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def dialect(text: str) -> list[str]:
    prose = " ".join(re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL).split())
    return [phrase for phrase in avoided_phrases() if re.search(rf"\b{phrase}\b", prose, re.IGNORECASE)]


def test_pages_written_by_hand_use_the_words_of_the_glossary() -> None:
    assert len(avoided_phrases()) > 12
    generated = {ROOT / "docs" / name for name in generate.PAGES} | {ROOT / "docs" / "explanation" / "glossary.md"}
    found = {str(path.relative_to(ROOT)): dialect(path.read_text()) for path in PAGES if path not in generated}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


def test_a_phrase_that_is_avoided_is_found() -> None:
    assert dialect("The caller is\ntold of `figures`, and hears more.") == ["is told", "hears"]


def test_contributing_lists_every_target_and_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert [
        name for name in sorted(targets - {"help", "clean", "serve", "setup"}) if f"| `make {name}" not in text
    ] == []
    rooms = [path.name for path in (ROOT / "src" / "holdfast").iterdir() if (path / "__init__.py").exists()]
    assert [room for room in sorted(rooms) if f"\n  {room}/ " not in text] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_page_names_exist(path: Path) -> None:
    named = set(re.findall(r"`([a-z_]+/[\w/]+\.py)(?:::\w+)?`", path.read_text()))
    places = [ROOT, ROOT / "src" / "holdfast", ROOT / "tests", ROOT / "tests" / "mqtt"]
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []


def queues_used(path: Path) -> set[str]:
    """Queues that the page's commands and programs name."""
    code = "\n".join(re.findall(r"^```(?:console|sh|python)\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE))
    commands = r"holdfast (?:queue create|send|receive|browse) (\w+)"
    found = re.findall(rf"{commands}|/queues/(\w+)|\$queue/(\w+)|\.(?:send|receive)\(\"(\w+)\"", code)
    return {name for names in found for name in names if name} - {"dlq"}


def test_pages_that_are_followed_on_one_server_do_not_share_queues() -> None:
    docs = ROOT / "docs"
    pages = [
        ROOT / "README.md",
        docs / "tutorial" / "first-job.md",
        docs / "how-to" / "use-http-with-curl.md",
        docs / "how-to" / "durable-queues-with-mqtt.md",
    ]
    used = [queues_used(page) for page in pages]
    assert [{"greetings", "images", "invoices"} <= used[0], "emails" in used[1], "signups" in used[2]] == [True] * 3
    assert sum(map(len, used)) == len(set().union(*used))


def diagram_problems(diagram: str) -> list[str]:
    """What would keep a Mermaid diagram from being drawn, as far as it can be seen without drawing it."""
    lines = [line.strip() for line in diagram.splitlines()]
    kind = lines[0].split()[0]
    problems = [line for line in lines if line.count('"') % 2]
    if kind not in ("flowchart", "sequenceDiagram", "erDiagram", "stateDiagram-v2"):
        problems.append(kind)
    if sum(line.startswith("subgraph") for line in lines) != lines.count("end"):
        problems.append("a subgraph without its end")
    if kind == "sequenceDiagram":
        declared = {line.split()[1] for line in lines if line.startswith("participant ")}
        arrows = [re.match(r"(\w+)--?>>(\w+): ", line) for line in lines]
        problems += [one[0] for one in arrows if one and not {one[1], one[2]} <= declared]
        problems += [line for line in lines if ";" in line or "#" in line]  # each ends a statement there
    return problems


def test_diagrams_can_be_drawn() -> None:
    mermaid = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
    blocks = [(path.name, block) for path in PAGES for block in mermaid.findall(path.read_text())]
    assert len(blocks) >= 7
    assert {name: diagram_problems(block) for name, block in blocks if diagram_problems(block)} == {}


def test_a_diagram_that_cannot_be_drawn_is_found() -> None:
    assert diagram_problems("sequenceDiagram\nparticipant A as a\nA->>B: hello\n") == ["A->>B: "]
    assert diagram_problems('flowchart LR\nsubgraph a["b]\n') == ['subgraph a["b]', "a subgraph without its end"]
