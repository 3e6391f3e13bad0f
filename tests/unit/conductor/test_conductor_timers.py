"""When the timers handle due rows, on the simulated clock."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from msgspec import structs

from bus.memory import MemoryBroker
from bus.message import Message
from bus.workers.publisher import Publisher
from bus.workers.sending import Link
from cell_conductor.handlers import Decider, Timers
from cell_conductor.settings import ConductorPace
from engine.flavors import InstanceId
from engine.inventories import ConsumerId
from kit.process import run_until
from tests.contracts.stage import SETTINGS as BUS
from tests.simulation.loop import run_simulated, until_s
from tests.stores_in_memory import MemoryConductorStore
from tests.unit.conductor.cell import NOON, RULES, Cell, failed, place

PACE = ConductorPace(poll_s=10, look_s=1000, rest_s=0.25)


class TimersSetup:
    """Timers whose questions are recorded with their time, and never answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int]] = []
        self._store = MemoryConductorStore()
        publisher = Publisher(Link(MemoryBroker().as_user(), BUS), BUS, "test")
        self.timers = Timers(
            self._store,
            lambda outgoing, _: publisher.send_all(outgoing),
            self._ask,
            decider=Decider(
                RULES,
                lambda: NOON + timedelta(seconds=asyncio.get_running_loop().time()),
                lambda: ConsumerId(UUID(int=1)),
            ),
            pace=PACE,
        )

    async def _ask(self, swaps: Sequence[Message]) -> Sequence[Message]:
        self.asked.append((round(asyncio.get_running_loop().time(), 2), len(swaps)))
        await asyncio.Event().wait()
        return ()

    async def spawn_failed(self, number: int) -> None:
        """The claim of this instance must be swapped, at once."""
        row = Cell(place("h2"), failed(1, "h1")).row
        now = NOON + timedelta(seconds=asyncio.get_running_loop().time())
        row = structs.replace(row, id=InstanceId(ConsumerId(UUID(int=number))), state_ends_at=now)
        async with self._store.transaction() as tx:
            await tx.save([row], (), ())
            self.timers.expect([row])
        self.timers.saved()

    def saved(self, rows: int) -> None:
        """The conductor has saved a batch of so many rows, of which none is due."""
        self.timers.expect([Cell(place("h2")).row] * rows)
        self.timers.saved()


def test_a_single_due_row_is_handled_at_once_and_those_soon_after_it_together() -> None:
    async def scenario() -> list[tuple[float, int]]:
        setup = TimersSetup()
        told = asyncio.Event()
        running = asyncio.create_task(run_until(told, (setup.timers,), 1))
        await until_s(10)
        await setup.spawn_failed(1)
        for number, at_s in ((2, 10.05), (3, 10.1), (4, 10.2)):
            await until_s(at_s)
            await setup.spawn_failed(number)
        await until_s(20)
        told.set()
        await running
        return setup.asked

    assert run_simulated(scenario()) == [(10.0, 1), (10.25, 3)]


def test_while_batches_are_large_further_due_rows_are_awaited_up_to_four_times_as_long() -> None:
    async def scenario() -> list[tuple[float, int]]:
        setup = TimersSetup()
        told = asyncio.Event()
        running = asyncio.create_task(run_until(told, (setup.timers,), 1))
        await until_s(10)
        for number, at_s, rows in ((1, 10, 50), (2, 10.1, 50), (3, 10.4, 0), (4, 11, 500), (5, 11.9, 0)):
            await until_s(at_s)
            setup.saved(rows)
            await setup.spawn_failed(number)
        await until_s(20)
        told.set()
        await running
        return setup.asked

    assert run_simulated(scenario()) == [(10.0, 1), (10.5, 2), (11.5, 1), (11.9, 1)]
