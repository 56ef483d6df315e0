"""The code of the guide for SQS clients runs as it stands, but for the server's address."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from holdfast.broker.node import Node
from holdfast.http_api import HttpFront

GUIDE = Path(__file__).parents[4] / "docs" / "how-to" / "use-sqs-clients.md"


async def test_the_code_of_the_guide_runs(front: HttpFront, node: Node) -> None:
    [code] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code.replace("http://127.0.0.1:8080", front.url),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert (process.returncode, output) == (0, b"invoice 4711\n")
    assert node.queues.get(("default", "orders")).config.dlq.queue == "orders-dead"
    assert node.queues.depth(("default", "orders")) == 0
