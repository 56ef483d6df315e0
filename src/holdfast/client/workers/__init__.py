"""Workers: functions that handle a queue's messages.

@worker("emails", group="mailer", concurrency=8)
async def send_email(email: Email) -> None: ...

Workers(send_email).run()
"""

from holdfast.client.workers.context import handled_message as handled_message
from holdfast.client.workers.context import report_progress as report_progress
from holdfast.client.workers.context import report_progress_sync as report_progress_sync
from holdfast.client.workers.context import use_client as use_client
from holdfast.client.workers.jobs import Job as Job
from holdfast.client.workers.jobs import Progress as Progress
from holdfast.client.workers.outcomes import Reject as Reject
from holdfast.client.workers.outcomes import Release as Release
from holdfast.client.workers.outcomes import Retry as Retry
from holdfast.client.workers.runner import Workers as Workers
from holdfast.client.workers.worker import Middleware as Middleware
from holdfast.client.workers.worker import Proceed as Proceed
from holdfast.client.workers.worker import Worker as Worker
from holdfast.client.workers.worker import worker as worker
