"""A conductor's heartbeats, which tell schedulers that it lives, and whether it can work: it cannot without its database."""

import asyncio
import random

from bus.errors import Operational
from bus.messages.cells import ConductorAlive
from bus.parts import Periodic
from bus.workers.publisher import Publisher
from cell_conductor.store import ConductorStore

TROUBLE_LENGTH_MAX = 1000


class Heartbeats(Periodic):
    """A part of a conductor that sends heartbeats.

    One that has not left when the next one is due is withdrawn: it would tell of the past.
    """

    def __init__(
        self,
        store: ConductorStore,
        publisher: Publisher,
        *,
        cell: str,
        name: str,
        every_s: float,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("heartbeats", self._beat, every_s, is_cut_short=True, chance=chance)
        self._store = store
        self._publisher = publisher
        self._cell = cell
        self._name = name
        self._beat_s = every_s

    async def _beat(self) -> None:
        beat = ConductorAlive(cell=self._cell, conductor=self._name, trouble=await self._trouble())
        await self._publisher.send_within(self._beat_s, (beat,))

    async def _trouble(self) -> str:
        """Why this conductor cannot work now; empty if its database answers."""
        try:
            async with asyncio.timeout(self._beat_s):
                await self._store.read((), None, 1)
        except TimeoutError:
            return f"its database has not answered within {self._beat_s:g} s"
        except Operational as problem:
            return f"its database: {problem}"[:TROUBLE_LENGTH_MAX]
        return ""
