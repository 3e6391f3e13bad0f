"""A process for each worker, a broker and a database for each cell, and the users of a real deployment."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance
from bus.topology import user_of
from bus.workers.station import Station
from cell_conductor.store_sql import ConductorStore
from engine.flavors import RequestId
from moor.client.bus_client import hosts_of
from tests.asking import until_state
from tests.contracts.rabbitmq_under_test import CTL_VARIABLE, PASSWORD, RabbitMQUnderTest
from tests.contracts.sql_stores import empty_database
from tests.contracts.stage import SETTINGS
from tests.fork_server import ForkedProcess, start_module
from tests.running import closing, running
from tests.stories.cloud import SMALL, instance_of
from tests.stories.moor.moor_process import moor
from tests.waiting import PATIENCE_S, until

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.rabbitmq,
    pytest.mark.postgresql,
    # A dozen processes start here one after the other, on a machine that may be busy.
    pytest.mark.timeout(300),
]

CELLS = ("c1", "c2")
USERS = ("scheduler", "placement", "operator", "client", "ironic")


class Servers:
    """Three brokers and three databases, and the workers on them."""

    def __init__(
        self, brokers: Mapping[str, RabbitMQUnderTest], databases: Mapping[str, str], stack: AsyncExitStack
    ) -> None:
        self.brokers = brokers
        self.databases = databases
        self._stack = stack
        # A client that no test kills, and that asks as often as needed.
        patient = structs.replace(SETTINGS, answer_timeout_ms=PATIENCE_S * 1000)
        self.client = Station(
            brokers["api"].broker(user_of("operator")), "client", settings=patient, asks=True
        )

    def addresses(self, user: str = "") -> dict[str, str]:
        """The environment variables of an API-level worker: the addresses of brokers and databases."""
        cells = ",".join(f"{cell}={self.brokers[cell].url(user)}" for cell in CELLS)
        return {"MOOR_BUS_URL": self.brokers["api"].url(user), "MOOR_CELL_BUS_URLS": cells}

    async def prepare(self, credentials: Path) -> None:
        """Declare the topology, create the users and the tables, as an operator does."""
        _write_known(credentials)
        declared = await moor(
            *(
                "broker",
                "declare",
                "--users",
                "--credentials",
                str(credentials),
                "--ctl",
                os.environ[CTL_VARIABLE],
            ),
            **self.addresses(),
        )
        assert declared.code == 0, declared.err
        upgraded = await moor(
            *("db", "upgrade"),
            MOOR_DB_URL=self.databases["api"],
            MOOR_CELL_DB_URLS=",".join(f"{cell}={self.databases[cell]}" for cell in CELLS),
        )
        assert upgraded.code == 0, upgraded.err

    async def start(self) -> None:
        for role in ("placement", "scheduler"):
            await self._start(f"{role}_worker", self.addresses(user_of(role)))
        for cell in CELLS:
            for role, room in (("conductor", "cell_conductor"), ("compute", "compute_sim")):
                environment = {
                    "MOOR_CELL": cell,
                    "MOOR_BUS_URL": self.brokers[cell].url(user_of(role, cell)),
                    "MOOR_CELL_DB_URLS": f"{cell}={self.databases[cell]}",
                    "MOOR_COMPUTE_HOSTS": "3",
                }
                await self._start(room, environment)

    async def _start(self, room: str, environment: Mapping[str, str]) -> None:
        process = await start_module(
            room,
            env={
                "PATH": os.environ["PATH"],
                "MOOR_DB_URL": self.databases["api"],
                "MOOR_LOG_LEVEL": "CRITICAL",
                **environment,
            },
        )
        self._stack.push_async_callback(_end, process)

    async def until_up(self, hosts: int) -> None:
        await until(
            lambda: hosts_of(self.client),
            f"{hosts} hosts are up",
            lambda found: sum(host.up for host in found) == hosts,
        )

    async def until_state(self, state: str, builds: Sequence[BuildInstance]) -> set[str]:
        """Wait until all of these instances are in this state; returns their cells."""
        return {(await until_state(self.client, instance_of(build), state)).cell for build in builds}

    async def built_in(self, cell: str, builds: Sequence[BuildInstance]) -> int:
        """How many of these instances the cell's own database has."""
        async with closing(ConductorStore(self.databases[cell], cell)) as (rows,):
            return len(await rows.read([instance_of(build) for build in builds]))


def _write_known(credentials: Path) -> None:
    """Other tests on this server use users with the same names: keep the existing passwords."""
    users = [
        *map(user_of, USERS),
        *(user_of(role, cell) for role in ("conductor", "compute") for cell in CELLS),
    ]
    credentials.write_text("".join(f'{user} = "{PASSWORD}"\n' for user in users))


async def _end(process: ForkedProcess) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(PATIENCE_S):
            code = await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert code == 0


@asynccontextmanager
async def servers(credentials: Path) -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        brokers = {}
        for name in ("api", *CELLS):
            brokers[name] = await RabbitMQUnderTest.start()
            stack.push_async_callback(brokers[name].close)
        databases = {
            name: await stack.enter_async_context(empty_database("postgresql")) for name in ("api", *CELLS)
        }
        setup = Servers(brokers, databases, stack)
        await setup.prepare(credentials)
        async with running((setup.client,), setup.client):
            yield setup


def builds(first: int, cell: str) -> list[BuildInstance]:
    hosts = tuple(f"{cell}-host-{number:05d}" for number in (1, 2, 3))
    return [
        BuildInstance(request_id=RequestId(UUID(int=number)), flavor=SMALL, name=f"vm-{number}", hosts=hosts)
        for number in range(first, first + 10)
    ]


async def test_cells_with_their_own_brokers_and_databases_are_cut_off_and_come_back(
    tmp_path: Path,
) -> None:
    async with servers(tmp_path / "credentials.toml") as setup:
        await setup.start()
        await setup.until_up(6)
        in_one, in_two = builds(1, "c1"), builds(101, "c2")
        await setup.client.ask_all([*in_one, *in_two])
        assert await setup.until_state("active", [*in_one, *in_two]) == {"c1", "c2"}

        await setup.brokers["c1"].unplug()
        waiting, going_on = builds(201, "c1"), builds(301, "c2")
        await setup.client.ask_all([*waiting, *going_on])
        assert await setup.until_state("active", going_on) == {"c2"}
        assert await setup.until_state("placed", waiting) == {"c1"}
        await setup.brokers["c1"].plug_in()
        assert await setup.until_state("active", waiting) == {"c1"}

        assert await setup.built_in("c1", [*in_one, *waiting]) == 20
        assert await setup.built_in("c2", [*in_two, *going_on]) == 20
        assert await setup.built_in("c2", [*in_one, *waiting]) == 0
