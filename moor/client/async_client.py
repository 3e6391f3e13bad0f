"""The public client, for asyncio."""

from collections.abc import AsyncGenerator

from bus.message import Message
from moor.client.groups import GroupCalls
from moor.client.hosts import HostCalls
from moor.client.moving import MoveCalls
from moor.client.planning import PlanCalls


class Client(MoveCalls, PlanCalls, GroupCalls, HostCalls):
    """A client of Moorage on its bus: `async with Client(url) as moor:`."""

    async def events(self, *keys: str) -> AsyncGenerator[Message, None]:
        """The events with these routing keys from now on, such as `instance.#` or `build.#`; `*` is one word, `#` any.

        Events may be missed while the broker is away: each has the whole state of what it is about. Only events of the client's
        project, if it has one.
        """
        with self._raising():
            async for batch in self._bus.listen(*keys, project=self.project):
                for each in batch:
                    yield each
