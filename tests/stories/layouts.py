"""The brokers of a story: one for all levels, or one for the API level and one for each cell.

With several brokers each role has a user of its own with its own rights; the single broker has no users.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from msgspec import Struct

from bus.broker import Broker
from bus.topology import ROLES, Site, objects_of, user_of
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.memory_under_test import started
from tests.contracts.stage import CELLS, declared
from tests.running import closing

APART = ", a broker a cell"
SERVERS = (pytest.mark.rabbitmq, pytest.mark.postgresql)
ALL_IN_MEMORY = ("memory", "memory")
ON_SQLITE = pytest.param("memory", "sqlite", marks=pytest.mark.proof)
IN_MEMORY_APART = pytest.param(f"memory{APART}", "memory", marks=pytest.mark.proof)
ON_SERVERS = pytest.param("rabbitmq", "postgresql", marks=SERVERS)
STAGES = pytest.mark.parametrize(
    ("bus", "books"),
    [
        ALL_IN_MEMORY,
        ON_SQLITE,
        IN_MEMORY_APART,
        ON_SERVERS,
        pytest.param(f"rabbitmq{APART}", "postgresql", marks=(*SERVERS, pytest.mark.proof)),
    ],
)
# For stories that are about one level only, or that have only one cell.
ONE_BROKER = pytest.mark.parametrize(("bus", "books"), [ALL_IN_MEMORY, ON_SQLITE, ON_SERVERS])
# For stories that would prove nothing new on real servers.
IN_MEMORY = pytest.mark.parametrize(("bus", "books"), [ALL_IN_MEMORY, ON_SQLITE, IN_MEMORY_APART])
# For stories whose rooms' SQL is tested elsewhere.
BOTH = pytest.mark.parametrize(("bus", "books"), [ALL_IN_MEMORY, ON_SERVERS])
# For stories about SQL.
EMBEDDED = pytest.mark.parametrize(("bus", "books"), [("memory", "sqlite")])
SQL_STAGES = pytest.mark.parametrize(("bus", "books"), [("memory", "sqlite"), ON_SERVERS])
BACKENDS_APART = pytest.mark.parametrize(
    ("bus", "books"),
    [
        (f"memory{APART}", "memory"),
        pytest.param(f"memory{APART}", "sqlite", marks=pytest.mark.proof),
        pytest.param(f"rabbitmq{APART}", "postgresql", marks=SERVERS),
    ],
)
API_ROLES = tuple([role.name for role in ROLES if not role.per_cell])


class Layout(Struct, frozen=True):
    """The brokers under test, and the user of each role on them."""

    api: BrokerUnderTest
    # Cells with a broker of their own.
    cells: Mapping[str, BrokerUnderTest]

    def at_api(self, role: str) -> Broker:
        return self.api.broker(user_of(role) if self.cells else "")

    def in_cell(self, cell: str, role: str = "conductor") -> Broker:
        """The broker of the cell, as this role of the cell."""
        there = self.cells.get(cell)
        return self.api.broker() if there is None else there.broker(user_of(role, cell))

    def below(self, role: str) -> dict[str, Broker]:
        """The brokers of the cells that have one of their own, as this API-level role."""
        return {cell: there.broker(user_of(role)) for cell, there in self.cells.items()}


class OneBroker(Layout, frozen=True):
    """One broker for all levels, on which each role has a user of its own with its own rights."""

    def at_api(self, role: str) -> Broker:
        return self.api.broker(user_of(role))

    def in_cell(self, cell: str, role: str = "conductor") -> Broker:
        return self.api.broker(user_of(role, cell))


@asynccontextmanager
async def one_broker_with_users(kind: str, *others: str) -> AsyncIterator[OneBroker]:
    """`others` are further users, such as those of applications."""
    async with AsyncExitStack() as stack:
        api = await _open(kind, stack)
        await declared(api)
        of_cells = [user_of(role, cell) for role in ("conductor", "compute") for cell in CELLS]
        await api.add_users([*map(user_of, API_ROLES), *of_cells, *others], CELLS)
        yield OneBroker(api, {})


@asynccontextmanager
async def layout(bus: str) -> AsyncIterator[Layout]:
    """Brokers with everything declared; `bus` says of which kind, and whether each cell has one of its own."""
    kind = bus.removesuffix(APART)
    async with AsyncExitStack() as stack:
        api = await _open(kind, stack)
        if kind == bus:
            await declared(api)
            yield Layout(api, {})
            return
        cells = {cell: await _open(kind, stack) for cell in CELLS}
        await _declare(api, (), Site.API)
        for cell, broker in cells.items():
            await _declare(broker, (cell,), Site.CELL)
        yield Layout(api, cells)


async def _open(kind: str, stack: AsyncExitStack) -> BrokerUnderTest:
    (broker,) = await stack.enter_async_context(closing(await started(kind)))
    return broker


async def _declare(broker: BrokerUnderTest, cells: tuple[str, ...], site: Site) -> None:
    await broker.declare(objects_of(cells, (site,)))
    # Every broker gets the same users, so that a pool of prepared virtual hosts can serve all of them. No test uses
    # another cell's user.
    users = [
        *map(user_of, API_ROLES),
        *(user_of(role, cell) for role in ("conductor", "compute") for cell in CELLS),
    ]
    await broker.add_users(users, CELLS)
