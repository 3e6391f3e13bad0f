"""The public client, for asyncio."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from bus.message import Message
from kit.errors import ConnectionLost
from moor.client.bus_client import CLOSED, during
from moor.client.hosts import HostCalls
from moor.client.instances import ConsoleCalls, PlanCalls
from moor.client.moving import MoveCalls
from moor.client.requests import GroupCalls
from moor.client.stored import DeviceProfileCalls, FlavorCalls, ImageCalls, QuotaCalls

# If the caller is slower than the events, the others wait at the broker, which drops the oldest at its limit.
EVENTS_AHEAD_MAX = 1_000


class Client(
    MoveCalls,
    ConsoleCalls,
    PlanCalls,
    GroupCalls,
    FlavorCalls,
    ImageCalls,
    DeviceProfileCalls,
    QuotaCalls,
    HostCalls,
):
    """A client of Moorage on its bus: `async with Client(url) as moor:`."""

    async def events(self, *keys: str) -> AsyncGenerator[Message, None]:
        """The events with these routing keys from now on, such as `instance.#` or `build.#`; `*` is one word, `#` any.

        The subscription begins when the first event is asked for. Events may be missed while the broker is away: each has the whole
        state of its subject. Only events of the client's project, if it has one. To wait for a request, follow it instead.
        """
        heard: asyncio.Queue[Message] = asyncio.Queue(EVENTS_AHEAD_MAX)
        # A task of the session, which ends it even if the caller abandons the iterator.
        hearing = self._run_beside(self._hear(keys, heard))
        try:
            while True:
                with self._raising():
                    event = (
                        await during(heard.get(), _failure_of(hearing))
                        if heard.empty()
                        else heard.get_nowait()
                    )
                yield event
        finally:
            hearing.cancel()

    async def _hear(self, keys: tuple[str, ...], heard: asyncio.Queue[Message]) -> None:
        async with aclosing(self._bus.listen(*keys, project=self.project)) as batches:
            async for batch in batches:
                for each in batch:
                    await heard.put(each)


async def _failure_of(hearing: asyncio.Task[None]) -> None:
    await asyncio.wait((hearing,))
    if hearing.cancelled():
        raise ConnectionLost(CLOSED)
    hearing.result()
