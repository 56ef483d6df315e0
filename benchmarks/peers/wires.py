"""The client's side of other servers' protocols: Redis streams, AMQP 0-9-1 and PostgreSQL. See `load/wires.py`."""

from __future__ import annotations

import re
import struct
import sys

from benchmarks.load.wires import ConsumerWire, PublisherWire

# --- Redis ------------------------------------------------------------------------------------------------------------

STREAM, GROUP = b"bench", b"bench"
READ_HEAD = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*(\d+)\r\n")
READ_ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\np\r\n\$\d+\r\n([^\r]*)\r\n")
ACK_REPLIES = b":1\r\n" * 2  # to the XACK and the XDEL of a message


def redis_command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class RedisWire(PublisherWire, ConsumerWire):
    """A stream with a consumer group; acked messages are deleted, as a queue would. Payloads must not contain line
    ends."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._lines = 0
        self._unanswered = 0  # bytes of replies to acks
        self._read = b""

    def create_group(self) -> None:
        self.socket.sendall(redis_command(b"XGROUP", b"CREATE", STREAM, GROUP, b"0", b"MKSTREAM"))
        if (reply := self.receive()) != b"+OK\r\n":
            raise RuntimeError(reply.decode())

    def encode(self, payload: bytes) -> bytes:
        return redis_command(b"XADD", STREAM, b"*", b"p", payload)

    def confirmed(self, data: bytes) -> int:
        """A reply is an identifier: its length and itself, a line each."""
        if data.startswith(b"-"):
            raise RuntimeError(data.decode())
        replies, self._lines = divmod(self._lines + data.count(b"\n"), 2)
        return replies

    def consume(self, name: str, prefetch: int) -> RedisWire:
        group, count = (b"GROUP", GROUP, name.encode()), (b"COUNT", b"%d" % prefetch)
        self._read = redis_command(b"XREADGROUP", *group, *count, b"BLOCK", b"0", b"STREAMS", STREAM, b">")
        self.socket.sendall(self._read)
        return self

    def delivered(self, data: bytes) -> tuple[list[bytes], bytes]:
        rest = self._without_ack_replies(data)
        head = READ_HEAD.match(rest)
        entries = READ_ENTRY.findall(rest, head.end()) if head else []
        if not head or len(entries) < int(head[1]):
            return [], b""
        self._rest = b""
        self._unanswered = len(entries) * len(ACK_REPLIES)
        acks = [
            redis_command(b"XACK", STREAM, GROUP, number) + redis_command(b"XDEL", STREAM, number)
            for number, _ in entries
        ]
        return [payload for _, payload in entries], b"".join(acks) + self._read

    def wait_acked(self) -> None:
        while self._unanswered:
            self._without_ack_replies(self.receive())

    def _without_ack_replies(self, data: bytes) -> bytes:
        """What has come behind the replies to acks."""
        rest = self._rest + data
        if rest.startswith(b"-"):
            raise RuntimeError(rest.decode())
        answered = min(self._unanswered, len(rest))
        self._unanswered -= answered
        self._rest = rest[answered:]
        return self._rest


# --- AMQP 0-9-1 -------------------------------------------------------------------------------------------------------

METHOD, HEADER, BODY = 1, 2, 3
START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = (10, 10), (10, 11), (10, 30), (10, 31), (10, 40), (10, 41)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
QUEUE_DECLARE, QUEUE_DECLARE_OK = (50, 10), (50, 11)
QOS, QOS_OK, CONSUME, CONSUME_OK = (60, 10), (60, 11), (60, 20), (60, 21)
PUBLISH, DELIVER, ACK = (60, 40), (60, 60), (60, 80)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)
DURABLE = 2
FRAME_BYTES_MAX = 131_072


def amqp_frame(kind: int, channel: int, body: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(body)) + body + b"\xce"


def amqp_method(number: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> bytes:
    return amqp_frame(METHOD, channel, struct.pack(">HH", *number) + arguments)


def short_text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def long_text(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


class AmqpWire(PublisherWire, ConsumerWire):
    """A durable queue of RabbitMQ, with publisher confirms."""

    def __init__(self, port: int, queue: str) -> None:
        super().__init__(port)
        self._confirmed_to = 0  # delivery tags up to here,
        self._confirmed_beyond: set[int] = set()  # and these
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(START)
        mechanism = short_text("PLAIN") + long_text(b"\0guest\0guest") + short_text("en_US")
        self._call(START_OK, long_text(b"") + mechanism, TUNE, 0)
        self.socket.sendall(amqp_method(TUNE_OK, struct.pack(">HIH", 1, FRAME_BYTES_MAX, 0), 0))
        self._call(OPEN, short_text("/") + b"\0\0", OPEN_OK, 0)
        self._call(CHANNEL_OPEN, b"\0", CHANNEL_OPEN_OK)
        self._queue = short_text(queue)
        self._publish = amqp_method(PUBLISH, b"\0\0" + short_text("") + self._queue + b"\0")

    def declare(self, kind: str) -> None:
        table = short_text("x-queue-type") + b"S" + long_text(kind.encode())
        self._call(QUEUE_DECLARE, b"\0\0" + self._queue + bytes([DURABLE]) + long_text(table), QUEUE_DECLARE_OK)

    def confirm(self) -> AmqpWire:
        """Have publishes confirmed."""
        self._call(CONFIRM_SELECT, b"\0", CONFIRM_SELECT_OK)
        return self

    def encode(self, payload: bytes) -> bytes:
        persistent = struct.pack(">HHQHB", 60, 0, len(payload), 1 << 12, 2)
        return self._publish + amqp_frame(HEADER, 1, persistent) + amqp_frame(BODY, 1, payload)

    def confirmed(self, data: bytes) -> int:
        count = 0
        for kind, body in self._frames(data):
            tag, multiple = struct.unpack(">QB", self._arguments(kind, body, ACK))
            if multiple:
                earlier = {one for one in self._confirmed_beyond if one <= tag}
                count += tag - self._confirmed_to - len(earlier)
                self._confirmed_beyond -= earlier
                self._confirmed_to = tag
            else:
                count += 1
                self._confirmed_beyond.add(tag)
            while self._confirmed_to + 1 in self._confirmed_beyond:
                self._confirmed_to += 1
                self._confirmed_beyond.remove(self._confirmed_to)
        return count

    def consume(self, prefetch: int) -> AmqpWire:
        self._call(QOS, struct.pack(">IHB", 0, prefetch, 0), QOS_OK)
        self._call(CONSUME, b"\0\0" + self._queue + short_text("bench") + b"\0" + long_text(b""), CONSUME_OK)
        return self

    def delivered(self, data: bytes) -> tuple[list[bytes], bytes]:
        payloads: list[bytes] = []
        acks: list[bytes] = []
        for kind, body in self._frames(data):
            if kind == BODY:
                payloads.append(body)
            elif kind == METHOD:
                arguments = self._arguments(kind, body, DELIVER)
                start = 1 + arguments[0]  # the tag follows the consumer's name
                acks.append(amqp_method(ACK, arguments[start : start + 8] + b"\0"))
        return payloads, b"".join(acks)

    def wait_acked(self) -> None:
        self._call(QOS, struct.pack(">IHB", 0, 1, 0), QOS_OK)

    def _call(self, method: tuple[int, int], arguments: bytes, answer: tuple[int, int], channel: int = 1) -> None:
        self.socket.sendall(amqp_method(method, arguments, channel))
        self._expect(answer)

    def _expect(self, method: tuple[int, int]) -> None:
        """The first frame that comes must be this method; what follows it is kept."""
        frames = self._frames(b"", 1)
        while not frames:
            frames = self._frames(self.receive(), 1)
        self._arguments(*frames[0], method)

    @staticmethod
    def _arguments(kind: int, body: bytes, method: tuple[int, int]) -> bytes:
        if kind != METHOD or struct.unpack_from(">HH", body) != method:
            raise RuntimeError(f"expected AMQP method {method}, received {body!r}")
        return body[4:]

    def _frames(self, data: bytes, most: int = sys.maxsize) -> list[tuple[int, bytes]]:
        """Kind and body of each frame that is complete."""
        rest, start = self._rest + data, 0
        found: list[tuple[int, bytes]] = []
        while len(rest) - start >= 8 and len(found) < most:
            end = start + 7 + int.from_bytes(rest[start + 3 : start + 7])
            if len(rest) <= end:
                break
            found.append((rest[start], rest[start + 7 : end]))
            start = end + 1
        self._rest = rest[start:]
        return found


# --- PostgreSQL -------------------------------------------------------------------------------------------------------

PROTOCOL_VERSION = 196_608
INSERT = b"INSERT INTO messages (payload) VALUES ($1)"


def postgres_message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


class PostgresWire(PublisherWire):
    """A table as a queue: one row a transaction, by a prepared statement."""

    statement = INSERT

    def __init__(self, port: int) -> None:
        super().__init__(port)
        startup = struct.pack(">I", PROTOCOL_VERSION) + b"user\0postgres\0database\0postgres\0\0"
        self.socket.sendall(postgres_message(b"", startup))
        self._wait_ready()

    def create_table(self) -> None:
        self.socket.sendall(
            postgres_message(b"Q", b"CREATE TABLE messages (id bigserial PRIMARY KEY, payload bytea)\0")
        )
        self._wait_ready()

    def prepare(self) -> PostgresWire:
        self.socket.sendall(
            postgres_message(b"P", b"insert\0" + self.statement + b"\0\0\0") + postgres_message(b"S", b"")
        )
        self._wait_ready()
        return self

    def encode(self, payload: bytes) -> bytes:
        in_binary = struct.pack(">HHHI", 1, 1, 1, len(payload)) + payload + b"\0\0"
        bind = postgres_message(b"B", b"\0insert\0" + in_binary)
        return bind + postgres_message(b"E", b"\0\0\0\0\0") + postgres_message(b"S", b"")

    def confirmed(self, data: bytes) -> int:
        """The server is ready for the next transaction when this one is committed."""
        return self._kinds(data).count(b"Z")

    def _wait_ready(self) -> None:
        while b"Z" not in self._kinds(self.receive()):
            pass

    def _kinds(self, data: bytes) -> list[bytes]:
        """The kind of each message that is complete."""
        kinds: list[bytes] = []
        rest, start = self._rest + data, 0
        while len(rest) - start >= 5:
            end = start + 1 + int.from_bytes(rest[start + 1 : start + 5])
            if len(rest) < end:
                break
            kinds.append(rest[start : start + 1])
            if kinds[-1] == b"E":
                raise RuntimeError(rest[start:end].replace(b"\0", b" ").decode())
            start = end
        self._rest = rest[start:]
        return kinds


class PostgresBatchWire(PostgresWire):
    """A table as a queue: as many rows a transaction as are in a batch."""

    statement = b"INSERT INTO messages (payload) SELECT unnest($1::bytea[])"

    def __init__(self, port: int, batch: int) -> None:
        super().__init__(port)
        self._batch = batch

    def encode(self, payload: bytes) -> bytes:
        """One transaction: payloads as an array of `bytea`."""
        array = struct.pack(">iiIii", 1, 0, 17, self._batch, 1) + self._batch * (
            struct.pack(">I", len(payload)) + payload
        )
        return super().encode(array)
