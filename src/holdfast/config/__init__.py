"""Server configuration: defaults < TOML file < environment (`HOLDFAST_...`) < flags.

    settings.py   every setting and every limit of the server, with its reason (audit_settings.py: of the audit log,
                  console_settings.py: of the console, store_settings.py: of the store, tracing_settings.py: of tracing)
    secret.py     a text that is never shown
    kinds.py      what a setting can be: a count, a duration, a size, a choice; reading, checking, showing
    fields.py     the settings as a list, for the loader, the command line and the documentation
    load.py       putting the layers together and remembering where each value came from

A queue's own configuration (retries, TTL, ordering) is data in the store and lives in `holdfast.core`; this is only
what an operator sets for a node.
"""

from holdfast.config.audit_settings import AuditSettings
from holdfast.config.fields import Field, all_fields
from holdfast.config.load import load
from holdfast.config.settings import (
    AuthSettings,
    Config,
    JournalSettings,
    LimitSettings,
    LogSettings,
    MemberSettings,
    NodeSettings,
    QueueSettings,
    RateSettings,
    TlsSettings,
    WebhookSettings,
)
from holdfast.config.store_settings import StoreSettings

__all__ = [
    "AuditSettings",
    "AuthSettings",
    "Config",
    "Field",
    "JournalSettings",
    "LimitSettings",
    "LogSettings",
    "MemberSettings",
    "NodeSettings",
    "QueueSettings",
    "RateSettings",
    "StoreSettings",
    "TlsSettings",
    "WebhookSettings",
    "all_fields",
    "load",
]
