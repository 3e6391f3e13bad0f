"""A request for a thousand instances, all or none: hosts are chosen in the picture, and claimed by one transaction.

Without a bus: the scheduler's choice and the pages of the claim, their JSON, and placement's handler on its database.
"""

import os
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from uuid import UUID, uuid4

import msgspec
from msgspec import structs

from bus.messages.placement import ClaimResources, ReportInventory
from bus.messages.together import AllClaimed, ClaimsAnswered, ClaimTogether, taken_together
from bus.workers.handlers import Weighed
from engine.choosing.choosing import Chosen, choose
from engine.hosts import HostState
from engine.inventories import ConsumerId, ProviderId, ReportedInventory
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from placement_worker.store_sql import PlacementStore
from tools.benchmarks.books import (
    WrongBooksError,
    asked,
    filled,
    handlers_on,
    new_database,
    postgres_server,
)
from tools.benchmarks.cpu import OneProcess
from tools.benchmarks.measuring import DATABASE, Details, Effort, Result, Work, measured
from tools.benchmarks.messages import CELL, report
from tools.benchmarks.section_choosing import PLUGINS

INSTANCES, REQUESTS = 1_000, 10
SPEC = InstanceSpec(amounts=(("DISK_GB", 20), ("MEMORY_MB", 2048), ("VCPU", 2)))

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ClaimTogether).decode


async def together_section(effort: Effort) -> list[Result]:
    hosts, instances = (10_000, INSTANCES) if effort.servers else (100, 10)
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(postgres_server()) if effort.servers else None
        url = await stack.enter_async_context(new_database(postgres))
        store = await stack.enter_async_context(filled(url, _reports(hosts)))
        picture = await _picture_of(store)
        return [
            await measured(
                "claims, all or none",
                {"store": "postgresql" if postgres else "sqlite", "hosts": hosts, "instances": instances},
                {"python": OneProcess(os.getpid()), **({DATABASE: postgres.spender} if postgres else {})},
                operations=effort.operations(REQUESTS, 1),
                effort=effort,
                prepare=partial(_prepare, store, picture, instances),
            )
        ]


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
