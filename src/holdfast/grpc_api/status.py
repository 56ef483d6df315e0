"""Errors as gRPC says them: a status code, and `google.rpc.Status` in the trailers."""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from holdfast.errors import HoldfastError
from holdfast.grpc_api.generated import queue_pb2 as pb

DOMAIN: Final = "holdfast"
"""Of `ErrorInfo`: whose codes these are."""

RETRY_AFTER_MS: Final = 1_000
"""Where nothing better is known."""

TEXT_MAX: Final = 1_000
"""Characters of a message in the trailers: clients refuse those of more than 8 KiB."""

DETAIL_MAX: Final = 200
DETAILS_MAX: Final = 10

DETAILS_KEY: Final = "grpc-status-details-bin"


def code_of(error: HoldfastError) -> grpc.StatusCode:
    code: grpc.StatusCode = grpc.StatusCode[error.grpc]
    return code


def status_of(error: HoldfastError) -> status_pb2.Status:
    """With `ErrorInfo`, whose reason is the error's code, and `RetryInfo` if the same call may succeed later."""
    details = [_packed(error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=_details(error)))]
    if error.retryable:
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=_retry_after(error))))
    return status_pb2.Status(code=code_of(error).value[0], message=str(error)[:TEXT_MAX], details=details)


def problem_of(error: HoldfastError) -> pb.Problem:
    """An error inside a response."""
    return pb.Problem(
        code=error.code,
        message=str(error)[:TEXT_MAX],
        retryable=error.retryable,
        details=_details(error),
        retry_after=_retry_after(error) if error.retryable else None,
    )


def item_errors(errors: dict[int, HoldfastError]) -> list[pb.ItemError]:
    return [pb.ItemError(index=index, problem=problem_of(errors[index])) for index in sorted(errors)]


def _details(error: HoldfastError) -> dict[str, str]:
    shown = list(error.details.items())[:DETAILS_MAX]
    return {name: _text(value) for name, value in shown if value is not None}


def _text(value: object) -> str:
    return str(value)[:DETAIL_MAX].encode(errors="replace").decode()


def _retry_after(error: HoldfastError) -> duration_pb2.Duration:
    wait_ms = int(str(error.details.get("retry_after_ms", RETRY_AFTER_MS)))
    return duration_pb2.Duration(seconds=wait_ms // 1000, nanos=wait_ms % 1000 * 1_000_000)


def _packed(detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
