"""The examples run, and print what their pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from holdfast.testing import Broker
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def test_the_in_process_example() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / "in_process.py"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    printed = [line for line in done.stdout.splitlines() if "[info" not in line]
    assert printed == [
        "stored as fsync",
        "attempt 1: resize 4711.png",
        "attempt 2: resize 4711.png",
        "dead after 2 attempts: max_retries, out of memory",
    ]


def run(*command: str | Path, url: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        env={**environment, "HOLDFAST_URL": url},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )


def test_the_client_example() -> None:
    with Broker() as broker:
        done = run(EXAMPLES / "client.py", url=broker.url)
    assert done.stdout.splitlines() == [
        "stored 3 messages",
        "attempt 1: ann@example.com",
        "attempt 1: bob@example.com",
        "attempt 1: cid@example.com",
        "the answer is 42",
        "deleted example/emails",
        "deleted example/questions",
    ]


def test_the_taste_prints_what_the_readme_says_and_leaves_nothing() -> None:
    readme = (ROOT / "README.md").read_text()
    with Broker() as broker, broker.sync_client() as client:
        done = run(EXAMPLES / "taste.py", url=broker.url)
        assert list(client.queues()) == []
    assert f"$ python examples/taste.py\n{done.stdout}" in readme
    source = (EXAMPLES / "taste.py").read_text()
    shown = next(block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "SyncClient" in block)
    assert [line for line in shown.splitlines() if line.strip() not in source] == []


def test_the_workers_example() -> None:
    with Broker() as broker, broker.sync_client() as client:
        client.send("emails", {"to": "ann@example.com", "text": "hi"})
        client.send("emails", {"to": "nobody", "text": "hi"})
        client.send("emails", {"to": "greylisted@example.com", "text": "hi"})
        client.send("thumbnails", bytes(10), key="cat.jpg")
        done = run("-m", "holdfast.cli", "worker", "--app-dir", EXAMPLES, "workers:app", "--burst", url=broker.url)
        assert sorted(done.stdout.splitlines()) == [
            "done with emails",
            "done with thumbnails",
            "sent to ann@example.com: hi",
            "thumbnail of cat.jpg from 10 bytes",
        ]
        (dead_letter,) = client.dead_letters("emails", group="mailer")
        assert dead_letter.origin is not None
        assert dead_letter.origin.error == "nobody is no address"
        (waiting,) = client.browse("emails")
        assert waiting.deliveries[0].state == "scheduled"


def test_the_example_of_tests() -> None:
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", EXAMPLES / "test_shop.py")
    assert "2 passed" in done.stdout


def test_the_jobs_of_the_guide_from_celery() -> None:
    guide = (ROOT / "docs" / "how-to" / "move-from-celery.md").read_text()
    celery, *ours, passing_on = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    source = (EXAMPLES / "from_celery.py").read_text()
    assert "# Celery" in celery
    assert [line for block in ours for line in block.splitlines() if line not in source] == []
    program = f"import celery as library, from_celery\ncelery = library.Celery()\n{dedent(passing_on)}\n"
    program += "celery.conf.task_always_eager = True\n"
    program += "for _ in range(2): pass_on.apply_async(('cid@example.com',), task_id='7')\n"
    with Broker() as broker, broker.sync_client() as client:
        sent = run(EXAMPLES / "from_celery.py", url=broker.url)
        assert re.fullmatch(r"sent job \d+ to emails\n", sent.stdout)
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "HOLDFAST_URL": broker.url},
            cwd=EXAMPLES,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
        # One at a time: lines that threads print at the same time may mix.
        options = ("from_celery:app", "--burst", "--concurrency", "1")
        done = run("-m", "holdfast.cli", "worker", "--app-dir", EXAMPLES, *options, url=broker.url)
        assert sorted(done.stdout.splitlines()) == [
            "sent to ann@example.com: Hi",
            "sent to ann@example.com: in order",
            "sent to bob@example.com: Hello",
            "sent to cid@example.com: Hello",
        ]
        assert [dead.origin.error for dead in client.dead_letters("emails") if dead.origin] == ["nobody is no address"]
        (waiting,) = client.browse("emails")
        assert waiting.deliver_at is not None
