"""The door: whatever a front took from its wire becomes a principal here, or an error that says why not.

    token(text, peer)                a bearer token
    password(user, password, peer)   a user's password; a token in its place is a token
    certificate(subject)             the subject of a client certificate that the TLS handshake has checked
    anonymous()                      nothing was given

`peer` is the caller's address without its port. Nothing here blocks the loop: passwords are hashed on threads.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.auth import exposure
from holdfast.auth.principal import Principal
from holdfast.auth.rates import Rates
from holdfast.config import Config
from holdfast.errors import Unauthenticated


class Gate:
    """See the module. One for a node, used by all fronts on the node's loop."""

    def __init__(self, config: Config, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._namespace = config.node.namespace
        self._rates = Rates(config.rates)
        self._anonymous = Principal(name="anonymous", namespace=self._namespace, method="anonymous", unlimited=True)
        self.required = exposure.has_credentials(config.auth)
        """Whether callers must show who they are."""

    def anonymous(self) -> Principal:
        """A caller that showed nothing: may do everything where no credentials are configured, else nothing."""
        if self.required:
            raise Unauthenticated(problem="no credentials were given")
        return self._anonymous

    async def token(self, text: str, peer: str) -> Principal:  # noqa: ARG002 - the seam
        """Who a token says the caller is. Raises Unauthenticated."""
        raise Unauthenticated(problem="this server takes no tokens")

    async def password(self, username: str, password: str | bytes, peer: str) -> Principal:  # noqa: ARG002 - the seam
        """Who the caller is if the password is the user's. Raises Unauthenticated or LoginThrottled."""
        raise Unauthenticated(problem="this server has no users")

    def certificate(self, subject: str) -> Principal | None:  # noqa: ARG002 - the seam
        """Who a certificate's subject stands for; None if nobody, and then another credential is needed."""
        return None

    def valid(self, principal: Principal) -> bool:
        """Whether what vouched for it still holds: cheap, for connections that stay open. False: end the connection."""
        return principal.expires_at is None or self._clock() < principal.expires_at

    def admit(self, namespace: str, messages: int, size_bytes: int) -> None:
        """Counts what is about to be sent against the namespace's rate. Raises RateLimited, and then nothing counts."""
        if self._rates.limited:
            self._rates.take(namespace, messages, size_bytes, self._clock())

    async def close(self) -> None:
        """Ends the threads."""
