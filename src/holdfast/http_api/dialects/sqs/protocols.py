"""The two protocols of SQS: JSON 1.0, and the older one with a form in and XML out.

Both are the same structs (shapes.py). In a form, lists are flattened and numbered, and maps are lists of names and
values; elements have names of their own, which the tables here pair with the structs' fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes
from xml.sax.saxutils import escape

import msgspec

from holdfast.error_text import shown
from holdfast.http_api.codecs.json_slices import Steps, check_cheap
from holdfast.http_api.codecs.values import decode
from holdfast.http_api.dialects.sqs.refusals import Refusal
from holdfast.http_api.dialects.sqs.shapes import Input, Output, SqsProblem
from holdfast.http_api.server.response import Header, Response, encode

JSON: Final = "application/x-amz-json-1.0"
FORM: Final = "application/x-www-form-urlencoded"
XML: Final = "text/xml"
TARGET: Final = "AmazonSQS."

FIELDS_MAX: Final = 2_000
"""Of a form: ten messages with ten attributes have some five hundred."""

LEVELS_MAX: Final = 10
"""Of a field's name. `SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringListValue.1` has seven."""

STEP_BYTES: Final = 32 << 10
"""How much of a form is decoded in one step. To decode takes a string for each escape."""

_NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
_MAPS: Final = {
    "Attribute": ("Attributes", "Name", "Value"),
    "MessageAttribute": ("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name", "Value"),
    "Tag": ("Tags", "Key", "Value"),
}
_LISTS: Final = {
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "TagKey": "TagKeys",
    "SendMessageBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
}
_PLURALS: Final = {*_LISTS.values(), *[plural for plural, _, _ in _MAPS.values()]}
"""botocore sends a list that is empty by this name, without a value."""

_XML_MAPS: Final = {plural: (element, name, value) for element, (plural, name, value) in _MAPS.items()}
_XML_LISTS: Final = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}

_Input = TypeVar("_Input", bound=Input)


class ActionRequest:
    """An action that was asked for in the JSON protocol."""

    def __init__(self, action: str, body: bytes) -> None:
        self.action = action
        self._body = body

    def read(self, shape: type[_Input]) -> _Input:
        """What the action takes. Raises InvalidArgument or MalformedRequest."""
        check_cheap(self._body)
        found: _Input = decode(_decoder(shape).decode, self._body or b"{}")
        return found

    def response(self, output: Output, request_id: str) -> Response:
        return Response(encode(output), 200, JSON.encode(), _headers(request_id))


class QueryCall(ActionRequest):
    """An action that was asked for in the query protocol."""

    def __init__(self, form: Mapping[str, str]) -> None:
        super().__init__(form.get("Action", ""), b"")
        self._form = form

    def read(self, shape: type[_Input]) -> _Input:
        try:
            return msgspec.convert(_unflatten(self._form), shape, strict=False)
        except msgspec.ValidationError as error:
            raise Refusal("InvalidParameterValue", f"The request is wrong: {shown(error)}") from None

    def response(self, output: Output, request_id: str) -> Response:
        fields = msgspec.to_builtins(output)
        result = "".join(_xml(name, value, self.action) for name, value in fields.items())
        wrapped = f"<{self.action}Result>{result}</{self.action}Result>" if output.__struct_fields__ else ""
        text = (
            f'<?xml version="1.0"?><{self.action}Response xmlns="{_NAMESPACE}">{wrapped}'
            f"<ResponseMetadata><RequestId>{escape(request_id)}</RequestId></ResponseMetadata></{self.action}Response>"
        )
        return Response(text.encode(), 200, XML.encode(), _headers(request_id))


def read_call(content_type: str, target: str, body: bytes) -> Steps[ActionRequest]:
    """Which action is asked for, and how."""
    if content_type == FORM:
        return QueryCall((yield from _form(body)))
    return ActionRequest(target.removeprefix(TARGET) if target.startswith(TARGET) else "", body)


def refusal_response(refusal: Refusal, content_type: str, request_id: str = "") -> Response:
    """An error in the protocol of the request."""
    fault = "Sender" if refusal.sender_fault else "Receiver"
    if content_type == FORM:
        text = (
            f'<?xml version="1.0"?><ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>{fault}</Type>'
            f"<Code>{escape(refusal.query_code)}</Code><Message>{_text(refusal.message)}</Message></Error>"
            f"<RequestId>{escape(request_id)}</RequestId></ErrorResponse>"
        )
        return Response(text.encode(), refusal.status, XML.encode(), _headers(request_id))
    body = encode(SqsProblem(type=refusal.type, message=refusal.message, code=refusal.code))
    compatible = (b"x-amzn-query-error", f"{refusal.query_code};{fault}".encode())
    return Response(body, refusal.status, JSON.encode(), [*_headers(request_id), compatible])


@cache
def _decoder(shape: type[Input]) -> msgspec.json.Decoder[Any]:
    """SDKs differ in whether numbers are numbers or texts: both are taken."""
    return msgspec.json.Decoder(shape, strict=False)


def _headers(request_id: str) -> list[Header]:
    return [(b"x-amzn-requestid", request_id.encode())] if request_id else []


# --- forms ----------------------------------------------------------------------------------------------------------


def _form(body: bytes) -> Steps[dict[str, str]]:
    """The fields of a form. It may be as long as a request: others run in between."""
    if body.count(b"&") >= FIELDS_MAX:
        raise Refusal("InvalidParameterValue", f"The form has more than {FIELDS_MAX} fields.")
    fields: dict[str, str] = {}
    decoded = 0
    for pair in body.split(b"&"):
        texts = ["", ""]
        for index, raw in enumerate(pair.split(b"=", 1)):
            parts: list[bytes] = []
            start = 0
            while start < len(raw):
                end = start + STEP_BYTES
                cut = raw.rfind(b"%", end - 2, end)  # an escape is decoded whole
                end = cut if cut >= 0 and end < len(raw) else end
                parts.append(unquote_to_bytes(raw[start:end].replace(b"+", b" ")))
                decoded += end - start
                start = end
                if decoded >= STEP_BYTES:
                    decoded = 0
                    yield
            try:
                texts[index] = b"".join(parts).decode()
            except UnicodeDecodeError:
                raise Refusal("InvalidParameterValue", "The form is not UTF-8.") from None
        if pair:
            fields[texts[0]] = texts[1]
    return fields


Tree = dict[str, Any]


def _unflatten(form: Mapping[str, str]) -> Tree:
    """`Attribute.1.Name=a&Attribute.1.Value=b` as `{"Attributes": {"a": "b"}}`."""
    tree: Tree = {}
    for path, value in form.items():
        *parents, last = path.split(".", LEVELS_MAX)
        if len(parents) == LEVELS_MAX:
            raise Refusal("InvalidParameterValue", f"The parameter {shown(path)} has more than {LEVELS_MAX} levels.")
        branch: Any = tree
        for part in parents:
            branch = branch.setdefault(part, {})
            if not isinstance(branch, dict):
                raise Refusal("InvalidParameterValue", f"The parameter {parents[0]} is given in two ways.")
        branch[last] = value
    return _named(tree)


def _named(tree: Tree) -> Tree:
    found: Tree = {}
    for name, value in tree.items():
        if name in _MAPS:
            plural, key, content = _MAPS[name]
            pairs = {one.get(key, ""): one.get(content, "") for one in _elements(value) if isinstance(one, dict)}
            found[plural] = pairs
            found[plural.lower()] = pairs  # CreateQueue has `tags`
        elif name in _LISTS:
            found[_LISTS[name]] = [_named(one) if isinstance(one, dict) else one for one in _elements(value)]
        elif value != "" or name not in _PLURALS:
            found[name] = value
    return found


def _elements(value: object) -> list[Any]:
    """The elements of a list by their numbers; one that has no number is the only one."""
    if not isinstance(value, dict) or not all(name.isdecimal() for name in value):
        return [value]
    return [value[number] for number in sorted(value, key=int)]


# --- XML ------------------------------------------------------------------------------------------------------------


def _xml(name: str, value: object, action: str) -> str:
    match value:
        case dict() if name in _XML_MAPS:
            element, key, content = _XML_MAPS[name]
            return "".join(
                f"<{element}>{_xml(key, one, action)}{_xml(content, other, action)}</{element}>"
                for one, other in value.items()
            )
        case dict():
            inside = "".join(_xml(one, other, action) for one, other in value.items())
            return f"<{name}>{inside}</{name}>"
        case list():
            element = _XML_LISTS.get(name, f"{action}ResultEntry")
            return "".join(_xml(element, one, action) for one in value)
        case bool():
            return f"<{name}>{str(value).lower()}</{name}>"
        case _:
            return f"<{name}>{_text(str(value))}</{name}>"


def _text(text: str) -> str:
    """A line end would be normalised by a reader, were it not written as a reference."""
    return escape(text, {"\r": "&#xD;"})
