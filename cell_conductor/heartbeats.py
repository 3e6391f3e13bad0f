"""The heartbeats of a conductor tell schedulers that it lives, and whether it can work: it cannot without its database."""

import asyncio

from bus.errors import Operational
from bus.messages.cells import ConductorAlive
from cell_conductor.store import ConductorStore

TROUBLE_LENGTH_MAX = 1000


async def conductor_beats(
    store: ConductorStore, *, cell: str, name: str, within_s: float
) -> tuple[ConductorAlive]:
    return (ConductorAlive(cell=cell, conductor=name, trouble=await _trouble(store, within_s)),)


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
