"""The contract: the Python made of it is current, it keeps buf's rules, and clients of its first release still work.

`v1.binpb` is the contract as it was first released. It never changes: what is added to the contract is compatible.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.proto import CONTRACT, ROOM, generate

RELEASED = Path(__file__).parent / "v1.binpb"
BUF = Path(sys.executable).parent / "buf"
CONTRACTS = ROOM / "proto"

BREAKS = {
    "a number that is another field's": ("string queue = 1;\n  repeated Draft", "string queue = 9;\n  repeated Draft"),
    "a method that is gone": ("  rpc Extend(ExtendRequest) returns (ExtendResponse);\n", ""),
    "another type": ("int64 lease_token = 2;", "string lease_token = 2;"),
    "a stream that is none": ("returns (stream ReadResponse)", "returns (ReadResponse)"),
    "a value that is another's": ("SETTLE_ACTION_NACK = 2", "SETTLE_ACTION_NACK = 9"),
}


def buf(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BUF, *arguments], capture_output=True, text=True, check=False)


def test_the_generated_code_is_current() -> None:
    for name, text in generate().items():
        assert (ROOM / "generated" / name).read_text() == text, "run `make proto`"


def test_clients_of_the_first_release_still_work() -> None:
    done = buf("breaking", CONTRACTS, "--against", RELEASED)
    assert (done.returncode, done.stdout) == (0, "")


def changed(directory: Path, before: str, after: str) -> Path:
    shutil.copytree(CONTRACTS, directory / "proto")
    path = directory / "proto" / CONTRACT
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    return directory / "proto"


@pytest.mark.parametrize("what", BREAKS)
def test_a_change_that_breaks_them_is_found(tmp_path: Path, what: str) -> None:
    done = buf("breaking", changed(tmp_path, *BREAKS[what]), "--against", RELEASED)
    assert done.returncode != 0
    assert re.search(r"queue\.proto:\d+:\d+:", done.stdout)


def test_the_rules_are_kept_and_would_be_missed(tmp_path: Path) -> None:
    assert buf("lint", CONTRACTS).stdout == ""
    done = buf("lint", changed(tmp_path, "string queue = 1;\n  repeated Draft", "string Queue = 1;\n  repeated Draft"))
    assert "lower_snake_case" in done.stdout
