"""Placement's tables in a database of their own, and settings that reach the workers."""

import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import asyncpg
import httpx
import pytest
from sqlalchemy.engine import make_url

from cell_conductor.tables import metadata as conductor_tables
from compute_sim.tables import metadata as compute_tables
from placement_worker.store_sql import PlacementStore
from placement_worker.tables import metadata as placement_tables
from scheduler_worker.tables import metadata as scheduler_tables
from tests.stories.moor.moor_process import Process, moor_json, started
from tests.waiting import until

pytestmark = pytest.mark.asyncio

PLACEMENT = {*placement_tables.tables, "placement_version"}
OTHERS = {
    *(name for each in (scheduler_tables, conductor_tables, compute_tables) for name in each.tables),
    *(f"{room}_version" for room in ("scheduler", "cell_conductor", "compute_sim")),
}


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: the path of a socket may not be long."""
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


@asynccontextmanager
async def up(home: Path, *arguments: str, **environment: str) -> AsyncIterator[Process]:
    async with started("up", "--data", str(home), "--cells", "c1", *arguments, **environment) as process:
        await process.until_printed("ready")
        yield process


async def tables_in(url: str) -> set[str]:
    where = make_url(url)
    if where.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(where.database))) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {name for (name,) in rows if not name.startswith("sqlite_")}
    connected = await asyncpg.connect(
        where.set(drivername="postgresql").render_as_string(hide_password=False)
    )
    try:
        found = await connected.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    finally:
        await connected.close()
    return {row["tablename"] for row in found}


async def audited(url: str) -> tuple[str, ...]:
    store = PlacementStore(url.replace("sqlite:///", "sqlite+aiosqlite:///"))
    try:
        return tuple(await store.audit())
    finally:
        await store.close()


async def providers_served(*arguments: str) -> list[str]:
    """The names that placement serves over HTTP."""
    async with started("run", "placement-api", *arguments) as process:
        line = await process.until_printed_to_stderr("placement is served at ")
        async with httpx.AsyncClient(base_url=line.rstrip().rpartition(" ")[2]) as client:
            answer = await client.get("/resource_providers")
    return sorted(provider["name"] for provider in answer.json()["resource_providers"])


async def test_moor_up_keeps_placements_tables_in_the_given_database(home: Path) -> None:
    apart = f"sqlite:///{home / 'placement.db'}"
    async with up(home, "--hosts", "2", MOOR_PLACEMENT_DB_URL=apart):
        booted = await moor_json(
            "boot", "--vcpus", "1", "--count", "3", "--project", "p1", MOOR_DATA=str(home)
        )
        ids = [each["id"] for each in booted["instances"]]
        assert [each["state"] for each in booted["instances"]] == ["active"] * 3
        deleted = await moor_json("delete", "--wait", ids[0], MOOR_DATA=str(home))
        assert [each["state"] for each in deleted] == ["deleted"]
    assert await audited(apart) == ()
    assert await tables_in(apart) == PLACEMENT
    assert await tables_in(f"sqlite:///{home / 'moor.db'}") == OTHERS
    assert await providers_served("--placement-db", apart) == ["c1-host-00001", "c1-host-00002"]


async def test_an_http_api_without_a_placement_worker_keeps_the_log_no_longer_than_workers_do(
    home: Path,
) -> None:
    url = f"sqlite:///{home / 'placement.db'}"
    async with started("run", "placement-api", "--db", url) as process:
        await process.until_printed_to_stderr("placement is served at ")
    with closing(sqlite3.connect(home / "placement.db")) as tables:
        row = "INSERT INTO change_log (written_by, at, body) VALUES (0, ?, '{}')"
        tables.executemany(
            row, [("2020-05-17T12:00:00.000000+00:00",)] * 20 + [("2999-05-17T12:00:00.000000+00:00",)]
        )
        tables.commit()

        async with started("run", "placement-api", "--db", url):
            await until(
                lambda: list(tables.execute("SELECT count(*) FROM change_log")) == [(1,)],
                "the old entries of the log are forgotten",
            )
        assert list(tables.execute("SELECT cursor, forgotten FROM feed")) == [("20", "20")]
