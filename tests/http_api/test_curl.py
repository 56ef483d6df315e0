"""The commands of the how-to for curl, run as they stand there."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from holdfast.broker.node import Node
from holdfast.http_api import HttpFront
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-http-with-curl.md"


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
async def test_the_commands_of_the_how_to_work(front: HttpFront, node: Node, tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 10
    script = "\n".join(
        ["set -euo pipefail", f"URL={front.url}", *[f"echo; echo '#{n}'\n{b}" for n, b in enumerate(blocks[1:], 1)]]
    )
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    out, err = await process.communicate()
    assert process.returncode == 0, (out.decode(), err.decode())
    said = dict(re.findall(r"#(\d+)\n(.*?)(?=\n#|\Z)", out.decode(), re.DOTALL))
    assert '"duplicates":[0]' in said["4"]
    assert '"settled":1' in said["5"]
    assert said["7"].split() == ['"hello"', '"hello"']
    assert said["8"].startswith("no such user")
    assert '"matched":1' in said["8"]
    await until(lambda: node.inspection.current_stats(("default", "dlq/signups")).depth == 0)
