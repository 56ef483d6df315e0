"""What SQS calls messages, queues and leases by: message ids, URLs, ARNs, receipt handles.

A message id looks like a UUID, because some SDKs read it as one: `00066f3a-1c2b-83d4-8000-00000000000e` is the message
0x00066f3a1c2b3d4e. A receipt handle has the message's id, its lease token and its partition, which is what settling
needs, and a checksum with the queue: one that was cut, or is of another queue, is known as such. It gives nobody a
right: the caller must be allowed to consume, and the token must be that of the lease.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from struct import Struct
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from holdfast.core.commands import Leased, Settlement, Verb
from holdfast.engine.catalog import QueueName
from holdfast.http_api.dialects.sqs.refusals import Refusal, invalid

ACCOUNT: Final = "000000000000"
"""The account in URLs and ARNs: whose a queue is depends on the caller's credential."""

GROUP: Final = "default"
"""The group in which all receivers of SQS share a queue."""

_HANDLE = Struct(">BQQI")
_VERSION: Final = 1
_CHECK_BYTES: Final = 7


def message_uuid(message_id: int) -> str:
    digits = f"{message_id:016x}"
    return f"{digits[:8]}-{digits[8:12]}-8{digits[12:15]}-8000-00000000000{digits[15]}"


def sequence_number(message_id: int) -> str:
    """Twenty digits, so that they compare as texts too."""
    return f"{message_id:020d}"


# --- queues ---------------------------------------------------------------------------------------------------------


def queue_url(base: str, name: str) -> str:
    return f"{base}/sqs/{ACCOUNT}/{quote(name, safe='')}"


def queue_in_url(url: str) -> str:
    """The name of the queue that a URL is of: its last part. Some clients give the name itself."""
    name = unquote(url.rstrip("/").rpartition("/")[2])
    if not name:
        raise Refusal("QueueDoesNotExist", f"The queue URL {url[:200]!r} names no queue.")
    return name


def queue_arn(region: str, name: str) -> str:
    return f"arn:aws:sqs:{region}:{ACCOUNT}:{name}"


def queue_in_arn(arn: str, parameter: str) -> str:
    parts = arn.split(":", 5)
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs" or not parts[5]:
        raise invalid(parameter, arn[:200], "It is not the ARN of a queue.")
    return parts[5]


# --- receipt handles ------------------------------------------------------------------------------------------------


class LeaseHandle(NamedTuple):
    """Which lease a receipt handle stands for."""

    id: int
    token: int
    partition: int

    @staticmethod
    def of(leased: Leased) -> LeaseHandle:
        return LeaseHandle(leased.message.id, leased.token, leased.partition)

    def extension(self, timeout: int) -> Settlement:
        """Holds the lease for so long from now; -1: for as long as the queue says."""
        return Settlement(self.id, self.token, Verb.EXTEND, timeout=timeout, partition=self.partition)

    def handle(self, queue: QueueName, created_at: int) -> str:
        packed = _HANDLE.pack(_VERSION, *self)
        return urlsafe_b64encode(packed + _check(packed, queue, created_at)).decode()


def read_handle(handle: str, queue: QueueName, created_at: int) -> LeaseHandle:
    """Raises Refusal if it is not a receipt handle of this queue."""
    try:
        raw = urlsafe_b64decode(handle.encode("ascii"))
    except ValueError:
        raw = b""
    packed, check = raw[: _HANDLE.size], raw[_HANDLE.size :]
    if len(packed) < _HANDLE.size or check != _check(packed, queue, created_at):
        raise Refusal("ReceiptHandleIsInvalid", "The input receipt handle is not one of this queue.")
    _, message_id, token, partition = _HANDLE.unpack(packed)
    return LeaseHandle(message_id, token, partition)


def _check(packed: bytes, queue: QueueName, created_at: int) -> bytes:
    place = f"{created_at}\0{queue[0]}\0{queue[1]}".encode()
    return hashlib.blake2b(packed + place, digest_size=_CHECK_BYTES).digest()
