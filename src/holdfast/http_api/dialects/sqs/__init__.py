"""Amazon SQS's API, for its SDKs: `/sqs`, in the JSON protocol and the older query protocol.

    endpoint.py            the table of actions, and how a request finds its own
    protocols.py           both protocols: what is read and written
    shapes.py              what actions take and give
    caller.py              who calls, and how queues are named to it
    queues.py              actions on queues (queue_attributes.py: their attributes)
    sending.py             actions that send messages (message_attributes.py: their attributes)
    receiving.py           actions that receive and settle them (attempts.py: attempts that are repeated)
    move_tasks.py          actions that redrive dead letters
    identifiers.py         message ids, URLs, ARNs, receipt handles
    refusals.py            errors as SDKs expect them

An SQS queue is a queue here, of the same name, in the namespace of the caller's access key. Receivers share the group
`default`; a visibility timeout is a lease; a message group is a key.
"""

from holdfast.http_api.dialects.sqs.attempts import Attempts
from holdfast.http_api.dialects.sqs.endpoint import ROUTES

__all__ = ["ROUTES", "Attempts"]
