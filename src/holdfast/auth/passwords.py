"""Passwords: hashed with argon2id on threads, a few at a time.

A user that does not exist costs as much work as one that does, so that the time an answer takes says nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import argon2

from holdfast.config import AuthSettings
from holdfast.errors import LoginThrottled

LENGTH_MIN: Final = 8
"""Of passwords set from now on, in characters: NIST SP 800-63B."""

_BUSY_RETRY_MS: Final = 1000


def hasher(settings: AuthSettings) -> argon2.PasswordHasher:
    return argon2.PasswordHasher(
        time_cost=settings.hash_passes,
        memory_cost=settings.hash_memory // 1024,
        parallelism=1,
        type=argon2.Type.ID,
    )


class Passwords:
    """Checks passwords against hashes, off the loop."""

    def __init__(self, settings: AuthSettings) -> None:
        self._settings = settings
        self._hasher = hasher(settings)
        self._dummy_hashes: dict[str, str] = {}
        self._waiting = 0
        self._semaphore = asyncio.Semaphore(settings.login_concurrency)
        self._threads = ThreadPoolExecutor(settings.login_concurrency, thread_name_prefix="holdfast-login")

    async def __aenter__(self) -> Passwords:
        """Waits for a turn. Raises LoginThrottled if too many wait already."""
        if self._waiting >= self._settings.login_waiting:
            raise LoginThrottled(problem="Too many logins wait to be checked", retry_after_ms=_BUSY_RETRY_MS)
        self._waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self._waiting -= 1
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._semaphore.release()

    async def check(self, expected: str | None, password: bytes, like: str | None) -> bool:
        """Whether it is the password. None stands for a user that does not exist, and takes as long as checking `like`,
        the hash of one that does. Ask in turn."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._check, expected, password, like)

    def _check(self, expected: str | None, password: bytes, like: str | None) -> bool:
        try:
            self._hasher.verify(expected or self._dummy_hash(like), password)
        except argon2.exceptions.VerifyMismatchError:
            return False
        return expected is not None

    def _dummy_hash(self, like: str | None) -> str:
        """A hash of a password that nobody knows, with the same cost. There are as many as costs in the users file."""
        cost = like.rsplit("$", 2)[0] if like else ""  # all but salt and hash
        if cost not in self._dummy_hashes:
            hasher = argon2.PasswordHasher.from_parameters(argon2.extract_parameters(like)) if like else self._hasher
            self._dummy_hashes[cost] = hasher.hash(secrets.token_bytes(32))
        return self._dummy_hashes[cost]

    def close(self) -> None:
        """Ends the threads; what they are at is finished first."""
        self._threads.shutdown(wait=False, cancel_futures=True)
