"""The pages: one file for each noun."""

from holdfast.console.pages import (
    audit,
    consumers,
    dead_letters,
    lake,
    messages,
    mqtt,
    overview,
    queue,
    queues,
    schedules,
    session,
)

_MODULES = (session, overview, queues, queue, messages, dead_letters, consumers, mqtt, schedules, lake, audit)
PAGES = [page for module in _MODULES for page in module.PAGES.pages]
