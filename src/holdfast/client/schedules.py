"""Schedules: messages that the server enqueues by the clock.

    await client.schedules.put("nightly", "reports", {"kind": "daily"}, cron="30 2 * * *", timezone="Europe/Rome")

Storing one again under its name replaces it, so that a program can store its schedules whenever it is deployed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast import wire
from holdfast.client import calls
from holdfast.client.drafts import Properties, draft
from holdfast.client.portal import Portal
from holdfast.client.times import Duration, Instant, duration, instant, optional_duration
from holdfast.errors import ScheduleNotFound

if TYPE_CHECKING:
    from holdfast.client.client import Client


class Schedules:
    """The schedules of a namespace: `client.schedules`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def put(
        self,
        name: str,
        queue: str,
        payload: object = b"",
        *,
        cron: str = "",
        every: Duration | None = None,
        timezone: str = "UTC",
        starts_at: Instant | None = None,
        ends_at: Instant | None = None,
        jitter: Duration = 0,
        catch_up: wire.CatchUp = "skip",
        overlap: wire.Overlap = "queue",
        paused: bool | None = None,
        key: str | None = None,
        priority: int = 128,
        ttl: Duration | None = None,
        content_type: str | None = None,
        properties: Properties | None = None,
    ) -> wire.Schedule:
        """Store a schedule, in the place of the one that has its name: enqueue the message at each tick of `cron` in
        `timezone`, or after each interval `every`. It is durable when this returns."""
        message = draft(payload, key=key, priority=priority, ttl=ttl, content_type=content_type, properties=properties)
        definition = wire.ScheduleDefinition(
            queue=queue,
            message=msgspec.structs.replace(message, message_id=None),
            cron=cron,
            every=optional_duration(every),
            timezone=timezone,
            starts_at=instant(starts_at),
            ends_at=instant(ends_at),
            jitter=duration(jitter),
            catch_up=catch_up,
            overlap=overlap,
            paused=paused,
        )
        return await self._client.call(calls.put_schedule(name, definition))

    async def get(self, name: str) -> wire.Schedule:
        """A schedule, with its next ten ticks and what became of the last hundred."""
        return await self._client.call(calls.get_schedule(name))

    async def all(self, prefix: str = "") -> list[wire.Schedule]:
        """Schedules by name, each with its next tick."""
        found: list[wire.Schedule] = []
        cursor = ""
        while True:
            page = await self._client.call(calls.list_schedules(prefix=prefix, cursor=cursor))
            found += page.schedules
            cursor = page.cursor
            if not cursor:
                return found

    async def delete(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a schedule. Messages that it enqueued stay."""
        try:
            await self._client.call(calls.delete_schedule(name))
        except ScheduleNotFound:
            if not missing_ok:
                raise

    async def pause(self, name: str) -> wire.Schedule:
        """Pause a schedule."""
        return await self._client.call(calls.pause_schedule(name))

    async def resume(self, name: str) -> wire.Schedule:
        """Resume a schedule. Ticks of the pause are not caught up with."""
        return await self._client.call(calls.resume_schedule(name))

    async def run(self, name: str) -> wire.ScheduleRun:
        """Enqueue its message now, whether it is paused or not."""
        return await self._client.call(calls.run_schedule(name))


class SyncSchedules:
    """The schedules of a namespace: `client.schedules`."""

    def __init__(self, schedules: Schedules, portal: Portal) -> None:
        self._schedules = schedules
        self._portal = portal

    def put(
        self,
        name: str,
        queue: str,
        payload: object = b"",
        *,
        cron: str = "",
        every: Duration | None = None,
        timezone: str = "UTC",
        starts_at: Instant | None = None,
        ends_at: Instant | None = None,
        jitter: Duration = 0,
        catch_up: wire.CatchUp = "skip",
        overlap: wire.Overlap = "queue",
        paused: bool | None = None,
        key: str | None = None,
        priority: int = 128,
        ttl: Duration | None = None,
        content_type: str | None = None,
        properties: Properties | None = None,
    ) -> wire.Schedule:
        """Store a schedule, in the place of the one that has its name: enqueue the message at each tick of `cron` in
        `timezone`, or after each interval `every`. It is durable when this returns."""
        return self._portal.run(
            self._schedules.put(
                name,
                queue,
                payload,
                cron=cron,
                every=every,
                timezone=timezone,
                starts_at=starts_at,
                ends_at=ends_at,
                jitter=jitter,
                catch_up=catch_up,
                overlap=overlap,
                paused=paused,
                key=key,
                priority=priority,
                ttl=ttl,
                content_type=content_type,
                properties=properties,
            )
        )

    def get(self, name: str) -> wire.Schedule:
        """A schedule, with its next ten ticks and what became of the last hundred."""
        return self._portal.run(self._schedules.get(name))

    def all(self, prefix: str = "") -> list[wire.Schedule]:
        """Schedules by name, each with its next tick."""
        return self._portal.run(self._schedules.all(prefix))

    def delete(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a schedule. Messages that it enqueued stay."""
        self._portal.run(self._schedules.delete(name, missing_ok=missing_ok))

    def pause(self, name: str) -> wire.Schedule:
        """Pause a schedule."""
        return self._portal.run(self._schedules.pause(name))

    def resume(self, name: str) -> wire.Schedule:
        """Resume a schedule. Ticks of the pause are not caught up with."""
        return self._portal.run(self._schedules.resume(name))

    def run(self, name: str) -> wire.ScheduleRun:
        """Enqueue its message now, whether it is paused or not."""
        return self._portal.run(self._schedules.run(name))
