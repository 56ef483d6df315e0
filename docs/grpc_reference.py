"""The reference of the gRPC services, from the contract and from the methods that serve it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf import descriptor_pb2

from holdfast.grpc_api.front import METHODS
from tools.proto import described

INTRO: Final = """\
# gRPC

The server listens on `grpc.listen` (`--grpc`) where that is set; it needs `pip install "holdfast[grpc]"`. The contract
is [`holdfast/v1/queue.proto`](../../src/holdfast/grpc_api/proto/holdfast/v1/queue.proto); it stays compatible. Health
(`grpc.health.v1`) and reflection are served too, without a credential. [How to use it](../how-to/use-grpc.md)."""

SERVICE, MESSAGE, ENUM = 6, 4, 5  # where these are in a file's description
METHOD = FIELD = VALUE = 2  # where these are in one of those

_TYPES: Final = descriptor_pb2.FieldDescriptorProto

Comments = dict[tuple[int, ...], str]


def grpc_api() -> str:
    """Every method, message and enum, with its comment."""
    file = described()
    comments: Comments = {
        tuple(place.path): " ".join(place.leading_comments.split()) for place in file.source_code_info.location
    }
    lines = [INTRO]
    for number, service in enumerate(file.service):
        lines += ["", f"## {service.name}", "", comments.get((SERVICE, number), "")]
        lines += ["", "| method | request | response | needs | what it does |", "|---|---|---|---|---|"]
        lines += _methods(service, number, comments, file.package)
    lines += ["", "## Messages"]
    for number, message in enumerate(file.message_type):
        lines += ["", f"### {message.name}", "", comments.get((MESSAGE, number), "")]
        if message.field:
            lines += ["", "| field | number | type | meaning |", "|---|---|---|---|"]
            lines += _fields(message, number, comments)
    lines += ["", "## Enums"]
    for number, enum in enumerate(file.enum_type):
        lines += ["", f"### {enum.name}", "", comments.get((ENUM, number), "")]
        lines += ["", "| value | number | meaning |", "|---|---|---|"]
        for at, value in enumerate(enum.value):
            lines.append(f"| `{value.name}` | {value.number} | {comments.get((ENUM, number, VALUE, at), '')} |")
    return "\n".join(lines) + "\n"


def _methods(
    service: descriptor_pb2.ServiceDescriptorProto, number: int, comments: Comments, package: str
) -> Iterator[str]:
    rights = {method.path: method.right for methods in METHODS for method in methods.found}
    for at, method in enumerate(service.method):
        right = rights[f"/{package}.{service.name}/{method.name}"]
        needs = f"`{right}` on the queue" if right is not None else "any right on the queue"
        request = _streamed(method.input_type, method.client_streaming)
        response = _streamed(method.output_type, method.server_streaming)
        text = comments.get((SERVICE, number, METHOD, at), "")
        yield f"| `{method.name}` | {request} | {response} | {needs} | {text} |"


def _streamed(name: str, many: bool) -> str:
    link = _link(name)
    return f"stream of {link}" if many else link


def _link(name: str) -> str:
    short = name.rpartition(".")[2]
    return f"[{short}](#{short.lower()})" if name.startswith(".holdfast.") else f"`{name.removeprefix('.')}`"


def _fields(message: descriptor_pb2.DescriptorProto, number: int, comments: Comments) -> Iterator[str]:
    maps = {f".holdfast.v1.{message.name}.{entry.name}": entry for entry in message.nested_type}
    for at, field in enumerate(message.field):
        if field.type_name in maps:
            key, value = (_plain(one) for one in maps[field.type_name].field)
            kind = f"map of {key} to {value}"
        else:
            kind = _plain(field)
            if field.label == _TYPES.LABEL_REPEATED:
                kind = f"repeated {kind}"
            elif field.proto3_optional:
                kind = f"optional {kind}"
        text = comments.get((MESSAGE, number, FIELD, at), "")
        yield f"| `{field.name}` | {field.number} | {kind} | {text} |"


def _plain(field: descriptor_pb2.FieldDescriptorProto) -> str:
    if field.type_name:
        return _link(field.type_name)
    return _TYPES.Type.Name(field.type).removeprefix("TYPE_").lower()
