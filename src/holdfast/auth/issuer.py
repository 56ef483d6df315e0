"""The keys of an identity provider (OpenID Connect), fetched from it and kept fresh.

    auth.oidc_issuer   its configuration names the JWKS (OpenID Connect Discovery 1.0), and must name the issuer itself
    auth.jwks_url      the JWKS

They are fetched when the server starts, every `auth.oidc_refresh`, and when a token names a key that is not known; then
at most every 30 s, whatever tokens strangers make up. What cannot be fetched changes nothing: the keys fetched last
hold, up to `auth.oidc_stale`. Keys that the provider no longer publishes are gone with the next fetch.

An answer is bounded in size and time and must come from the address itself: redirects are not followed. Nothing is
fetched from an address that a token names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import httpx
import msgspec
import structlog

from holdfast import __version__
from holdfast.auth import keys
from holdfast.auth.keyring import Keyring
from holdfast.broker.health import ComponentHealth
from holdfast.config import AuthSettings
from holdfast.errors import InvalidConfig
from holdfast.units import MIB, MINUTE, SECOND, format_duration, format_instant
from holdfast.web_address import is_key_address

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

ANSWER_BYTES_MAX: Final = MIB
"""A JWKS of 32 RSA keys with certificates has some 100 KiB."""

FETCH_SECONDS: Final = 10.0
"""For the configuration and the keys together."""

FETCH_EVERY: Final = 30 * SECOND
"""No more often for tokens with unknown keys; and so long after a fetch that failed the next one follows."""

_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age=\"?(\d{1,9})", re.IGNORECASE)
_HEADERS: Final = {
    "accept": "application/json",
    "accept-encoding": "identity",  # what is small on the wire may be large when it is unpacked
    "user-agent": f"holdfast/{__version__}",
}


class _Configuration(msgspec.Struct, frozen=True):
    """What the server needs of a provider's configuration."""

    issuer: str
    jwks_uri: str


class IssuerKeys:
    """See the module. `start` and `close` belong to the loop that the rest is called on."""

    def __init__(
        self,
        settings: AuthSettings,
        clock: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Raises InvalidConfig if keys would go stale before they are fetched again."""
        if settings.oidc_stale < settings.oidc_refresh:
            raise InvalidConfig(
                field="auth.oidc_stale",
                value=format_duration(settings.oidc_stale),
                problem=f"it is shorter than auth.oidc_refresh, {format_duration(settings.oidc_refresh)}",
            )
        self.setting: Final = "auth.oidc_issuer" if settings.oidc_issuer else "auth.jwks_url"
        self.value = Keyring()
        """The keys in force; `refresh` before use."""
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._client: httpx.AsyncClient | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._attempted_at: int | None = None
        self._fetched_at: int | None = None
        self._pause = FETCH_EVERY
        self._changed = False
        self._problem = "its keys were not fetched yet"

    async def start(self) -> None:
        """Fetch the keys, so that they are there before callers are. If that fails, it is tried again later."""
        authorities = httpx.create_ssl_context()
        self._client = httpx.AsyncClient(headers=_HEADERS, timeout=FETCH_SECONDS, verify=authorities, trust_env=False)
        await self._fetch()
        self._refreshing = asyncio.get_running_loop().create_task(self._keep_fresh(), name="issuer-keys")

    async def close(self) -> None:
        """Fetch no more."""
        tasks = [task for task in (self._refreshing, self._fetching) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def refresh(self, now: int) -> bool:
        """Whether there are other keys in force than at the last call."""
        if self.value.keys and self._is_stale(now):
            self.value, self._changed = Keyring(), True
            log.error(
                "keys of the issuer are too old, its tokens are refused", setting=self.setting, problem=self._problem
            )
        changed, self._changed = self._changed, False
        return changed

    async def fetch_unknown(self, kid: str | None) -> bool:
        """Whether a key of that name is there now and was not before. Waits for a fetch, but begins none if the last
        one was a moment ago."""
        if kid is None or self._client is None or self._knows(kid):
            return False
        recent = self._attempted_at is not None and 0 <= self._clock() - self._attempted_at < FETCH_EVERY
        if recent and self._fetching is None:
            return False
        await self._fetch()
        return self._knows(kid)

    @property
    def refusal(self) -> str:
        """Why tokens of the issuer are refused while there are no keys. Callers need not know more."""
        if self._fetched_at is None:
            return "no key here fits the token, and those of the identity provider could not be fetched yet; try again"
        if self._is_stale(self._clock()):
            return "no key here fits the token, and the identity provider could not be reached for too long"
        return "no key here fits the token; the identity provider publishes none"

    def health(self) -> ComponentHealth:
        """The server works without: `ready` stays true."""
        now = self._clock()
        problem = self._problem
        if problem and self._fetched_at is not None:
            state = "its tokens are refused" if self._is_stale(now) else "keys fetched before still hold"
            problem = f"{problem}; {state}"
        elif not problem and not self.value.keys:
            problem = "it publishes no keys of use"
        fetched_at = "" if self._fetched_at is None else format_instant(self._fetched_at)
        return ComponentHealth("issuer", problem, {"keys": len(self.value.keys), "fetched_at": fetched_at})

    def _is_stale(self, now: int) -> bool:
        return self._fetched_at is not None and now - self._fetched_at >= self._settings.oidc_stale

    def _knows(self, kid: str) -> bool:
        return any(kid in (key.kid, key.thumbprint) for key in self.value.keys)

    # --- fetching ---------------------------------------------------------------------------------------------------

    async def _keep_fresh(self) -> None:
        while True:
            await self._sleep(self._pause / SECOND)
            await self._fetch()

    async def _fetch(self) -> None:
        """Whoever needs a fetch shares the one under way; a caller that leaves does not end it."""
        if self._fetching is None:
            self._attempted_at = self._clock()
            self._fetching = asyncio.get_running_loop().create_task(self._attempt(), name="issuer-keys-fetch")
            self._fetching.add_done_callback(self._ended)
        await asyncio.wait([self._fetching])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("fetching the keys of the issuer failed", setting=self.setting, exc_info=error)

    async def _attempt(self) -> None:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                found, pause = await self._keys()
        except TimeoutError:
            self._failed(f"no answer within {FETCH_SECONDS:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            self._failed(str(error) or type(error).__name__)
        else:
            self._succeeded(found, pause)

    def _failed(self, problem: str) -> None:
        self._pause = FETCH_EVERY
        if problem != self._problem:  # once, and not for each attempt
            log.warning(
                "keys of the issuer could not be fetched, trying again",
                setting=self.setting,
                problem=problem,
                keys_in_force=len(self.value.keys),
            )
        self._problem = problem

    def _succeeded(self, found: Keyring, pause: int) -> None:
        now = self._clock()
        if self._problem:
            log.info("keys of the issuer fetched", setting=self.setting, keys=len(found.keys))
        if found.skipped and (found.skipped != self.value.skipped or self._problem):
            log.warning("some keys were ignored", setting=self.setting, reasons=found.skipped)
        self._problem = ""
        self._pause = pause
        self._fetched_at = now
        if [(key.kid, key.thumbprint) for key in found.keys] != [(key.kid, key.thumbprint) for key in self.value.keys]:
            self._changed = True
        self.value = found

    async def _keys(self) -> tuple[Keyring, int]:
        """The keys, and after what time to ask again. Raises ValueError with what is wrong."""
        address = self._settings.jwks_url or await self._discover(self._settings.oidc_issuer)
        body, headers = await self._get(address)
        try:
            found = keys.read_issuers(body, self._settings.keys_max)
        except ValueError as error:
            raise ValueError(f"the answer of {address} {error}") from None
        return found, _pause(headers.get("cache-control", ""), self._settings.oidc_refresh)

    async def _discover(self, issuer: str) -> str:
        address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        body, _ = await self._get(address)
        try:
            found = msgspec.json.decode(body, type=_Configuration)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise ValueError(f"the answer of {address} is no configuration with `issuer` and `jwks_uri`") from None
        if found.issuer != issuer:
            raise ValueError(f"the answer of {address} is for another issuer: {found.issuer[:200]!r}")
        secure = found.jwks_uri.startswith("https:") or not issuer.startswith("https:")
        if not is_key_address(found.jwks_uri, query=True) or not secure:
            raise ValueError(f"the answer of {address} has a `jwks_uri` that is no https URL")
        return found.jwks_uri

    async def _get(self, address: str) -> tuple[bytes, httpx.Headers]:
        assert self._client is not None
        body = bytearray()
        async with self._client.stream("GET", address, follow_redirects=False) as answer:
            if answer.is_redirect:
                raise ValueError(f"{address} answered {answer.status_code}; redirects are not followed")
            if answer.status_code != HTTPStatus.OK:
                raise ValueError(f"{address} answered {answer.status_code}")
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise ValueError(f"the answer of {address} is compressed, which it was not asked for")
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    raise ValueError(f"the answer of {address} is larger than {ANSWER_BYTES_MAX} bytes")
        return bytes(body), answer.headers


def _pause(cache_control: str, longest: int) -> int:
    """As long as the setting says, or shorter if the answer may not be kept so long."""
    found = _MAX_AGE.search(cache_control)
    return longest if found is None else min(max(int(found[1]) * SECOND, MINUTE), longest)
