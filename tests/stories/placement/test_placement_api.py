"""Placement over HTTP as operators run it: processes of their own on one database, and its tables in a database of their own."""

import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest

from cell_conductor.tables import metadata as conductor_tables
from compute_sim.tables import metadata as compute_tables
from keeper.tables import metadata as keeper_tables
from placement_worker.store_sql import PlacementStore
from placement_worker.tables import metadata as placement_tables
from scheduler_worker.tables import metadata as scheduler_tables
from tests.contracts.sql_stores import empty_database
from tests.stories.moor.moor_process import Process, started, up
from tests.waiting import until

NEWEST = {"openstack-api-version": "placement 1.39"}


class Api:
    def __init__(self, process: Process, client: httpx.AsyncClient) -> None:
        self.process = process
        self.client = client


@asynccontextmanager
async def api(*options: str, **environment: str) -> AsyncIterator[Api]:
    async with started("run", "placement-api", *options, **environment) as process:
        line = await process.until_printed_to_stderr("placement is served at ")
        url = line.rstrip().rpartition(" ")[2]
        async with httpx.AsyncClient(base_url=url, headers=NEWEST) as client:
            yield Api(process, client)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_each_of_two_servers_sees_at_once_what_was_written_through_the_other(kind: str) -> None:
    async with empty_database(kind) as url, api("--db", url) as one, api("--db", url) as other:
        for turn in range(10):
            writer, reader = (one, other) if turn % 2 else (other, one)
            written = await writer.client.post("/resource_providers", json={"name": f"host-{turn}"})
            found = await reader.client.get("/resource_providers", params={"name": f"host-{turn}"})
            assert [provider["uuid"] for provider in found.json()["resource_providers"]] == [
                written.json()["uuid"]
            ]


async def test_a_server_stops_when_told_and_its_writes_are_there_for_the_next(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'books.db'}"
    async with api("--db", url) as server:
        await server.client.put("/traits/CUSTOM_KEPT")
        server.process.send_signal(signal.SIGTERM)
        assert (await server.process.ended()).code == 0

    async with api("--db", url) as server:
        assert (await server.client.get("/traits/CUSTOM_KEPT")).status_code == 204


PLACEMENT = {*placement_tables.tables, "placement_version"}
OTHERS = {
    *(
        name
        for each in (scheduler_tables, conductor_tables, compute_tables, keeper_tables)
        for name in each.tables
    ),
    *(f"{room}_version" for room in ("scheduler", "cell_conductor", "compute_sim", "keeper")),
}


def tables_in(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name for (name,) in rows if not name.startswith("sqlite_")}


async def test_moor_up_keeps_placements_tables_in_the_given_database(home: Path) -> None:
    apart = f"sqlite:///{home / 'placement.db'}"
    async with up(home, "--cells", "c1", "--hosts", "2", MOOR_PLACEMENT_DB_URL=apart) as cloud:
        booted = await cloud.json("boot", "--vcpus", "1", "--count", "3", "--project", "p1")
        assert [each["state"] for each in booted["instances"]] == ["active"] * 3
        (deleted,) = await cloud.json("delete", "--wait", booted["instances"][0]["id"])
        assert deleted["state"] == "deleted"
    store = PlacementStore(apart.replace("sqlite:", "sqlite+aiosqlite:"))
    assert await store.audit() == ()
    await store.close()
    assert tables_in(home / "placement.db") == PLACEMENT
    assert tables_in(home / "moorage" / "moor.db") == OTHERS
    async with api("--placement-db", apart) as served:
        answer = await served.client.get("/resource_providers")
    names = sorted(each["name"] for each in answer.json()["resource_providers"])
    assert names == ["c1-host-00001", "c1-host-00002"]


async def test_an_http_api_without_a_placement_worker_keeps_the_log_no_longer_than_workers_do(
    home: Path,
) -> None:
    url = f"sqlite:///{home / 'placement.db'}"
    async with api("--db", url):
        """Its tables are made."""
    with closing(sqlite3.connect(home / "placement.db")) as tables:
        row = "INSERT INTO change_log (written_by, at, body) VALUES (0, ?, '{}')"
        tables.executemany(
            row, [("2020-05-17T12:00:00.000000+00:00",)] * 20 + [("2999-05-17T12:00:00.000000+00:00",)]
        )
        tables.commit()

        async with api("--db", url):
            await until(
                lambda: list(tables.execute("SELECT count(*) FROM change_log")) == [(1,)],
                "the old entries of the log are forgotten",
            )
        assert list(tables.execute("SELECT cursor, forgotten FROM feed")) == [("20", "20")]
