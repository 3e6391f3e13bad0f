"""Follows the hosts: when one changes, or its silence ends, it is reported and its facts are published."""

import asyncio
from collections.abc import Callable, Iterable

from bus.message import ProviderId
from compute_sim.fleet import Fleet

Touch = Callable[[Iterable[ProviderId]], None]


async def watch_hosts(fleet: Fleet, touches: tuple[Touch, ...]) -> None:
    """Runs until no host will change any more. It sleeps until a known time, and so is no periodic part."""
    at_s = fleet.clock_s()
    while changes := fleet.next_changes(at_s):
        first_s = min(changes.values())
        await asyncio.sleep(max(0.0, first_s - fleet.clock_s()))
        # A timer may be early by the clock's resolution.
        at_s = max(first_s, fleet.clock_s())
        hosts = [host for host, change_s in changes.items() if change_s <= at_s]
        for touch in touches:
            touch(hosts)
    await asyncio.Event().wait()
