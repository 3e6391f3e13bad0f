"""Where a story's brokers stand: all levels on one, or the API level on one and each cell on another.

Where there are several, everybody is their own user there with the rights of its role, and only those; on the one broker
there are no users.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from msgspec import Struct

from bus.broker import Broker
from bus.topology import Site, objects_of, user_of
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.memory_under_test import MemoryUnderTest
from tests.contracts.stage import CELLS, declared

APART = ", a broker a cell"
STAGES = pytest.mark.parametrize(
    ("bus", "books"),
    [
        ("memory", "memory"),
        ("memory", "sqlite"),
        (f"memory{APART}", "memory"),
        pytest.param("rabbitmq", "postgresql", marks=[pytest.mark.rabbitmq, pytest.mark.postgresql]),
        pytest.param(f"rabbitmq{APART}", "postgresql", marks=[pytest.mark.rabbitmq, pytest.mark.postgresql]),
    ],
)
STAGES_APART = pytest.mark.parametrize(
    ("bus", "books"),
    [
        (f"memory{APART}", "memory"),
        (f"memory{APART}", "sqlite"),
        pytest.param(f"rabbitmq{APART}", "postgresql", marks=[pytest.mark.rabbitmq, pytest.mark.postgresql]),
    ],
)
ABOVE_CELLS = ("scheduler", "placement", "operator", "ironic")


class Layout(Struct, frozen=True):
    """The brokers under test, and who is who on them."""

    api: BrokerUnderTest
    # Only those that are not the API level's.
    cells: Mapping[str, BrokerUnderTest]

    def at_api(self, role: str) -> Broker:
        return self.api.broker(user_of(role) if self.cells else "")

    def in_cell(self, cell: str, role: str = "conductor") -> Broker:
        """As somebody of the cell."""
        there = self.cells.get(cell)
        return self.api.broker() if there is None else there.broker(user_of(role, cell))

    def down(self, role: str) -> dict[str, Broker]:
        """From the API level, to the cells on brokers of their own."""
        return {cell: there.broker(user_of(role)) for cell, there in self.cells.items()}


@asynccontextmanager
async def layout(bus: str) -> AsyncIterator[Layout]:
    """Brokers with all that is to stand on them; `bus` says of which kind, and how many."""
    kind = bus.removesuffix(APART)
    async with AsyncExitStack() as stack:
        api = await _started(kind, stack)
        if kind == bus:
            await declared(api)
            yield Layout(api, {})
            return
        cells = {cell: await _started(kind, stack) for cell in CELLS}
        await _declare(api, (), Site.API)
        for cell, broker in cells.items():
            await _declare(broker, (cell,), Site.CELL)
        yield Layout(api, cells)


async def _started(kind: str, stack: AsyncExitStack) -> BrokerUnderTest:
    under_test: BrokerUnderTest
    if kind == "memory":
        under_test = MemoryUnderTest()
    else:
        # Only who asks for the real broker needs its client.
        from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest  # noqa: PLC0415

        under_test = await RabbitMQUnderTest.start()
    stack.push_async_callback(under_test.close)
    return under_test


async def _declare(broker: BrokerUnderTest, cells: tuple[str, ...], site: Site) -> None:
    connection = await broker.broker().connect()
    await connection.declare(objects_of(cells, (site,)))
    await connection.close()
    # The same everywhere, so that virtual hosts in stock have them already: nobody comes as another cell's user.
    users = [
        *map(user_of, ABOVE_CELLS),
        *(user_of(role, cell) for role in ("conductor", "compute") for cell in CELLS),
    ]
    await broker.add_users(users, CELLS)
