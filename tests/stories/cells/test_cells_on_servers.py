"""A process for each worker, a broker and a database for each cell, and the users of a real deployment."""

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path

import pytest

from bus.topology import user_of
from cell_conductor.store_sql import ConductorStore
from moor.client import Client, SentRequest
from tests.contracts.rabbitmq_under_test import CTL_VARIABLE, PASSWORD, RabbitMQUnderTest
from tests.contracts.sql_stores import empty_database
from tests.running import closing
from tests.stories.cloud import SMALL
from tests.stories.layouts import API_ROLES
from tests.stories.moor.moor_process import moor_says, started
from tests.waiting import until

CELLS = ("c1", "c2")
ABOVE_CELLS = (*API_ROLES, "client")
OF_CELLS = (*product(("conductor", "compute"), CELLS),)


def of_cells(urls: Mapping[str, str]) -> str:
    return ",".join(f"{cell}={urls[cell]}" for cell in CELLS)


@pytest.mark.rabbitmq
@pytest.mark.postgresql
# A dozen processes start here one after the other, on a machine that may be busy.
@pytest.mark.timeout(300)
async def test_cells_with_their_own_brokers_and_databases_are_cut_off_and_come_back(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials.toml"
    # Other tests on this server use users with the same names: keep the existing passwords.
    known = [*map(user_of, ABOVE_CELLS), *(user_of(*each) for each in OF_CELLS)]
    credentials.write_text("".join(f'{user} = "{PASSWORD}"\n' for user in known))
    async with AsyncExitStack() as stack:
        brokers, databases = dict[str, RabbitMQUnderTest](), dict[str, str]()
        for name in ("api", *CELLS):
            brokers[name] = await RabbitMQUnderTest.start()
            stack.push_async_callback(brokers[name].close)
            databases[name] = await stack.enter_async_context(empty_database("postgresql"))
        rows = {"MOOR_DB_URL": databases["api"], "MOOR_CELL_DB_URLS": of_cells(databases)}
        urls = {name: broker.url() for name, broker in brokers.items()}
        operating = {"MOOR_BUS_URL": urls["api"], "MOOR_CELL_BUS_URLS": of_cells(urls), **rows}
        files = ("--credentials", str(credentials), "--env-dir", str(tmp_path))
        users = ("--users", *files, "--ctl", os.environ[CTL_VARIABLE])
        await moor_says(0, "", "broker", "declare", *users, **operating)
        await moor_says(0, "", "db", "upgrade", **operating)
        for role, cell in (("placement", ""), ("scheduler", ""), *OF_CELLS):
            lines = (tmp_path / f"{user_of(role, cell)}.env").read_text().splitlines()
            own = {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}
            worker = started("run", role, **rows, **own, MOOR_COMPUTE_HOSTS="3")
            await (await stack.enter_async_context(worker)).until_printed_to_stderr("ready")
        operator = brokers["api"].broker(user_of("operator"))
        moor = await stack.enter_async_context(Client(operator, project=""))
        await until(moor.list_hosts, "6 hosts are up", lambda hosts: sum(host.up for host in hosts) == 6)

        async def booted() -> list[SentRequest]:
            """Ten instances in each cell, when their requests are taken."""
            hosts = {cell: [f"{cell}-host-0000{number}" for number in (1, 2, 3)] for cell in CELLS}
            return [await moor.boot(SMALL, count=10, hosts=hosts[cell]) for cell in CELLS]

        async def cells_of(request: SentRequest) -> set[str]:
            """Where its instances are, when all are active."""
            return {state.cell for state in await request.until_done()}

        before = await booted()
        assert [await cells_of(each) for each in before] == [{"c1"}, {"c2"}]

        await brokers["c1"].unplug()
        waiting, going_on = meanwhile = await booted()
        assert await cells_of(going_on) == {"c2"}
        placed = await until(
            lambda: moor.list_instances(state="placed"),
            "the others wait for their cell",
            lambda found: len(found) == 10,
        )
        assert {state.id for state in placed} == {*waiting.instances}
        await brokers["c1"].plug_in()
        assert await cells_of(waiting) == {"c1"}

        for cell, *requests in zip(CELLS, before, meanwhile, strict=True):
            async with closing(ConductorStore(databases[cell], cell)) as (store,):
                built = await store.read([id_ for each in (*before, *meanwhile) for id_ in each.instances])
            assert {row.id for row in built} == {id_ for each in requests for id_ in each.instances}
