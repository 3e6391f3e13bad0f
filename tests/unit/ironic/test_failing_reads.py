"""Some of Ironic's answers about single nodes and allocations fail for long: what becomes of all other nodes, and what
readiness says.
"""

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest
from msgspec import structs

from engine.inventories import ConsumerId
from ironic_sync.core.notifications import AllocationNotified
from kit.parts import statuses
from tests.simulation.loop import run_simulated
from tests.unit.ironic.test_sweeper import RARELY, REST, Stand, path_of

# As usual, but for sweeps and looks for changes: they read nodes, too.
READING = structs.replace(RARELY, doubts_s=5.0)
ALLOCATION = UUID(int=77)
SILENT = 0


async def within(seconds: float, is_so: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not is_so():
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"it is not so within {seconds} s") from None


def waits(stand: Stand) -> list[str]:
    """Why the daemon is not ready."""
    return [each.awaits for each in statuses([stand.sweeper]) if each.awaits]


@pytest.mark.parametrize("status", [403, 500, 503, SILENT])
@pytest.mark.parametrize("what", ["node", "allocation"])
def test_an_answer_that_keeps_failing_holds_up_no_other_node(what: str, status: int) -> None:
    async def story() -> None:
        stand = Stand(4, READING)
        bad, *others = stand.ids
        path = path_of(bad) if what == "node" else f"/v1/allocations/{ALLOCATION}"
        async with stand.running():
            stand.wire.breaks[path] = status
            await stand.writer.change({bad: lambda row: structs.replace(row, doubts=("why not",))})
            said = AllocationNotified(allocation=ConsumerId(ALLOCATION), node=None, kind="update")
            stand.sweeper.look_into([said])
            for number in range(12):
                node, is_on = others[number % 3], number % 2 == 0
                stand.ironic.set_maintenance(str(node), is_on=is_on)
                await stand.writer.change({node: lambda row: structs.replace(row, doubts=("why not",))})
                await within(15, lambda node=node: not stand.rows[node].doubts)  # type: ignore[misc]
                assert stand.is_in_maintenance(node) is is_on
            assert waits(stand) == []
            # Its own pauses grow up to a minute.
            assert stand.wire.asked.count(path) <= 20

            stand.ironic.set_maintenance(str(bad), is_on=True)
            stand.wire.breaks.clear()
            if what == "allocation":
                stand.wire.answers[path] = {"uuid": str(ALLOCATION), "node_uuid": str(bad)}
            await within(100, lambda: not stand.rows[bad].doubts and stand.is_in_maintenance(bad))
            assert stand.sweeper.sweeps == 1

    run_simulated(story())


@pytest.mark.parametrize("status", [401, 503, SILENT])
def test_an_ironic_that_is_away_makes_the_daemon_unready_and_all_is_read_soon_when_it_is_back(
    status: int,
) -> None:
    async def story() -> None:
        stand = Stand(3, READING)
        async with stand.running():
            stand.wire.breaks[""] = status
            for node in stand.ids:
                stand.ironic.set_maintenance(str(node), is_on=True)
                await stand.writer.change({node: lambda row: structs.replace(row, doubts=("why not",))})
            await within(3 * REST.answer_s_max, lambda: bool(waits(stand)))

            stand.wire.breaks.clear()
            await within(
                2 * REST.answer_s_max,
                lambda: all(map(stand.is_in_maintenance, stand.ids)) and not waits(stand),
            )

    run_simulated(story())
