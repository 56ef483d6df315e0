"""Converts a message to a handler's arguments, and arguments to a message, by the handler's annotations.

One parameter takes the payload, another may take the message itself:

    bytes                      as it is
    str                        as UTF-8 text
    a pydantic model           checked by pydantic
    anything else              JSON, checked by msgspec: structs, dataclasses, TypedDicts, dict, list[int], unions, ...
    nothing, Any or object     by content type: JSON, text, else bytes
    Message, SyncMessage       the message (the second one in ordinary functions); with a default it may be left out

Several parameters, apart from the message, take the fields of a JSON object by their names. Those with a default may be
absent; a field that no parameter has is refused.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.client.messages import Message, Received
from holdfast.client.sync import SyncMessage

Decode = Callable[[Received], object]


class Unreadable(Exception):
    """The payload does not fit the handler's annotation. Retrying cannot change that."""


class HandlerCall(msgspec.Struct, frozen=True):
    """How to call a handler: which parameters take the payload or its fields, and which takes the message."""

    signature: inspect.Signature
    """Without the message."""
    payload: str | None
    decode: Decode
    message: str | None

    def arguments(self, message: Received) -> dict[str, object]:
        """The handler's arguments. Raises Unreadable."""
        given: dict[str, object] = {}
        if self.payload is not None:
            given[self.payload] = self.decode(message)
        elif self.signature.parameters:
            fields = self.decode(message)
            given.update((name, getattr(fields, name)) for name in self.signature.parameters)
        if self.message is not None:
            given[self.message] = message
        return given

    def body(self, arguments: tuple[object, ...], keywords: Mapping[str, object]) -> object:
        """The payload that makes the handler be called with these arguments. Raises TypeError, as a call would."""
        bound = self.signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        if self.payload is not None:
            return bound.arguments[self.payload]
        return dict(bound.arguments) if self.signature.parameters else b""


def call_of(function: Callable[..., object], asynchronous: bool, local_names: dict[str, Any]) -> HandlerCall:
    """Read a handler's signature. Raises TypeError if no message could fit it."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        hints = typing.get_type_hints(function, localns=local_names)
    except NameError as error:
        raise TypeError(f"an annotation of {name} cannot be resolved: {error}; define it before the worker") from None
    signature = inspect.signature(function)
    message: str | None = None
    taken: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise TypeError(f"{name} takes {parameter}: a handler's parameters are given by name")
        kind = _message_kind(hints.get(parameter.name, Any))
        if kind is not None and message is None:
            _check_kind(name, kind, asynchronous)
            message = parameter.name
        else:
            taken.append(parameter)
    payload = taken[0].name if len(taken) == 1 else None
    decode = decoder(hints.get(payload, Any)) if payload is not None else _fields(name, taken, hints)
    return HandlerCall(signature.replace(parameters=taken), payload, decode, message)


def _message_kind(hint: Any) -> type[Received] | None:
    """The type of message that an annotation means, also as `Message | None`."""
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        hint = next((each for each in typing.get_args(hint) if each is not types.NoneType), hint)
    return hint if isinstance(hint, type) and issubclass(hint, Received) else None


def _check_kind(name: str, hint: type[Received], asynchronous: bool) -> None:
    if asynchronous and hint is SyncMessage:
        raise TypeError(f"{name} is asynchronous and takes a Message, not a SyncMessage")
    if not asynchronous and hint is Message:
        raise TypeError(f"{name} is an ordinary function and takes a SyncMessage, not a Message")


def _fields(name: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> Decode:
    """The converter from a message to an object that has a handler's parameters."""
    fields: list[Any] = []
    for parameter in parameters:
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, msgspec.field(default_factory=_giving(parameter.default))))
    kind = msgspec.defstruct(name.rpartition(".")[2], fields, kw_only=True, forbid_unknown_fields=True)
    return _json(msgspec.json.Decoder(kind, dec_hook=_convert))


def _giving(value: object) -> Callable[[], object]:
    return lambda: value


def _convert(kind: Any, value: object) -> object:
    """pydantic's models as fields, without importing pydantic."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"{kind} is nothing that a field of JSON can be")
    return validate(value)


def decoder(hint: Any) -> Decode:
    """The converter from a message to this type."""
    if hint is Any or hint is object:
        return _natural
    if hint is bytes:
        return lambda message: message.body
    if hint is str:
        return _text
    validate = getattr(hint, "model_validate_json", None)
    if validate is not None:
        return _pydantic(validate)
    return _json(msgspec.json.Decoder(hint))


def _natural(message: Received) -> object:
    kind = (message.content_type or "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return _json(msgspec.json.Decoder(Any))(message)
    return _text(message) if kind.startswith("text/") else message.body


def _text(message: Received) -> str:
    try:
        return message.body.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"payload is not UTF-8: {error}") from None


def _json(decoding: msgspec.json.Decoder[Any]) -> Decode:
    def decode(message: Received) -> object:
        try:
            return decoding.decode(message.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unreadable(f"payload is wrong: {error}") from None

    return decode


def _pydantic(validate: Callable[[bytes], object]) -> Decode:
    def decode(message: Received) -> object:
        try:
            return validate(message.body)
        except ValueError as error:  # pydantic's ValidationError is one
            raise Unreadable(f"payload is wrong: {error}") from None

    return decode
