"""Writes the Python of the gRPC contract: `python -m tools.proto`, for `make proto`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import grpc_tools
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOM = Path(__file__).parent.parent / "src" / "holdfast" / "grpc_api"
CONTRACT = "holdfast/v1/queue.proto"
MADE = ("queue_pb2.py", "queue_pb2.pyi")


def _protoc(*arguments: str) -> None:
    known = Path(grpc_tools.__path__[0]) / "_proto"
    if protoc.main(["protoc", f"-I{ROOM / 'proto'}", f"-I{known}", *arguments, CONTRACT]):
        raise SystemExit("protoc failed")


def described() -> descriptor_pb2.FileDescriptorProto:
    """The contract with its comments."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "contract"
        _protoc("--include_source_info", f"--descriptor_set_out={path}")
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file
    return file


def generate() -> dict[str, str]:
    """What protoc makes of the contract, by file."""
    with TemporaryDirectory() as directory:
        _protoc(f"--python_out={directory}", f"--pyi_out={directory}")
        made = Path(directory) / Path(CONTRACT).parent
        return {name: (made / name).read_text() for name in MADE}


def main() -> None:
    for name, text in generate().items():
        (ROOM / "generated" / name).write_text(text)


if __name__ == "__main__":
    main()
