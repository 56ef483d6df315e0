"""The Python client: send, receive, workers, administration. It needs httpx and msgspec, nothing of the server.

    Client        asynchronous
    SyncClient    its twin for ordinary code
    worker        makes a consumer of a function

Errors are those of `holdfast.errors`, the same that the server raises.
"""

from holdfast.client.batches import Sent as Sent
from holdfast.client.batches import SentMany as SentMany
from holdfast.client.client import Client as Client
from holdfast.client.consuming import Consumer as Consumer
from holdfast.client.drafts import draft as draft
from holdfast.client.messages import Message as Message
from holdfast.client.messages import Received as Received
from holdfast.client.messages import Reply as Reply
from holdfast.client.retries import Retries as Retries
from holdfast.client.states import State as State
from holdfast.client.sync import SyncClient as SyncClient
from holdfast.client.sync import SyncConsumer as SyncConsumer
from holdfast.client.sync import SyncMessage as SyncMessage
from holdfast.client.sync import SyncTransaction as SyncTransaction
from holdfast.client.tls import Tls as Tls
from holdfast.client.transactions import Transaction as Transaction
from holdfast.client.working import Middleware as Middleware
from holdfast.client.working import Proceed as Proceed
from holdfast.client.working import Reject as Reject
from holdfast.client.working import Release as Release
from holdfast.client.working import Retry as Retry
from holdfast.client.working import Worker as Worker
from holdfast.client.working import Workers as Workers
from holdfast.client.working import worker as worker
from holdfast.wire import Draft as Draft
