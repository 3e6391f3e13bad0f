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
from bus.workers.handling import Handler, Handlers, ReadOnly, Received, Weighed
from engine.refusals import Claimed
from kit.sql import POOL_SIZE, upgrade
from kit.times import now
from placement_worker.handlers import handlers
from placement_worker.settings import PlacementSettings
from placement_worker.store_sql import PlacementStore
from placement_worker.view import ProviderView
from placement_worker.wiring import STANDARD
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
        with tempfile.TemporaryDirectory(prefix="moor-") as directory:
            url = f"sqlite:///{Path(directory) / 'books.db'}"
            await upgrade(url, WORKER)
            async with closing(PlacementStore(url)) as store:
                await fill(store, reports())
                yield OpenedBooks(store, url)
                await check(store)

    async def settle(self) -> None:
        """Every thousand pages a writer makes a checkpoint."""


class PostgresBooks:
    """A private server, with a database that has the hosts; each measurement gets a clone of it."""

    name = "postgresql"

    def __init__(self, server: PrivatePostgres, template: str, administrator: asyncpg.Connection) -> None:
        assert server.keeper is not None
        self.spenders: Mapping[str, Spender] = {DATABASE: ProcessTree(server.keeper)}
        self._server = server
        self._template = template
        self._administrator = administrator
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def opened(self, connections: int = POOL_SIZE) -> AsyncIterator[OpenedBooks]:
        name = f"books_{next(self._numbers)}"
        await self._administrator.execute(f"CREATE DATABASE {name} TEMPLATE {self._template}")
        url = database_of(self._server, name)
        try:
            async with closing(PlacementStore(url, pool_size=connections)) as store:
                yield OpenedBooks(store, url)
                await check(store)
        finally:
            await self._administrator.execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def settle(self) -> None:
        """Write all dirty pages with a checkpoint; by itself the server does that minutes later."""
        await self._administrator.execute("CHECKPOINT")


@asynccontextmanager
async def postgres_books() -> AsyncIterator[PostgresBooks]:
    template = "hosts"
    with PrivatePostgres(settings=PRODUCTION) as server:
        async with connected(server, "postgres") as administrator:
            await administrator.execute(f"CREATE DATABASE {template}")
            url = database_of(server, template)
            await upgrade(url, WORKER)
            async with closing(PlacementStore(url)) as store:
                await fill(store, reports())
            async with connected(server, template) as there:
                await there.execute("VACUUM ANALYZE")
            yield PostgresBooks(server, template, administrator)


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
    answers = [getattr(each, "message", None) for each in said]
    if not all(map(_is_yes, answers)):
        refused = next(answer for answer in answers if not _is_yes(answer))
        raise WrongBooksError(f"refused: {refused}")


def _is_yes(answer: Message | None) -> bool:
    match answer:
        case ClaimAnswered(verdict=Claimed()) | ReportAnswered(verdict=ReportAccepted()):
            return True
        case _:
            return False


async def fill(store: PlacementStore, every: Sequence[ReportInventory]) -> None:
    handler = handlers_on(store)[type(every[0])]
    for start in range(0, len(every), REPORTS_AT_ONCE):
        await handled(store, handler, asked(every[start : start + REPORTS_AT_ONCE]))
    async with store.lead_feed() as feed:
        assert feed is not None
        # Marks the log as published: publishing the hosts is not part of the measurement.
        await feed.mark(1, (await feed.read()).cursor)


@asynccontextmanager
async def closing(store: PlacementStore) -> AsyncIterator[PlacementStore]:
    try:
        yield store
    finally:
        await store.close()


def database_of(server: PrivatePostgres, name: str) -> str:
    return make_url(server.url).set(database=name).render_as_string(hide_password=False)


@asynccontextmanager
async def connected(server: PrivatePostgres, database: str) -> AsyncIterator[asyncpg.Connection]:
    url = make_url(database_of(server, database)).set(drivername="postgresql")
    connection = await asyncpg.connect(url.render_as_string(hide_password=False))
    try:
        yield connection
    finally:
        await connection.close()
