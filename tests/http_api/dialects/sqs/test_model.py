"""Our shapes, errors and attributes are those of botocore's own description of the service."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import botocore.session
import msgspec
import pytest
from botocore.loaders import Loader
from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, Shape, StructureShape

from holdfast.http_api.dialects.sqs.endpoint import ACTIONS, NOT_SUPPORTED
from holdfast.http_api.dialects.sqs.queues import ATTRIBUTES
from holdfast.http_api.dialects.sqs.receiving import SYSTEM_ATTRIBUTES
from holdfast.http_api.dialects.sqs.refusals import MODELLED, Refusal
from tests.http_api.dialects.sqs.rig import QUERY_MODEL

NEWEST: ServiceModel = botocore.session.Session().get_service_model("sqs")
OLDER = ServiceModel(Loader(extra_search_paths=[str(QUERY_MODEL)]).load_service_model("sqs", "service-2"), "sqs")
OPERATIONS = sorted(set(NEWEST.operation_names) - set(NOT_SUPPORTED))

RESERVED = {"StringListValues", "BinaryListValues"}
"""Members that AWS itself says are not implemented."""

EMPTY_IS_AN_ERROR_OF_ITS_OWN = {"Entries"}
"""Required, but where they are missing the error is EmptyBatchRequest."""

SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "long": (int,),
    "boolean": (bool,),
    "blob": (str,),  # in base64
}


def test_every_operation_is_an_action() -> None:
    assert sorted(ACTIONS) == OPERATIONS
    assert set(OLDER.operation_names) == set(NEWEST.operation_names)


def _differences(ours: Any, theirs: Shape, place: str) -> Iterator[str]:
    """In what a type of ours is another than a shape of theirs."""
    if get_origin(ours) is typing.Annotated:
        ours = get_args(ours)[0]
    kinds = [kind for kind in get_args(ours) if kind is not type(None)] if type(None) in get_args(ours) else [ours]
    ours = kinds[0]
    if isinstance(theirs, StructureShape):
        if not (isinstance(ours, type) and issubclass(ours, msgspec.Struct)):
            yield f"{place} is no struct"
            return
        fields = {field.encode_name: field for field in msgspec.structs.fields(ours)}
        if fields.keys() != theirs.members.keys() - RESERVED:
            yield f"{place}: {sorted(fields.keys() ^ (theirs.members.keys() - RESERVED))}"
            return
        for name, field in fields.items():
            yield from _differences(_plain(field.type), theirs.members[name], f"{place}.{name}")
    elif isinstance(theirs, ListShape):
        if get_origin(ours) is not list:
            yield f"{place} is no list"
            return
        yield from _differences(_plain(get_args(ours)[0]), theirs.member, f"{place}[]")
    elif isinstance(theirs, MapShape):
        if get_origin(ours) is not dict:
            yield f"{place} is no map"
            return
        yield from _differences(_plain(get_args(ours)[1]), theirs.value, f"{place}{{}}")
    elif _plain(ours) not in SCALARS[theirs.type_name]:
        yield f"{place} is {ours}, not {theirs.type_name}"


def _plain(kind: Any) -> Any:
    """Without None and annotations."""
    if type(None) in get_args(kind):
        [kind] = [one for one in get_args(kind) if one is not type(None)]
    return _plain(get_args(kind)[0]) if get_origin(kind) is typing.Annotated else kind


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("model", [NEWEST, OLDER], ids=["newest", "query"])
def test_an_action_takes_and_gives_what_the_description_says(model: ServiceModel, name: str) -> None:
    operation: OperationModel = model.operation_model(name)
    takes, gives = ACTIONS[name].takes, typing.get_type_hints(ACTIONS[name].run)["return"]
    newer = {"MessageSystemAttributeNames"} if model is OLDER else set()
    found = [line for line in _differences(takes, operation.input_shape, name) if line != f"{name}: {sorted(newer)}"]
    assert found == []
    required = {field.encode_name for field in msgspec.structs.fields(takes) if field.required}
    assert required == set(operation.input_shape.required_members) - EMPTY_IS_AN_ERROR_OF_ITS_OWN
    if operation.output_shape is None:
        assert msgspec.structs.fields(gives) == ()
    else:
        assert list(_differences(gives, operation.output_shape, name)) == []


def test_attributes_are_those_of_the_description() -> None:
    assert set(NEWEST.shape_for("QueueAttributeName").enum) == ATTRIBUTES
    assert set(NEWEST.shape_for("MessageSystemAttributeName").enum) == SYSTEM_ATTRIBUTES


@pytest.mark.parametrize("name", sorted(MODELLED))
def test_errors_are_those_of_the_description(name: str) -> None:
    """Their names in JSON, their codes and statuses in the query protocol."""
    assert name in {shape.name for shape in NEWEST.error_shapes}
    known = {shape.name: shape.metadata.get("error", {}) for shape in OLDER.error_shapes}
    refusal = Refusal(name, "")
    assert refusal.query_code == known.get(name, {}).get("code", name)
    assert refusal.status == known.get(name, {}).get("httpStatusCode", 400)


def test_no_error_of_the_description_is_taken_for_another() -> None:
    """What is not in MODELLED is not made by us: keys of KMS, addresses, deletions that AWS remembers."""
    unused = {shape.name for shape in NEWEST.error_shapes} - MODELLED
    assert unused == {
        *("InvalidAddress", "InvalidIdFormat", "InvalidSecurity", "PurgeQueueInProgress", "QueueDeletedRecently"),
        *("KmsAccessDenied", "KmsDisabled", "KmsInvalidKeyUsage", "KmsInvalidState", "KmsNotFound"),
        *("KmsOptInRequired", "KmsThrottled"),
    }
