"""Writes the Python of the gRPC contract: `python -m tools.proto`, for `make proto`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import grpc_tools
from grpc_tools import protoc

ROOM = Path(__file__).parent.parent / "src" / "holdfast" / "grpc_api"
CONTRACT = "holdfast/v1/queue.proto"
MADE = ("queue_pb2.py", "queue_pb2.pyi")


def generate(contracts: Path = ROOM / "proto") -> dict[str, str]:
    """What protoc makes of the contract, by file."""
    with TemporaryDirectory() as directory:
        known = Path(grpc_tools.__path__[0]) / "_proto"
        arguments = [f"-I{contracts}", f"-I{known}", f"--python_out={directory}", f"--pyi_out={directory}", CONTRACT]
        if protoc.main(["protoc", *arguments]):
            raise SystemExit("protoc failed")
        made = Path(directory) / Path(CONTRACT).parent
        return {name: (made / name).read_text() for name in MADE}


def main() -> None:
    for name, text in generate().items():
        (ROOM / "generated" / name).write_text(text)


if __name__ == "__main__":
    main()
