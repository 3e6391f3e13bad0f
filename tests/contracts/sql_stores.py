"""The SQL stores, each on a database of its own with empty tables."""

import asyncio
import atexit
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from kit.sql import grant_rights, upgrade
from moor.clouds.db_command import ROLES, DatabaseUse, role_name
from tests.running import closing

WORKER = "placement_worker"
# How many statements on this database wait for a lock of another one. Who waits for a row waits for a transaction, which has no
# database, and holds a lock of the row's table. Other tests use databases of the same server at the same time.
LOCKS_AWAITED = """
    SELECT count(DISTINCT waits.pid) FROM pg_locks waits JOIN pg_locks has ON has.pid = waits.pid
    JOIN pg_database ON pg_database.oid = has.database
    WHERE NOT waits.granted AND datname = current_database()
"""
VARIABLE = "MOOR_TEST_POSTGRES_URL"
# PostgreSQL's own template, which has no tables.
TEMPLATE = "template1"
# From this version on PostgreSQL writes a clone page by page to its log, unless it is told to copy the files. To copy
# them takes it a fifth of the CPU.
LOGGED_CLONES_SINCE = 15

CELL = "a-cell"
# The role by which the tests of a package's store connect.
ROLE_OF = {
    "placement_worker": role_name("placement"),
    "scheduler_worker": role_name("scheduler"),
    "cell_conductor": role_name("conductor", CELL),
    "ironic_sync": role_name("ironic"),
    "keeper": role_name("keeper"),
}

_making = asyncio.Lock()


@asynccontextmanager
async def migrated_database(kind: str, *workers: str) -> AsyncIterator[str]:
    """The URL of a clone of a database with the empty tables of these workers; without a name, of placement.

    On PostgreSQL the tables of one worker are used by its own role; those of several by the superuser.
    """
    match kind:
        case "postgresql":
            async with _postgres_database(template=await _postgres_template(workers or (WORKER,))) as url:
                role = ROLE_OF.get((workers or (WORKER,))[0]) if len(workers) <= 1 else None
                yield url if role is None else as_role(url, role)
        case _:
            async with empty_database(kind) as url:
                shutil.copyfile(await _sqlite_template(workers or (WORKER,)), _file_of(url))
                yield url


@asynccontextmanager
async def empty_database(kind: str) -> AsyncIterator[str]:
    """The URL of a database without tables."""
    match kind:
        case "sqlite":
            with TemporaryDirectory() as directory:
                yield f"sqlite:///{Path(directory) / 'books.db'}"
        case "postgresql":
            async with _postgres_database() as url:
                yield url
        case _:
            raise ValueError(f"no SQL store is called {kind!r}")


@asynccontextmanager
async def _postgres_database(template: str = TEMPLATE) -> AsyncIterator[str]:
    name = _new_name()
    await _create(name, template)
    try:
        yield _url_of(name)
    finally:
        # Forced, so that a failed test that left a connection open fails by its own error.
        await administer(f'DROP DATABASE "{name}" WITH (FORCE)')


async def _postgres_template(workers: tuple[str, ...]) -> str:
    """The first test migrates it, all others clone it."""
    async with _making:
        if workers not in _made:
            name = _made[workers] = _new_name()
            await _create(name)
            # At exit an event loop can no longer resolve host names, so another process does it.
            atexit.register(subprocess.run, [sys.executable, "-m", __name__, name], check=False)
            for worker in workers:
                await upgrade(_url_of(name), worker)
            await _give_rights(_url_of(name), workers)
    return _made[workers]


async def _give_rights(url: str, packages: tuple[str, ...]) -> None:
    """Make the roles that these packages need, which all databases of the server share, and give them their rights in this one."""
    use = DatabaseUse(url, packages, (CELL,))
    # Other processes make them at the same time.
    made = [
        f'DO $$ BEGIN CREATE ROLE "{role.name}" LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$'
        for role in (use.owner, *use.roles)
    ]
    await administer(*made, f'GRANT CREATE ON SCHEMA public TO "{use.owner.name}"', url=url)
    granted = await grant_rights(url, use.owner, use.roles)
    assert len(granted) == len([role for role in ROLES if role.package in packages])


async def _sqlite_template(workers: tuple[str, ...]) -> Path:
    """The migrated file to copy; its directory goes with this process."""
    path = Path(_templates().name) / "-".join(workers)
    async with _making:
        if not path.exists():
            for worker in workers:
                await upgrade(f"sqlite:///{path}", worker)
    return path


_made: dict[tuple[str, ...], str] = {}


@cache
def _templates() -> TemporaryDirectory[str]:
    directory = TemporaryDirectory()
    atexit.register(directory.cleanup)
    return directory


def as_role(url: str, role: str) -> str:
    return make_url(url).set(username=role, password=None).render_as_string(hide_password=False)


def as_owner(url: str) -> str:
    """The same database, as the superuser to whom its tables belong: a worker's own role may not change them."""
    database = make_url(url).database
    assert database, f"{url} has no database"
    return _url_of(database)


def _file_of(url: str) -> Path:
    path = make_url(url).database
    assert path, f"{url} has no file"
    return Path(path)


def _new_name() -> str:
    return f"moor_test_{uuid4().hex}"


def _server() -> str:
    url = os.environ.get(VARIABLE)
    if not url:
        pytest.fail(
            f"{VARIABLE} is not set: run the tests by `make test`, or `python -m tests.servers -- pytest`"
        )
    return url


def _url_of(database: str) -> str:
    return make_url(_server()).set(database=database).render_as_string(hide_password=False)


async def _create(name: str, template: str = TEMPLATE) -> None:
    async with a_session(_server()) as session:
        copies_files = session.get_server_version().major >= LOGGED_CLONES_SINCE
        strategy = "STRATEGY file_copy" if copies_files else ""
        await session.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" {strategy}')


async def administer(*statements: str, url: str = "") -> None:
    """On this database, or on the tests' server as its superuser."""
    async with a_session(url or _server()) as session:
        for statement in statements:
            await session.execute(statement)


@asynccontextmanager
async def a_session(url: str, **more: Any) -> AsyncIterator[asyncpg.Connection]:
    """A session of the driver's own. The driver reads several hosts in a URL by itself, other than SQLAlchemy."""
    async with closing(await asyncpg.connect(url.replace("+asyncpg", ""), **more)) as (session,):
        yield session


async def rows_of(url: str, statement: str, *values: Any, **more: Any) -> list[tuple[Any, ...]]:
    async with a_session(url, **more) as session:
        return [tuple(row) for row in await session.fetch(statement, *values)]


async def end_sessions(url: str) -> int:
    """End all sessions on this database, as a failing network or an operator would. Returns how many there were."""
    ((count,),) = await rows_of(
        as_owner(url),
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    return int(count)


if __name__ == "__main__":
    asyncio.run(administer(f'DROP DATABASE IF EXISTS "{sys.argv[1]}" WITH (FORCE)'))
