"""A request for a thousand instances, all or none: hosts are chosen in the picture, and claimed by one transaction.

Without a bus: the scheduler's choice and the pages of the claim, their JSON, and placement's handler on its database.
"""

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
from msgspec import structs

from bus.messages.administration import AllClaimed, ClaimsAnswered, ClaimTogether
from bus.messages.placement import ClaimResources, ReportInventory
from bus.messages.together import taken_together
from bus.workers.handling import Weighed
from engine.choosing.choosing import Chosen, choose
from engine.hosts import HostState
from engine.inventories import ConsumerId, ProviderId, ReportedInventory
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from kit.sql import upgrade
from placement_worker.store_sql import PlacementStore
from tests.servers import PrivatePostgres
from tools.benchmarks.books import (
    REPORTS_AT_ONCE,
    WORKER,
    WrongBooksError,
    asked,
    check,
    closing,
    connected,
    database_of,
    handled,
    handlers_on,
)
from tools.benchmarks.cpu import OneProcess, ProcessTree, Spender
from tools.benchmarks.measuring import DATABASE, Details, Effort, Result, Work, measured
from tools.benchmarks.messages import CELL, report
from tools.benchmarks.section_choosing import PLUGINS

INSTANCES, REQUESTS = 1_000, 10
SPEC = InstanceSpec(amounts=(("DISK_GB", 20), ("MEMORY_MB", 2048), ("VCPU", 2)))

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ClaimTogether).decode


async def together_section(effort: Effort) -> list[Result]:
    if effort.servers:
        async with _postgres(10_000) as (store, spender):
            return [
                await _measure(
                    "postgresql", store, {DATABASE: spender}, hosts=10_000, instances=INSTANCES, effort=effort
                )
            ]
    with tempfile.TemporaryDirectory(prefix="moor-") as directory:
        async with _filled(f"sqlite:///{Path(directory) / 'books.db'}", 100) as store:
            return [await _measure("sqlite", store, {}, hosts=100, instances=10, effort=effort)]


async def _measure(
    name: str,
    store: PlacementStore,
    spenders: Mapping[str, Spender],
    *,
    hosts: int,
    instances: int,
    effort: Effort,
) -> Result:
    picture = await _picture_of(store)
    result = await measured(
        "claims, all or none",
        {"store": name, "hosts": hosts, "instances": instances},
        {"python": OneProcess(os.getpid()), **spenders},
        operations=effort.operations(REQUESTS, 1),
        effort=effort,
        prepare=partial(_prepare, store, picture, instances),
    )
    await check(store)
    return result


def _prepare(store: PlacementStore, picture: Picture, instances: int, requests: int) -> Work:
    async def work() -> Details:
        for turn in range(requests):
            await _claim(store, picture, instances, salt=turn)
        return {}

    return work


async def _claim(store: PlacementStore, picture: Picture, instances: int, salt: int) -> None:
    now = datetime.now(UTC)
    found = choose(picture, [SPEC] * instances, PLUGINS, salt)
    claims = [
        ClaimResources(
            cell=one.cell,
            consumer=ConsumerId(uuid4()),
            attempt=1,
            issued_at=now,
            share=one.choice.share,
        )
        for one in found
        if isinstance(one, Chosen)
    ]
    templates, places = taken_together(claims)
    together = ClaimTogether(claim=uuid4(), attempt=1, issued_at=now, templates=templates, places=places)
    handler = handlers_on(store)[ClaimTogether]
    assert isinstance(handler, Weighed)
    async with store.transaction() as tx:
        (said,) = await handler.handle(asked([_decode(_encode(together))]), tx)
    answer = getattr(said, "message", None)
    if not isinstance(answer, ClaimsAnswered) or answer.verdict != AllClaimed(is_new=True):
        raise WrongBooksError(f"refused: {answer}")


async def _fill(store: PlacementStore, hosts: int) -> None:
    reports = _reports(hosts)
    handler = handlers_on(store)[ReportInventory]
    for start in range(0, len(reports), REPORTS_AT_ONCE):
        await handled(store, handler, asked(reports[start : start + REPORTS_AT_ONCE]))


def _reports(hosts: int) -> list[ReportInventory]:
    first = report(0)
    # Small enough that the weighers spread the instances.
    size = {
        "VCPU": ReportedInventory(total=64, allocation_ratio=4.0),
        "MEMORY_MB": ReportedInventory(total=262_144),
        "DISK_GB": ReportedInventory(total=2_000),
    }
    provider = structs.replace(first.providers[0], inventories=size)
    ids = [ProviderId(UUID(int=number + 1)) for number in range(hosts)]
    return [
        structs.replace(
            first, root=id_, providers=(structs.replace(provider, id=id_, name=f"host-{id_.int}"),)
        )
        for id_ in ids
    ]


async def _picture_of(store: PlacementStore) -> Picture:
    picture = Picture()
    after: int | None = 0
    while after is not None:
        page = await store.snapshot_page(after, 1_000)
        picture.apply(page.providers)
        picture.put_hosts(
            HostState(id=each.id, name=each.name, cell=CELL, up=True) for each in page.providers
        )
        after = page.next
    return picture


@asynccontextmanager
async def _postgres(hosts: int) -> AsyncIterator[tuple[PlacementStore, Spender]]:
    with PrivatePostgres() as server:
        assert server.keeper is not None
        async with connected(server, "postgres") as administrator:
            await administrator.execute("CREATE DATABASE together")
        async with _filled(database_of(server, "together"), hosts) as store:
            async with connected(server, "together") as there:
                await there.execute("VACUUM ANALYZE")
            yield store, ProcessTree(server.keeper)


@asynccontextmanager
async def _filled(url: str, hosts: int) -> AsyncIterator[PlacementStore]:
    await upgrade(url, WORKER)
    async with closing(PlacementStore(url)) as store:
        await _fill(store, hosts)
        yield store
