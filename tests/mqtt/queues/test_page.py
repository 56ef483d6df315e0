"""The page "Durable queues with any MQTT client" tells the truth: its commands and programs are run as they stand."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.mqtt.queues.rig import Server, until
from tests.waiting import PATIENCE_SECONDS

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "durable-queues-with-mqtt.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


async def run(path: Path, *command: str, **environment: str) -> list[str]:
    """Lines of its output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=path,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert process.returncode == 0, errors.decode()
    return out.decode().splitlines()


@pytest.mark.skipif(not shutil.which("mosquitto_sub"), reason="mosquitto_pub and mosquitto_sub are not installed")
async def test_the_commands_for_mosquitto(server: Server, tmp_path: Path) -> None:
    for tool in ("mosquitto_pub", "mosquitto_sub"):
        (tmp_path / tool).write_text(f"-p {server.port}\n-h 127.0.0.1\n")
    script = "set -e\n" + "\n".join(blocks("sh"))
    said = await run(tmp_path, "sh", "-c", script, XDG_CONFIG_HOME=str(tmp_path))
    assert said[:2] == ["parcel 1 for Ann", "parcel 2 for Bob"]
    assert said[2].startswith('{"order": 17}')
    assert said[3].startswith("{")
    assert said[4].startswith("21 ")
    await until(lambda: not sum(map(server.depth, ("shipments", "orders", "dlq/orders", "meter"))))


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (0, ["stored"] * 3 + [f"resized {number}.png" for number in range(3)]),
        (1, ["done with broken", "done with fine"]),
        (2, ["question-1 is 144"]),
    ],
    ids=["paho", "paho-3.1.1", "aiomqtt"],
)
async def test_the_programs(quick: Server, tmp_path: Path, number: int, says: list[str]) -> None:
    program = blocks("python")[number].replace("1883", str(quick.port))
    said = await run(tmp_path, sys.executable, "-c", program)
    assert sorted(said) == sorted(says)
    for record in quick.node.queues.in_namespace("default"):
        dead = record.name.startswith("dlq/")
        await until(lambda name=record.name, dead=dead: quick.depth(name) == dead)  # type: ignore[misc]


def test_there_is_no_program_that_is_not_run() -> None:
    assert len(blocks("python")) == 3
