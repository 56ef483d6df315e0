"""The Python client: send, receive, workers, administration. It needs httpx and msgspec, nothing of the server.

    Client        asynchronous
    SyncClient    the same, synchronous
    worker        makes a consumer of a function

Errors are those of `holdfast.errors`, the same that the server raises.
"""

from holdfast.client.client import Client as Client
from holdfast.client.consumer import Consumer as Consumer
from holdfast.client.drafts import draft as draft
from holdfast.client.messages import Message as Message
from holdfast.client.messages import Received as Received
from holdfast.client.messages import Reply as Reply
from holdfast.client.retries import Retries as Retries
from holdfast.client.schedules import Schedules as Schedules
from holdfast.client.schedules import SyncSchedules as SyncSchedules
from holdfast.client.sent import Sent as Sent
from holdfast.client.sent import SentMany as SentMany
from holdfast.client.sync import SyncClient as SyncClient
from holdfast.client.sync import SyncConsumer as SyncConsumer
from holdfast.client.sync import SyncMessage as SyncMessage
from holdfast.client.sync import SyncTransaction as SyncTransaction
from holdfast.client.tls import Tls as Tls
from holdfast.client.transactions import Transaction as Transaction
from holdfast.client.workers import Job as Job
from holdfast.client.workers import Middleware as Middleware
from holdfast.client.workers import Proceed as Proceed
from holdfast.client.workers import Progress as Progress
from holdfast.client.workers import Reject as Reject
from holdfast.client.workers import Release as Release
from holdfast.client.workers import Retry as Retry
from holdfast.client.workers import Worker as Worker
from holdfast.client.workers import Workers as Workers
from holdfast.client.workers import handled_message as handled_message
from holdfast.client.workers import report_progress as report_progress
from holdfast.client.workers import report_progress_sync as report_progress_sync
from holdfast.client.workers import use_client as use_client
from holdfast.client.workers import worker as worker
from holdfast.client.workflow_state import State as State
from holdfast.wire import Draft as Draft
