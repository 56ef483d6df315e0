"""Workers: an asynchronous one, an ordinary one, and middleware around both.

HOLDFAST_URL=http://127.0.0.1:8080 .venv/bin/holdfast worker --app-dir examples workers:app
"""

from __future__ import annotations

import msgspec

from holdfast.client import Message, Proceed, Reject, Retry, SyncMessage, Workers, worker


class Email(msgspec.Struct):
    to: str
    text: str


@worker("emails", group="mailer", concurrency=8)
async def send_email(email: Email, message: Message) -> None:
    if "@" not in email.to:
        raise Reject(f"{email.to} is no address")  # dead-lettered immediately
    if "greylisted" in email.to and message.attempt == 1:
        raise Retry("greylisted", delay="1m")
    print(f"sent to {email.to}: {email.text}")


@worker("thumbnails", concurrency=4)
def make_thumbnail(image: bytes, message: SyncMessage) -> None:
    """An ordinary function: called on a thread, so it may block."""
    print(f"thumbnail of {message.key} from {len(image)} bytes")


async def logged(message: Message, proceed: Proceed) -> object:
    """Wraps every call."""
    result = await proceed()
    print(f"done with {message.queue}")
    return result


app = Workers(send_email, make_thumbnail, middleware=[logged])

if __name__ == "__main__":
    raise SystemExit(app.run())
