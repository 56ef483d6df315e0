"""The shapes of the HTTP API: what requests and answers look like, as msgspec structs and nothing else.

The server reads and writes them, its OpenAPI description is made from them, and the Python client uses the same ones;
so nothing here may need the server. Ids are strings, because JavaScript loses 63-bit integers.
"""

from holdfast.wire.cursors import CursorCommit as CursorCommit
from holdfast.wire.cursors import CursorCommitted as CursorCommitted
from holdfast.wire.cursors import CursorEnd as CursorEnd
from holdfast.wire.cursors import CursorEnds as CursorEnds
from holdfast.wire.cursors import CursorRange as CursorRange
from holdfast.wire.cursors import CursorRead as CursorRead
from holdfast.wire.cursors import Position as Position
from holdfast.wire.deadletters import DeadFilter as DeadFilter
from holdfast.wire.deadletters import Redrive as Redrive
from holdfast.wire.deadletters import RedriveJob as RedriveJob
from holdfast.wire.deadletters import RedriveList as RedriveList
from holdfast.wire.deadletters import Retried as Retried
from holdfast.wire.deliveries import Action as Action
from holdfast.wire.deliveries import Delivery as Delivery
from holdfast.wire.deliveries import Encoding as Encoding
from holdfast.wire.deliveries import Lease as Lease
from holdfast.wire.deliveries import Leased as Leased
from holdfast.wire.deliveries import Settle as Settle
from holdfast.wire.deliveries import Settled as Settled
from holdfast.wire.deliveries import Settlement as Settlement
from holdfast.wire.figures import GroupStats as GroupStats
from holdfast.wire.figures import Health as Health
from holdfast.wire.figures import Latency as Latency
from holdfast.wire.figures import Overview as Overview
from holdfast.wire.figures import PartHealth as PartHealth
from holdfast.wire.figures import QueueStats as QueueStats
from holdfast.wire.figures import Status as Status
from holdfast.wire.messages import Draft as Draft
from holdfast.wire.messages import Enqueue as Enqueue
from holdfast.wire.messages import Import as Import
from holdfast.wire.messages import ImportItem as ImportItem
from holdfast.wire.messages import JsonPayload as JsonPayload
from holdfast.wire.messages import Message as Message
from holdfast.wire.messages import MessageEdit as MessageEdit
from holdfast.wire.messages import MessagePage as MessagePage
from holdfast.wire.messages import MessageView as MessageView
from holdfast.wire.messages import Origin as Origin
from holdfast.wire.messages import Properties as Properties
from holdfast.wire.messages import Receipt as Receipt
from holdfast.wire.messages import Standing as Standing
from holdfast.wire.problems import ItemError as ItemError
from holdfast.wire.problems import Problem as Problem
from holdfast.wire.queues import ConfigFields as ConfigFields
from holdfast.wire.queues import Consumer as Consumer
from holdfast.wire.queues import ConsumerList as ConsumerList
from holdfast.wire.queues import DeadLetterConfig as DeadLetterConfig
from holdfast.wire.queues import Group as Group
from holdfast.wire.queues import GroupCreate as GroupCreate
from holdfast.wire.queues import GroupList as GroupList
from holdfast.wire.queues import Purged as Purged
from holdfast.wire.queues import Queue as Queue
from holdfast.wire.queues import QueueConfig as QueueConfig
from holdfast.wire.queues import QueueCreate as QueueCreate
from holdfast.wire.queues import QueueDeleted as QueueDeleted
from holdfast.wire.queues import QueueList as QueueList
from holdfast.wire.queues import RetryConfig as RetryConfig
from holdfast.wire.requests import Reply as Reply
from holdfast.wire.requests import Request as Request
from holdfast.wire.streams import StreamLine as StreamLine
from holdfast.wire.times import Duration as Duration
from holdfast.wire.times import Instant as Instant
from holdfast.wire.times import Size as Size
