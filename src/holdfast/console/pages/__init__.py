"""The pages: one file for each noun."""

from holdfast.console.pages import audit, consumers, dead_letters, messages, mqtt, overview, queue, queues, session

_MODULES = (session, overview, queues, queue, messages, dead_letters, consumers, mqtt, audit)
PAGES = [page for module in _MODULES for page in module.PAGES.pages]
