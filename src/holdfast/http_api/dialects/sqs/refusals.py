"""Errors as SDKs of AWS expect them: their names in the JSON protocol, their codes in the older query protocol."""

from __future__ import annotations

from typing import Final

from holdfast.errors import (
    DeadQueueInvalid,
    Forbidden,
    HoldfastError,
    LeaseLost,
    MessageTooLarge,
    NamespaceForbidden,
    QueueExists,
    QueueInUse,
    QueueNotFound,
    QuotaExceeded,
    RedriveNotFound,
    RequestTooLarge,
    Unauthenticated,
)

_PREFIX: Final = "AWS.SimpleQueueService."

QUERY_CODES: Final = {
    "QueueDoesNotExist": f"{_PREFIX}NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "BatchEntryIdsNotDistinct": f"{_PREFIX}BatchEntryIdsNotDistinct",
    "BatchRequestTooLong": f"{_PREFIX}BatchRequestTooLong",
    "EmptyBatchRequest": f"{_PREFIX}EmptyBatchRequest",
    "InvalidBatchEntryId": f"{_PREFIX}InvalidBatchEntryId",
    "MessageNotInflight": f"{_PREFIX}MessageNotInflight",
    "TooManyEntriesInBatchRequest": f"{_PREFIX}TooManyEntriesInBatchRequest",
    "UnsupportedOperation": f"{_PREFIX}UnsupportedOperation",
}
"""Of the errors whose code in the query protocol is not their name."""

MODELLED: Final = frozenset(
    {
        *QUERY_CODES,
        "InvalidAttributeName",
        "InvalidAttributeValue",
        "InvalidMessageContents",
        "OverLimit",
        "ReceiptHandleIsInvalid",
        "RequestThrottled",
        "ResourceNotFoundException",
    }
)
"""The errors of AWS's description of the service that this server uses. Others are named `…Exception` in JSON."""

_STATUS: Final = {"ResourceNotFoundException": 404, "OverLimit": 403}


class Refusal(Exception):
    """An action is refused, with the name that SDKs know the error by."""

    def __init__(self, name: str, message: str, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.status = status or _STATUS.get(name, 400)
        self.code = code  # of the HoldfastError that it was, if it was one

    @property
    def type(self) -> str:
        """The name in the JSON protocol."""
        return f"com.amazonaws.sqs#{self.name if self.name in MODELLED else f'{self.name}Exception'}"

    @property
    def query_code(self) -> str:
        return QUERY_CODES.get(self.name, self.name)

    @property
    def sender_fault(self) -> bool:
        return self.status < 500


def invalid(parameter: str, value: object, reason: str) -> Refusal:
    return Refusal("InvalidParameterValue", f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


_SIGNATURES: Final = {
    "unknown_key": "InvalidClientTokenId",
    "mismatch": "SignatureDoesNotMatch",
    "expired": "RequestExpired",
    "incomplete": "IncompleteSignature",
}

_NAMES: Final[dict[type[HoldfastError], str]] = {
    QueueNotFound: "QueueDoesNotExist",
    QueueExists: "QueueNameExists",
    QueueInUse: "UnsupportedOperation",
    DeadQueueInvalid: "InvalidAttributeValue",
    LeaseLost: "MessageNotInflight",
    RedriveNotFound: "ResourceNotFoundException",
    QuotaExceeded: "OverLimit",
    Forbidden: "AccessDenied",
    NamespaceForbidden: "AccessDenied",
}


def refusal_of(error: HoldfastError) -> Refusal:
    """An error of the broker as SQS would say it."""
    if isinstance(error, Unauthenticated):
        name = _SIGNATURES.get(str(error.details.get("reason", "")))
        status = 403 if name is not None else error.http
        return Refusal(name or "MissingAuthenticationToken", str(error), status, error.code)
    name = _NAMES.get(type(error))
    if name is not None:
        status = error.http if name == "AccessDenied" else 0
        return Refusal(name, str(error), status, error.code)
    if isinstance(error, MessageTooLarge | RequestTooLarge):
        return Refusal("InvalidParameterValue", str(error), error.http, error.code)
    if error.http == 429:
        return Refusal("RequestThrottled", str(error), error.http, error.code)
    if error.http >= 500:
        return Refusal(
            "ServiceUnavailable" if error.retryable else "InternalFailure", str(error), error.http, error.code
        )
    return Refusal("InvalidParameterValue", str(error), error.http, error.code)
