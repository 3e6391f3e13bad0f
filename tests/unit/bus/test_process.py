"""The environment that a worker needs before it starts, and its end."""

import asyncio

from kit.parts import PartGroup, Supervised
from kit.process import run_until
from tests.simulation.loop import run_simulated


def test_a_process_that_cannot_drain_ends_after_its_time() -> None:
    async def scenario() -> float:
        told = asyncio.Event()
        told.set()
        await run_until(told, (Supervised("a part", asyncio.Event().wait, is_cut_short=False),), 5)
        return asyncio.get_running_loop().time()

    assert run_simulated(scenario()) == 5.0


def test_the_parts_of_a_group_are_told_to_stop_in_their_order() -> None:
    """Those that take work come before those that their work needs."""
    stopped: list[str] = []

    class Told(Supervised):
        async def stop(self) -> None:
            stopped.append(self.status.name)

    async def scenario() -> None:
        await PartGroup(*(Told(name, asyncio.Event().wait) for name in ("takes", "hands on", "sends"))).stop()

    run_simulated(scenario())
    assert stopped == ["takes", "hands on", "sends"]
