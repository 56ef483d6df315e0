"""Converts a message to a handler's arguments, by the handler's annotations.

One parameter takes the payload, another may take the message itself:

    bytes                      as it is
    str                        as UTF-8 text
    a pydantic model           checked by pydantic
    anything else              JSON, checked by msgspec: structs, dataclasses, TypedDicts, dict, list[int], unions, ...
    nothing, Any or object     by content type: JSON, text, else bytes
    Message, SyncMessage       the message (the second one in ordinary functions)
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.client.messages import Message, Received
from holdfast.client.sync import SyncMessage

Decode = Callable[[Received], object]


class Unreadable(Exception):
    """The payload does not fit the handler's annotation. Retrying cannot change that."""


class Call(msgspec.Struct, frozen=True):
    """How to call a handler: by parameter name, the converter from message to argument."""

    payload: str | None
    decode: Decode
    message: str | None

    def arguments(self, message: Received) -> dict[str, object]:
        """The handler's arguments. Raises Unreadable."""
        given: dict[str, object] = {}
        if self.payload is not None:
            given[self.payload] = self.decode(message)
        if self.message is not None:
            given[self.message] = message
        return given


def call_of(function: Callable[..., object], asynchronous: bool, local_names: dict[str, Any]) -> Call:
    """Read a handler's signature. Raises TypeError if no message could fit it."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        hints = typing.get_type_hints(function, localns=local_names)
    except NameError as error:
        raise TypeError(f"an annotation of {name} cannot be resolved: {error}; define it before the worker") from None
    payload: str | None = None
    decode: Decode = _natural
    message: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise TypeError(f"{name} takes {parameter}: a handler's parameters are given by name")
        if isinstance(hint, type) and issubclass(hint, Received) and message is None:
            _check_kind(name, hint, asynchronous)
            message = parameter.name
        elif payload is None:
            payload, decode = parameter.name, decoder(hint)
        elif parameter.default is parameter.empty:
            raise TypeError(f"{name} takes {parameter.name!r} too, but there is only the payload and the message")
    return Call(payload, decode, message)


def _check_kind(name: str, hint: type[Received], asynchronous: bool) -> None:
    if asynchronous and hint is SyncMessage:
        raise TypeError(f"{name} is asynchronous and takes a Message, not a SyncMessage")
    if not asynchronous and hint is Message:
        raise TypeError(f"{name} is an ordinary function and takes a SyncMessage, not a Message")


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
