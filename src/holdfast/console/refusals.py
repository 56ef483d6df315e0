"""Why a page of the console refuses something, where the API has no error for it."""

from __future__ import annotations

from typing import Final


class PageRefused(Exception):
    """A title and a text that says what to do."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.text = text


FORGED: Final = PageRefused(
    403,
    "This form is out of date",
    "It was opened in a session that has ended, or comes from another site. Nothing was changed. "
    "Go back, reload the page and send it again.",
)
READ_ONLY: Final = PageRefused(
    403,
    "This session is read only",
    "Nothing was changed. Sign out, and in again without “Read only”; where the server itself is configured so "
    "(console.read_only), use the command line.",
)
LIVE_FULL: Final = PageRefused(503, "Too many pages are live", "Close some, or raise console.max_live.")
NOT_CONFIRMED: Final = PageRefused(
    400,
    "Not confirmed",
    "What you typed is not the name. Nothing was changed. Go back and type the name exactly.",
)
