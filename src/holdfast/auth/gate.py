"""Authentication for all fronts: credentials become a principal, or an error that says why not.

    token(text, peer)                a bearer token
    password(user, password, peer)   a user's password; a token in its place is a token
    signed(signature, request, peer) a request signed with an access key; `signer` looks at its head first
    certificate(subject)             the subject of a client certificate that the TLS handshake has checked
    anonymous()                      nothing was given

`peer` is the caller's address without its port. Nothing here blocks the loop: passwords are hashed on threads. Where no
credentials are configured, whatever is given makes an anonymous caller: there is nothing to check it against.

Checked tokens and passwords are remembered, under a hash with a key that only this process has. What is remembered ends
with the token, after a while, and immediately when the file that it was checked against changes.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from holdfast.auth import exposure, revoked, signatures, tokens, users
from holdfast.auth.audit import LOGIN, OK, AuditLog
from holdfast.auth.keyring import Key, Keyring
from holdfast.auth.passwords import Passwords
from holdfast.auth.principal import Principal
from holdfast.auth.proxies import TrustedProxies
from holdfast.auth.rates import RateLimiter, RequestRates
from holdfast.auth.revoked import Revocation
from holdfast.auth.signatures import Signature, SignedRequest
from holdfast.auth.throttle import Throttle
from holdfast.auth.tokens import Token
from holdfast.auth.users import AccessKey, User, Users
from holdfast.auth.watch import Watched
from holdfast.broker.health import ComponentHealth
from holdfast.config import AuthSettings, Config
from holdfast.config.secret import HIDDEN, SecretText
from holdfast.errors import InvalidConfig, LoginThrottled, RateLimited, Unauthenticated
from holdfast.quotas import Quotas
from holdfast.units import INSTANT_MAX, MILLISECOND, SECOND

if TYPE_CHECKING:
    from holdfast.auth.issuer import IssuerKeys

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

_WRONG = "the user or the password is wrong"
"""The same for both, so that a caller cannot find out which users exist."""


class Counts(msgspec.Struct):
    """What the gate has refused since it was opened, for the metrics."""

    tokens_refused: int = 0
    signatures_refused: int = 0
    logins_failed: int = 0
    logins_throttled: int = 0
    rate_limited: int = 0


class _Remembered(NamedTuple):
    principal: Principal
    until: int


class Gate:
    """See the module. One for a node, used by all fronts on the node's loop."""

    def __init__(self, config: Config, clock: Callable[[], int], audit: AuditLog | None = None) -> None:
        """Raises InvalidConfig if a file of credentials is missing or not good."""
        self._settings = config.auth
        self._clock = clock
        self._namespace = config.node.namespace
        self._rates = RateLimiter(config.rates)
        self._request_rates: RequestRates | None = None
        self._namespaces_tracked = config.rates.namespaces_tracked
        self._throttle = Throttle(config.auth)
        self._passwords = Passwords(config.auth)
        self._anonymous = Principal(name="anonymous", namespace=self._namespace, method="anonymous", unlimited=True)
        self._secret = secrets.token_bytes(32)
        self._tokens: OrderedDict[bytes, _Remembered] = OrderedDict()
        self._logins: OrderedDict[bytes, _Remembered] = OrderedDict()
        self._certificates: dict[str, Principal] = {}  # no more than there are users
        self._signers: dict[str, Principal] = {}  # by access key; no more than there are
        self._failures_logged = 0
        self._failures_silent = 0
        self.proxies = TrustedProxies(config.auth.trusted_proxies)
        """Who is believed when it says whom a request is from."""
        self.required = exposure.has_credentials(config.auth)
        """Whether callers must show who they are."""
        self.counts = Counts()
        self.audit = audit or AuditLog(config, clock)
        """Where fronts write who administered what."""
        self._issuer = _issuer_keys(config.auth, clock) if config.auth.oidc_issuer or config.auth.jwks_url else None
        self._open_files()

    async def start(self) -> None:
        """Fetches the keys of the identity provider, if one is configured, and keeps them fresh from then on."""
        if self._issuer is not None:
            await self._issuer.start()

    def _open_files(self) -> None:
        settings, now = self._settings, self._clock()
        self._users: Watched[Users] | None = None
        self._keys: Watched[Keyring] | None = None
        self._revoked: Watched[dict[str, Revocation]] | None = None
        if settings.users_file is not None:
            self._users = Watched(
                "auth.users_file",
                settings.users_file,
                lambda content: users.read(content, settings.users_max, settings.scopes_max),
                lambda _: True,
                Users(),
                settings.reload_interval,
                now,
            )
        if settings.key_file is not None:
            self._keys = Watched(
                "auth.key_file",
                settings.key_file,
                lambda content: _read_keys(content, settings.keys_max),
                lambda keyring: keyring.signing() is not None,
                Keyring(),
                settings.reload_interval,
                now,
            )
        if settings.revoked_file is not None:
            self._revoked = Watched(
                "auth.revoked_file",
                settings.revoked_file,
                lambda content: revoked.read(content, settings.revoked_max),
                lambda _: False,
                None,  # no token is good again because the list is gone
                settings.reload_interval,
                now,
            )
        self._load_keys()
        self._load_users()

    # --- who it is --------------------------------------------------------------------------------------------------

    def anonymous(self) -> Principal:
        """A caller that showed nothing: may do everything where no credentials are configured, else nothing."""
        if self.required:
            raise Unauthenticated(problem="no credentials were given")
        return self._anonymous

    async def token(self, text: str, peer: str) -> Principal:
        """Who a token says the caller is. Raises Unauthenticated."""
        if not self.required:
            return self._anonymous
        now = self._clock()
        self._refresh(now)
        if not self._takes_tokens:
            raise Unauthenticated(problem="this server takes no tokens")
        if len(text) > self._settings.token_bytes_max:
            raise Unauthenticated(problem=f"the token is longer than {self._settings.token_bytes_max} bytes")
        digest = self._digest(b"token", text.encode(errors="surrogatepass"))
        if (principal := _recall(self._tokens, digest, now)) is not None:
            return principal
        try:
            checked = await self._check_signature(text)
            principal = tokens.principal(checked, self._settings, self._namespace, self._clock())
            if self._is_revoked(principal):
                raise Unauthenticated(problem="the token was taken back (auth.revoked_file)")
        except Unauthenticated as error:
            self.counts.tokens_refused += 1
            self._log_failure("token refused", peer, now, problem=error.details["problem"])
            self._record_login(None, "token", error.code, peer, problem=error.details["problem"])
            raise
        until = principal.expires_at if principal.expires_at is not None else INSTANT_MAX
        _remember(self._tokens, self._settings.token_cache, digest, _Remembered(principal, until))
        self._record_login(principal, "token", OK, peer, token_id=principal.token_id)
        return principal

    @property
    def _takes_tokens(self) -> bool:
        return bool(self._keyring.keys) or self._issuer is not None

    async def _check_signature(self, text: str) -> Token:
        """With keys fetched for it, if it may be of one that the identity provider has begun to use."""
        bytes_max = self._settings.token_bytes_max
        kid = tokens.header_of(text, bytes_max).kid
        try:
            return tokens.check_signature(text, self._keyring, bytes_max)
        except Unauthenticated:
            if self._issuer is None:
                raise
            if not await self._issuer.fetch_unknown(kid):
                if self._issuer.value.keys:
                    raise
                raise Unauthenticated(problem=self._issuer.refusal) from None
        self._refresh(self._clock())
        return tokens.check_signature(text, self._keyring, bytes_max)

    def recall(self, text: str) -> Principal | None:
        """Who a token says the caller is, if it was found good before and still is; None: ask `token`."""
        if not self.required:
            return self._anonymous
        now = self._clock()
        self._refresh(now)
        return _recall(self._tokens, self._digest(b"token", text.encode(errors="surrogatepass")), now)

    def recall_password(self, username: str, password: bytes) -> Principal | None:
        """Who the caller is if the password was found to be the user's not long ago; None: ask `password`."""
        if not self.required:
            return self._anonymous
        if password.startswith(b"eyJ"):  # perhaps a token
            return None
        now = self._clock()
        self._refresh(now)
        return _recall(self._logins, self._login_digest(username, password), now)

    async def password(self, username: str, password: str | bytes, peer: str) -> Principal:
        """Who the caller is if the password is the user's. Raises Unauthenticated or LoginThrottled."""
        if not self.required:
            return self._anonymous
        now = self._clock()
        self._refresh(now)
        raw = password.encode(errors="surrogatepass") if isinstance(password, str) else password
        if self._takes_tokens and raw.startswith(b"eyJ") and len(raw) <= self._settings.token_bytes_max:
            text = raw.decode(errors="replace")
            if tokens.looks_like_token(text):
                return await self.token(text, peer)
        if self._users is None:
            raise Unauthenticated(problem="this server has no users")
        if len(raw) > self._settings.password_bytes_max or len(username) > users.NAME_BYTES_MAX:
            raise Unauthenticated(problem=_WRONG)
        digest = self._login_digest(username, raw)
        if (principal := _recall(self._logins, digest, now)) is not None:
            return principal
        try:
            user = await self._login(username, raw, peer)
        except LoginThrottled as error:
            self.counts.logins_throttled += 1
            self._record_login(None, "password", error.code, peer)
            raise
        principal = user.principal("password", self._namespace)
        if not self.valid(principal):  # the file changed meanwhile
            raise Unauthenticated(problem=_WRONG)
        until = self._clock() + self._settings.password_cache_age
        _remember(self._logins, self._settings.password_cache, digest, _Remembered(principal, until))
        self._record_login(principal, "password", OK, peer)
        return principal

    async def _login(self, username: str, password: bytes, peer: str) -> User:
        self._throttled(peer, username)
        async with self._passwords:
            # Asked again: while this one waited for its turn, those before it may have used up what was left.
            self._throttled(peer, username)
            assert self._users is not None
            known = self._users.value
            user = known.by_name.get(username)
            good = await self._passwords.check(user.password if user else None, password, known.hash_like(username))
            now = self._clock()
            if user is None or not good:
                self.counts.logins_failed += 1
                self._throttle.failed(peer, username, now)
                # A name that is no user's may be a password in the wrong field.
                known_name = username if user else "unknown"
                self._log_failure("login failed", peer, now, user=known_name)
                self._record_login(None, "password", Unauthenticated.code, peer, user=known_name)
                raise Unauthenticated(problem=_WRONG)
            self._throttle.succeeded(peer, username)
            return user

    def _throttled(self, peer: str, username: str) -> None:
        wait = self._throttle.wait(peer, username, self._clock())
        if wait:
            raise LoginThrottled(problem="Too many wrong passwords", retry_after_ms=-(-wait // MILLISECOND))

    def signer(self, headers: Mapping[bytes, bytes], peer: str) -> Signature:
        """What a head says about the signature of its request, if that can be valid: no body need be read else. Raises
        Unauthenticated."""
        now = self._clock()
        self._refresh(now)
        try:
            signature = signatures.read(headers)
            signatures.check_time(signature, now)
            self._access_key(signature)
        except Unauthenticated as error:
            self._refuse_signature(error, peer)
            raise
        return signature

    def signed(self, signature: Signature, request: SignedRequest, peer: str) -> Principal:
        """Who signed a request that is here whole. Raises Unauthenticated."""
        try:
            user, key = self._access_key(signature)
            signatures.check(signature, key.secret, request)
        except Unauthenticated as error:
            self._refuse_signature(error, peer)
            raise
        found = self._signers.get(key.id)
        if found is None:
            found = self._signers[key.id] = user.principal("access_key", self._namespace)
            self._record_login(found, "access_key", OK, peer, access_key=key.id)
        return found

    def _access_key(self, signature: Signature) -> tuple[User, AccessKey]:
        found = None if self._users is None else self._users.value.by_access_key.get(signature.key_id)
        if found is None:
            raise signatures.refused("unknown_key", "there is no such access key")
        return found

    def _refuse_signature(self, error: Unauthenticated, peer: str) -> None:
        problem = error.details["problem"]
        self.counts.signatures_refused += 1
        self._log_failure("signature refused", peer, self._clock(), problem=problem)
        self._record_login(None, "access_key", error.code, peer, problem=problem)

    def certificate(self, subject: str) -> Principal | None:
        """Who a certificate's subject stands for; None if nobody, and then another credential is needed."""
        self._refresh(self._clock())
        found = self._certificates.get(subject)
        if found is None and self._users is not None and (user := self._users.value.by_subject.get(subject)):
            found = self._certificates[subject] = user.principal("certificate", self._namespace)
            self._record_login(found, "certificate", OK, "")
        return found

    def valid(self, principal: Principal) -> bool:
        """Whether its credential is still valid: cheap, for connections that stay open. False: end the connection."""
        now = self._clock()
        if principal.expires_at is not None and now >= principal.expires_at:
            return False
        self._refresh(now)
        if not self.required:
            return True
        return principal.credential in self._live and not self._is_revoked(principal)

    def _is_revoked(self, principal: Principal) -> bool:
        return self._revoked is not None and bool(principal.token_id) and principal.token_id in self._revoked.value

    def check_browser(self, principal: Principal | None, host: str | None, origin: str | None) -> None:
        """See `exposure.check_browser`. No principal stands for a caller that has yet to show who it is, as on a
        WebSocket before its CONNECT; where credentials are needed that is soon enough."""
        who = principal or (None if self.required else self._anonymous)
        if who is not None:
            exposure.check_browser(self._settings, who, host, origin)

    # --- how fast ---------------------------------------------------------------------------------------------------

    @property
    def limited(self) -> bool:
        """False: no namespace has a rate, and `admit` need not be called."""
        return self._rates.limited

    def admit(self, namespace: str, messages: int, size_bytes: int) -> None:
        """Counts what is about to be sent against the namespace's rate. Raises RateLimited, and then nothing counts."""
        if self._rates.limited:
            try:
                self._rates.take(namespace, messages, size_bytes, self._clock())
            except RateLimited:
                self.counts.rate_limited += 1
                raise

    def request_rates(self, quotas: Quotas) -> RequestRates:
        """How fast namespaces may send requests: the same for all fronts of a node, which `quotas` belong to."""
        if self._request_rates is None:
            self._request_rates = RequestRates(quotas, self._namespaces_tracked)
        return self._request_rates

    async def close(self) -> None:
        """Ends the threads, closes the audit log."""
        if self._issuer is not None:
            await self._issuer.close()
        self._passwords.close()
        await self.audit.synced()
        self.audit.close()

    def health(self) -> list[ComponentHealth]:
        """What it depends on beside files."""
        return [] if self._issuer is None else [self._issuer.health()]

    # --- files that change ------------------------------------------------------------------------------------------

    def _refresh(self, now: int) -> None:
        if self._keys is not None and self._keys.refresh(now):
            self._reload_keys("auth.key_file")
        if self._issuer is not None and self._issuer.refresh(now):
            self._reload_keys(self._issuer.setting)
        if self._revoked is not None:
            before_revoked = self._revoked.value.keys()
            if self._revoked.refresh(now):
                self._tokens.clear()
                new = self._revoked.value.keys()
                added, removed = len(new - before_revoked), len(before_revoked - new)
                self._record_reload("tokens.revoke", "auth.revoked_file", added=added, removed=removed)
        if self._users is not None:
            before_users = self._users.value
            if self._users.refresh(now):
                self._load_users()
                self._record_reload("users.reload", "auth.users_file", *_difference(before_users, self._users.value))

    def _reload_keys(self, setting: str) -> None:
        before = {key.credential for key in self._keyring.keys}
        self._load_keys()
        after = {key.credential for key in self._keyring.keys}
        self._record_reload("keys.reload", setting, added=len(after - before), removed=len(before - after))

    def _load_keys(self) -> None:
        """The keys in force from now on. Tokens are checked again, since the key of any of them may be gone."""
        keyring = self._keys.value if self._keys else Keyring()
        if keyring.skipped:
            log.warning("some keys were ignored", setting="auth.key_file", reasons=keyring.skipped)
        if self._settings.token_secret:
            try:
                keyring = Keyring((*keyring.keys, _key_from_secret(self._settings.token_secret)))
            except ValueError as error:
                raise InvalidConfig(field="auth.token_secret", value=HIDDEN, problem=f"it {error}") from None
        if self._issuer is not None:
            keyring = Keyring((*keyring.keys, *self._issuer.value.keys))
        self._keyring = keyring
        self._tokens.clear()
        self._refresh_credentials()

    def _load_users(self) -> None:
        self._logins.clear()
        self._certificates.clear()
        self._signers.clear()
        self._refresh_credentials()

    def _refresh_credentials(self) -> None:
        self._live = {key.credential for key in self._keyring.keys}
        if self._users is not None:
            self._live |= self._users.value.credentials

    def _record_reload(self, act: str, setting: str, added: object, removed: object, changed: object = "") -> None:
        log.info("credentials changed", setting=setting, added=added, removed=removed, changed=changed)
        self.audit.record(None, act, setting, "ok", front="node", added=added, removed=removed, changed=changed)

    # --- digests ----------------------------------------------------------------------------------------------------

    def _login_digest(self, username: str, password: bytes) -> bytes:
        return self._digest(b"login", username.encode(errors="surrogatepass"), password)

    def _digest(self, purpose: bytes, *parts: bytes) -> bytes:
        """The key under which a checked credential is cached: it does not reveal the credential."""
        state = hashlib.blake2b(key=self._secret, digest_size=32, person=purpose)
        for part in parts:
            state.update(len(part).to_bytes(8, "big"))
            state.update(part)
        return state.digest()

    def _record_login(
        self, principal: Principal | None, credential: str, result: str, peer: str, **details: object
    ) -> None:
        """A credential was checked; one that is remembered is used again without an entry."""
        self.audit.record(principal, LOGIN, credential, result, front="gate", peer=peer, **details)

    def _log_failure(self, event: str, peer: str, now: int, **details: object) -> None:
        """At most one line a second: somebody who guesses must not fill the log."""
        if 0 <= now - self._failures_logged < SECOND:
            self._failures_silent += 1
            return
        log.warning(event, peer=peer, others_not_logged=self._failures_silent, **details)
        self._failures_logged = now
        self._failures_silent = 0


def _recall(memory: OrderedDict[bytes, _Remembered], digest: bytes, now: int) -> Principal | None:
    found = memory.get(digest)
    if found is None:
        return None
    if now >= found.until:
        del memory[digest]
        return None
    memory.move_to_end(digest)
    return found.principal


def _remember(memory: OrderedDict[bytes, _Remembered], limit: int, digest: bytes, what: _Remembered) -> None:
    memory[digest] = what
    if len(memory) > limit:
        memory.popitem(last=False)


def _difference(before: Users, after: Users) -> tuple[str, str, str]:
    """Names of those added, removed and changed; the audit log cuts what is too long."""
    changed = [name for name, user in after.by_name.items() if before.by_name.get(name, user) != user]
    return (
        ", ".join(sorted(after.by_name.keys() - before.by_name.keys())),
        ", ".join(sorted(before.by_name.keys() - after.by_name.keys())),
        ", ".join(sorted(changed)),
    )


# Cryptography and HTTP's client are 15 MiB of memory: only a server that has keys imports them.


def _read_keys(content: bytes, keys_max: int) -> Keyring:
    from holdfast.auth import keys  # noqa: PLC0415

    return keys.read(content, keys_max)


def _key_from_secret(secret: SecretText) -> Key:
    from holdfast.auth import keys  # noqa: PLC0415

    return keys.from_secret(secret)


def _issuer_keys(settings: AuthSettings, clock: Callable[[], int]) -> IssuerKeys:
    from holdfast.auth.issuer import IssuerKeys  # noqa: PLC0415

    return IssuerKeys(settings, clock)
