"""Topics of queues: which queue a topic means, and what is to be done with it. Pure.

$queue/<name>                 PUBLISH enqueues, SUBSCRIBE consumes
$queue/<name>/$ack            settle: also $nack, $reject, $release, $extend
$admin/queue/create           make a queue
$admin/queue/<name>/config    change one
$admin/queue/<name>/stats     SUBSCRIBE: its stats, at an interval
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from holdfast.core.commands import Verb
from holdfast.core.queue import check_name
from holdfast.errors import InvalidTopic
from holdfast.mqtt.topics import has_wildcard, split_share

QUEUE: Final = "$queue/"
ADMIN: Final = "$admin/"
_ADMIN_QUEUE: Final = "$admin/queue/"
_CONFIG: Final = "/config"
_STATS: Final = "/stats"
_VERBS: Final = {
    "$ack": Verb.ACK,
    "$nack": Verb.NACK,
    "$reject": Verb.REJECT,
    "$release": Verb.RELEASE,
    "$extend": Verb.EXTEND,
}


_NUMBER_LENGTH_MAX: Final = 19  # of 63 bits


def is_number(text: str) -> bool:
    """Whether it is a decimal number as the broker writes them: identifiers, tokens, counts."""
    return text.isascii() and text.isdigit() and len(text) <= _NUMBER_LENGTH_MAX


class Operation(Enum):
    """What a topic asks for."""

    ENQUEUE = auto()
    SETTLE = auto()
    CONSUME = auto()
    CREATE = auto()
    CONFIGURE = auto()
    WATCH = auto()


class Route(NamedTuple):
    """`verb` is there to settle, `group` if a shared subscription names one."""

    operation: Operation
    queue: str = ""
    verb: Verb = Verb.ACK
    group: str = ""


def of_publish(topic: str) -> Route:
    """The operation of a PUBLISH on a topic of the bridge."""
    if topic.startswith(QUEUE):
        name = topic[len(QUEUE) :]
        rest, _, last = name.rpartition("/")
        verb = _VERBS.get(last)
        if verb is not None:
            return Route(Operation.SETTLE, check_name(rest), verb)
        return Route(Operation.ENQUEUE, check_name(name))
    if topic == _ADMIN_QUEUE + "create":
        return Route(Operation.CREATE)
    if topic.startswith(_ADMIN_QUEUE) and topic.endswith(_CONFIG):
        return Route(Operation.CONFIGURE, check_name(topic[len(_ADMIN_QUEUE) : -len(_CONFIG)]))
    raise InvalidTopic(
        what="Topic",
        topic=topic,
        problem="is nothing to publish on: there are $admin/queue/create and $admin/queue/<name>/config",
    )


def of_subscribe(topic_filter: str) -> Route:
    """The operation of a SUBSCRIBE to a filter of the bridge."""
    group, inner = split_share(topic_filter)
    if has_wildcard(inner):
        raise InvalidTopic(
            what="Filter", topic=inner, problem="has a wildcard: a queue is consumed by its full name, one filter each"
        )
    if inner.startswith(QUEUE):
        return Route(Operation.CONSUME, check_name(inner[len(QUEUE) :]), group=group or "")
    if group is None and inner.startswith(_ADMIN_QUEUE) and inner.endswith(_STATS):
        return Route(Operation.WATCH, check_name(inner[len(_ADMIN_QUEUE) : -len(_STATS)]))
    raise InvalidTopic(
        what="Filter", topic=topic_filter, problem="is nothing to subscribe to: there is $admin/queue/<name>/stats"
    )
