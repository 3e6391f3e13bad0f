"""The stores that claims are written to, each with a thousand hosts on its books.

Each of them keeps what it confirms. SQLite syncs at each commit. PostgreSQL runs with a production server's settings
(fsync, synchronous_commit) and a gigabyte of shared buffers.
"""

import itertools
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import asyncpg
from msgspec import Struct
from sqlalchemy.engine import make_url

from bus.message import Message
from bus.messages.placement import ClaimAnswered, ReportAccepted, ReportAnswered, ReportInventory
from bus.workers.handlers import Handler, Handlers, ReadOnly, Received, Weighed
from engine.refusals import Claimed
from kit.clock import now
from kit.sql import POOL_SIZE, upgrade
from placement_worker.handlers import handlers
from placement_worker.settings import PlacementSettings
from placement_worker.store_sql import PlacementStore
from placement_worker.view import ProviderView
from placement_worker.wiring import STANDARD
from tests.running import closing
from tests.servers import PrivatePostgres
from tools.benchmarks.cpu import ProcessTree, Spender
from tools.benchmarks.measuring import DATABASE
from tools.benchmarks.messages import reports

WORKER = "placement_worker"
REPORTS_AT_ONCE = 100
PRODUCTION = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "1GB"}


class WrongBooksError(AssertionError):
    """The measured work gave a wrong result, so its figures mean nothing."""


class OpenedBooks(Struct, frozen=True):
    store: PlacementStore
    url: str = ""


class Books(Protocol):
    """One kind of store."""

    @property
    def name(self) -> str: ...

    @property
    def spenders(self) -> Mapping[str, Spender]: ...

    def opened(self, connections: int = POOL_SIZE) -> AbstractAsyncContextManager[OpenedBooks]:
        """Opened with the hosts on its books, and no claim; audited at the end."""

    async def settle(self) -> None:
        """Do now the deferred work for what was written."""


class SqliteBooks:
    name = "sqlite"
    spenders: Mapping[str, Spender] = {}

    @asynccontextmanager
    async def opened(self, connections: int = POOL_SIZE) -> AsyncIterator[OpenedBooks]:  # noqa: ARG002 - there is one
        async with new_database() as url, filled(url, reports()) as store:
            yield OpenedBooks(store, url)

    async def settle(self) -> None:
        """Every thousand pages a writer makes a checkpoint."""


class PostgresServer:
    """A PostgreSQL with a production server's settings, and its databases."""

    def __init__(self, postgres: PrivatePostgres) -> None:
        assert postgres.keeper is not None
        self.spender: Spender = ProcessTree(postgres.keeper)
        self._url = make_url(postgres.url)
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def database(self, template: str = "template1") -> AsyncIterator[str]:
        """The URL of a new copy of this database; it is empty if no other is named."""
        name = f"books_{next(self._numbers)}"
        await self._administer(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self._url.set(database=name).render_as_string(hide_password=False)
        finally:
            await self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    async def settle(self) -> None:
        """Write all dirty pages with a checkpoint; by itself the server does that minutes later."""
        await self._administer("CHECKPOINT")

    async def _administer(self, statement: str) -> None:
        async with connected(self._url.render_as_string(hide_password=False)) as administrator:
            await administrator.execute(statement)


@asynccontextmanager
async def postgres_server() -> AsyncIterator[PostgresServer]:
    with PrivatePostgres(settings=PRODUCTION) as postgres:
        yield PostgresServer(postgres)


@asynccontextmanager
async def new_database(postgres: PostgresServer | None = None) -> AsyncIterator[str]:
    """The URL of an empty database there, or of a file of SQLite."""
    if postgres is None:
        with tempfile.TemporaryDirectory(prefix="moor-") as directory:
            yield f"sqlite:///{Path(directory) / 'books.db'}"
        return
    async with postgres.database() as url:
        yield url


@asynccontextmanager
async def filled(url: str, every: Sequence[ReportInventory]) -> AsyncIterator[PlacementStore]:
    """Placement's tables, with these hosts on the books; audited at the end."""
    await upgrade(url, WORKER)
    async with closing(PlacementStore(url)) as (store,):
        await fill(store, every)
        if url.startswith("postgresql"):
            await analyze(url)
        yield store
        await check(store)


class PostgresBooks:
    """A database that has the hosts, of which each measurement gets a clone."""

    name = "postgresql"

    def __init__(self, server: PostgresServer, template: str) -> None:
        self.spenders: Mapping[str, Spender] = {DATABASE: server.spender}
        self.settle = server.settle
        self._server = server
        self._template = template

    @asynccontextmanager
    async def opened(self, connections: int = POOL_SIZE) -> AsyncIterator[OpenedBooks]:
        async with (
            self._server.database(self._template) as url,
            closing(PlacementStore(url, pool_size=connections)) as (store,),
        ):
            yield OpenedBooks(store, url)
            await check(store)


@asynccontextmanager
async def postgres_books() -> AsyncIterator[PostgresBooks]:
    async with postgres_server() as server, server.database() as url:
        async with filled(url, reports()):
            """The template has the hosts; nothing may be connected to it when it is copied."""
        yield PostgresBooks(server, str(make_url(url).database))


async def check(store: PlacementStore) -> None:
    if contradictions := await store.audit():
        shown = "\n".join(contradictions[:10])
        raise WrongBooksError(f"{len(contradictions)} contradictions in the books, among them:\n{shown}")


# Placement's own handlers called with a batch, without a bus


def handlers_on(store: PlacementStore) -> Handlers:
    return handlers(store, ProviderView(store), PlacementSettings(), vocabulary=STANDARD, clock=now)


def asked(messages: Sequence[Message]) -> list[Received[Any]]:
    """The orders as a worker loop would hand them to the handler."""
    return [
        Received(message=message, id="", trace="", sender="", reply_to="whoever-asks", attempts=0)
        for message in messages
    ]


async def handled(
    store: PlacementStore, handler: Handler | ReadOnly | Weighed, batch: Sequence[Received[Any]]
) -> None:
    """One transaction; placement must grant each claim, or take each report."""
    assert not isinstance(handler, ReadOnly | Weighed)
    async with store.transaction() as tx:
        said = await handler(batch, tx)
    for answer in (getattr(each, "message", None) for each in said):
        match answer:
            case ClaimAnswered(verdict=Claimed()) | ReportAnswered(verdict=ReportAccepted()):
                continue
            case _:
                raise WrongBooksError(f"refused: {answer}")


async def fill(store: PlacementStore, every: Sequence[ReportInventory]) -> None:
    handler = handlers_on(store)[type(every[0])]
    for start in range(0, len(every), REPORTS_AT_ONCE):
        await handled(store, handler, asked(every[start : start + REPORTS_AT_ONCE]))
    async with store.lead_feed() as feed:
        assert feed is not None
        # Marks the log as published: publishing the hosts is not part of the measurement.
        await feed.mark(1, (await feed.read()).cursor)


async def analyze(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute("VACUUM ANALYZE")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    async with closing(await asyncpg.connect(plain)) as (connection,):
        yield connection
