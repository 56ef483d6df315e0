"""Workers: functions that a queue's messages are given to.

@worker("emails", group="mailer", concurrency=8)
async def send_email(email: Email) -> None: ...

Workers(send_email).run()
"""

from holdfast.client.working.outcomes import Reject as Reject
from holdfast.client.working.outcomes import Release as Release
from holdfast.client.working.outcomes import Retry as Retry
from holdfast.client.working.worker import Middleware as Middleware
from holdfast.client.working.worker import Proceed as Proceed
from holdfast.client.working.worker import Worker as Worker
from holdfast.client.working.worker import worker as worker
from holdfast.client.working.workers import Workers as Workers
