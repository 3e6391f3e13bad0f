"""Follows the fault script: when it changes a host, or ends a host's silence, the host reports and publishes its facts."""

import asyncio
from collections.abc import Callable, Iterable

from bus.message import ProviderId
from compute_sim.fleet import Fleet

Touch = Callable[[Iterable[ProviderId]], None]


class FaultPlayer:
    def __init__(self, fleet: Fleet, touches: tuple[Touch, ...]) -> None:
        self._fleet = fleet
        self._touches = touches

    async def run(self) -> None:
        """Run to the script's end."""
        at_s = self._fleet.clock_s()
        while (turn_s := self._fleet.next_turn_s(at_s)) is not None:
            await asyncio.sleep(max(0.0, turn_s - self._fleet.clock_s()))
            # A timer may be early by the clock's resolution.
            since_s, at_s = at_s, max(turn_s, self._fleet.clock_s())
            hosts = self._fleet.turning(since_s, at_s)
            for touch in self._touches:
                touch(hosts)
        await asyncio.Event().wait()
