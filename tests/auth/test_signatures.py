"""AWS Signature Version 4, with the examples of AWS's own test suite; and access keys in the users file."""

from __future__ import annotations

import json

import pytest

from holdfast.auth import signatures, users
from holdfast.auth.signatures import SignedRequest
from holdfast.errors import Unauthenticated
from holdfast.units import parse_instant

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
FORM = b"application/x-www-form-urlencoded"
EXAMPLES = [
    ("GET", "/", b"", b"", b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
    ("POST", "/", b"", b"", b"", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
    (
        *("GET", "/", b"Param2=value2&Param1=value1", b"", b""),
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ),
    (
        *("POST", "/", b"", b"Param1=value1", FORM),
        "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
    ),
]


def _request(method: str, path: str, query: bytes, body: bytes, content_type: bytes, digest: str) -> SignedRequest:
    names = "content-type;host;x-amz-date" if content_type else "host;x-amz-date"
    credential = "AKIDEXAMPLE/20150830/us-east-1/service/aws4_request"
    authorization = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={digest}"
    headers = {
        b"host": b"example.amazonaws.com",
        b"x-amz-date": b"20150830T123600Z",
        b"authorization": authorization.encode(),
    }
    if content_type:
        headers[b"content-type"] = content_type
    return SignedRequest(method, path, query, headers, body)


@pytest.mark.parametrize(("method", "path", "query", "body", "content_type", "digest"), EXAMPLES)
def test_the_examples_of_aws(
    method: str, path: str, query: bytes, body: bytes, content_type: bytes, digest: str
) -> None:
    request = _request(method, path, query, body, content_type, digest)
    signature = signatures.read(request.headers)
    assert (signature.key_id, signature.scope) == ("AKIDEXAMPLE", ("20150830", "us-east-1", "service"))
    signatures.check(signature, SECRET, request)
    signatures.check_time(signature, parse_instant("2015-08-30T12:40:00Z"))
    for wrong in (
        request._replace(method="PUT"),
        request._replace(path="/a"),
        request._replace(query=b"a=b"),
        request._replace(body=b"x"),
        request._replace(headers={**request.headers, b"host": b"elsewhere"}),
    ):
        with pytest.raises(Unauthenticated, match="not that of this request"):
            signatures.check(signature, SECRET, wrong)
    with pytest.raises(Unauthenticated, match="not that of this request"):
        signatures.check(signature, SECRET + "x", request)


@pytest.mark.parametrize("at", ["2015-08-30T12:20:59Z", "2015-08-30T12:51:01Z"])
def test_a_signature_is_not_for_ever(at: str) -> None:
    signature = signatures.read(_request(*EXAMPLES[0]).headers)
    with pytest.raises(Unauthenticated, match="15 minutes"):
        signatures.check_time(signature, parse_instant(at))


def test_the_day_of_the_scope_is_that_of_the_request() -> None:
    signature = signatures.read(_request(*EXAMPLES[0]).headers)
    other = signature._replace(scope=("20150829", "us-east-1", "service"))
    with pytest.raises(Unauthenticated):
        signatures.check_time(other, parse_instant("2015-08-30T12:36:00Z"))


KEY = {"id": "HFAK7QZ3M2WJ5NTX6RPD", "secret": "s" * 40}


def _file(*entries: dict[str, object]) -> bytes:
    return json.dumps({"version": 1, "users": [{"scopes": ["produce:#"], **entry} for entry in entries]}).encode()


def test_a_user_may_have_access_keys_and_nothing_else() -> None:
    found = users.read(_file({"name": "shop", "access_keys": [KEY]}), 10, 10)
    owner, key = found.by_access_key["HFAK7QZ3M2WJ5NTX6RPD"]
    assert (owner.name, key.secret) == ("shop", "s" * 40)
    assert users.read(found.encode(), 10, 10).by_access_key == found.by_access_key


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([{"name": "shop"}], "nor an access key"),
        ([{"name": "shop", "access_keys": [{**KEY, "id": "a b c d e"}]}], "id is not"),
        ([{"name": "shop", "access_keys": [{**KEY, "secret": "short"}]}], "secret is not"),
        ([{"name": "shop", "access_keys": [{**KEY, "id": f"HFAK000{n}"} for n in range(3)]}], "more than 2"),
        ([{"name": "a", "access_keys": [KEY]}, {"name": "b", "access_keys": [KEY]}], "twice"),
    ],
)
def test_access_keys_that_are_wrong_are_refused_and_not_quoted(entries: list[dict[str, object]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as error:
        users.read(_file(*entries), 10, 10)
    assert "ssss" not in str(error.value)
    assert "short" not in str(error.value)
