"""Counts wrong passwords by address and by user, and refuses callers with too many of them for a while, unchecked.

Each has a budget of failures that is restored one by one. A caller with the right password must not be locked out by
the wrong ones of others: an address from which a user has logged in before has a budget of its own for that user, and
the budgets of the address and of the user do not apply to it. So neither another client behind the same router nor an
attacker who guesses passwords for a user can lock out a client that has logged in before.

Only so many are remembered, the least recently seen are forgotten; nothing else here grows.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final

from holdfast.config import AuthSettings

IPV6_NETWORK_BITS: Final = 64
"""The network that one customer is assigned: single addresses within it cost an attacker nothing."""


class _Budgets:
    """Failures of many keys: when the last one will be restored."""

    def __init__(self, settings: AuthSettings) -> None:
        self._failures = settings.login_failures
        self._recovery = settings.login_recovery
        self._tracked = settings.login_tracked
        self._clean_at: OrderedDict[str, int] = OrderedDict()

    def wait(self, key: str, now: int) -> int:
        """Microseconds until one more attempt is allowed; 0 is now."""
        # n failures that are not restored yet keep it n recoveries from clean; the next attempt needs one to spare.
        spent = min(self._clean_at.get(key, now) - now, self._failures * self._recovery)
        return max(spent - (self._failures - 1) * self._recovery, 0)

    def fail(self, key: str, now: int) -> None:
        worst = now + self._failures * self._recovery
        self._clean_at[key] = min(max(self._clean_at.get(key, now), now) + self._recovery, worst)
        self._clean_at.move_to_end(key)
        if len(self._clean_at) > self._tracked:
            self._clean_at.popitem(last=False)


class Throttle:
    """The three budgets. Times are arguments."""

    def __init__(self, settings: AuthSettings) -> None:
        self._peers = _Budgets(settings)
        self._users = _Budgets(settings)
        self._pairs = _Budgets(settings)
        self._tracked = settings.login_tracked
        self._known: OrderedDict[str, None] = OrderedDict()

    def wait(self, peer: str, user: str, now: int) -> int:
        """Microseconds until this caller may try again; 0 is now."""
        peer = network(peer)
        pair = f"{peer} {user}"
        if pair in self._known:
            return self._pairs.wait(pair, now)
        return max(self._peers.wait(peer, now), self._users.wait(user, now))

    def failed(self, peer: str, user: str, now: int) -> None:
        peer = network(peer)
        pair = f"{peer} {user}"
        if pair in self._known:
            self._pairs.fail(pair, now)
        else:
            self._peers.fail(peer, now)
            self._users.fail(user, now)

    def succeeded(self, peer: str, user: str) -> None:
        """From now on this address has a budget of its own for this user. What failed before is not forgiven: else
        the owner of one account could guess at others without limit."""
        pair = f"{network(peer)} {user}"
        self._known[pair] = None
        self._known.move_to_end(pair)
        if len(self._known) > self._tracked:
            self._known.popitem(last=False)


def network(peer: str) -> str:
    """What is counted as one address."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, IPV6_NETWORK_BITS), strict=False))
    return str(address)
