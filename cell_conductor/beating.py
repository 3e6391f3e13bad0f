"""A conductor's heartbeats, which tell schedulers that it lives, and whether it can work: it cannot without its database."""

import asyncio
import random

from bus.errors import Operational
from bus.messages.cells import ConductorAlive
from bus.parts import Periodic
from bus.workers.publisher import Publisher
from cell_conductor.store import ConductorStore

TROUBLE_LENGTH_MAX = 1000


def heartbeats(
    store: ConductorStore,
    publisher: Publisher,
    *,
    cell: str,
    name: str,
    every_s: float,
    chance: random.Random | None = None,
) -> Periodic:
    """A part of a conductor that sends heartbeats.

    One that has not left when the next one is due is withdrawn: it would tell of the past.
    """

    async def beat() -> None:
        trouble = await _trouble(store, every_s)
        await publisher.send_within(every_s, (ConductorAlive(cell=cell, conductor=name, trouble=trouble),))

    return Periodic("heartbeats", beat, every_s, is_cut_short=True, chance=chance)


async def _trouble(store: ConductorStore, within_s: float) -> str:
    """Why this conductor cannot work now; empty if its database answers."""
    try:
        async with asyncio.timeout(within_s):
            await store.read((), None, 1)
    except TimeoutError:
        return f"its database has not answered within {within_s:g} s"
    except Operational as problem:
        return f"its database: {problem}"[:TROUBLE_LENGTH_MAX]
    return ""
