"""Six connections write the same few hosts and consumers at once, with no capacity to spare: the books must stay
correct.

Six workers that share PostgreSQL do the same in production. The trap is a value that a transaction reads while it waits
for a lock.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.placement import ReportInventory
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, Share
from placement_worker import tables
from placement_worker.core.ledger import ClaimOrder
from placement_worker.store_sql import PlacementStore
from tests.adversity.stress import WORKERS, Stress, at_once, seen_in
from tests.contracts.placement_orders import (
    a_claim,
    a_host,
    a_provider,
    a_release,
    a_report,
    a_share,
    a_swap,
    amounts,
    consumer,
    inventories,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.running import closing

pytestmark = pytest.mark.postgresql

BATCHES_PER_WORKER = 120
BATCH_SIZES = (1, 10, 50)

HOSTS = [f"host-{number}" for number in range(8)]
VCPUS_PER_HOST = 24
CONSUMERS = [consumer(f"web-{number}") for number in range(150)]
POOL = provider("pool")
# All hosts take their disk from one pool, so that claims on any two hosts interact.
DISK_GB = 1000


async def test_six_connections_never_break_the_books(url: str) -> None:
    run, touches = Stress(CONSUMERS), Counter[ProviderId]()
    async with closing(PlacementStore(url, pool_size=WORKERS)) as (store,):
        client = StoreClient(store)
        await client.report(*[_a_host_with_a_numa_node(name) for name in HOSTS])
        await client.report(a_host("pool", DISK_GB=DISK_GB))
        before = {state.id: state.revision for state in (await client.providers()).values()}

        async def work(_: int, chance: random.Random) -> None:
            for _ in range(BATCHES_PER_WORKER):
                orders = [_any_order(run, chance) for _ in range(chance.choice(BATCH_SIZES))]
                decision = await run.decide(client, orders)
                touches.update(touched.provider for touched in decision.changes.touched)

        await at_once(work)
        assert await store.audit() == ()
        assert await seen_in(url, _wrong, {which: before[which] + touches[which] for which in before}) == []
    run.has_met("Claimed", "AlreadyClaimed", "DoesNotFit", "Superseded", "Released")


def _numa_node_of(host: str) -> ProviderId:
    return provider(f"{host}'s numa node")


def _a_host_with_a_numa_node(name: str) -> ReportInventory:
    """The scarce resource is in another row than the locked one."""
    root = provider(name)
    return a_report(
        a_provider(name, holds=inventories(MEMORY_MB=100_000)),
        a_provider(f"{name}'s numa node", root, inventories(VCPU=VCPUS_PER_HOST)),
        root=root,
    )


def _any_order(run: Stress, chance: random.Random) -> ClaimOrder:
    """An order mostly about the attempt heard of last, sometimes about the next."""
    who = chance.choice(CONSUMERS)
    attempt = run.attempts[who]
    match chance.random():
        case fate if fate < 0.55:
            run.attempts[who] = attempt = attempt + chance.randrange(2)
            return a_claim(_any_share(chance), who, attempt)
        case fate if fate < 0.75:
            run.attempts[who] = attempt + 1
            kind, share = chance.random(), _any_share(chance)
            beside = consumer(f"{'cleanup' if kind < 0.3 else 'migration'} of {who}")
            if kind < 0.3:
                return a_swap(share, who, attempt, attempt + 1, cleanup=beside)
            if kind < 0.6:
                return a_swap(share, who, attempt, attempt + 1, migration=beside)
            return a_swap(share, who, attempt, attempt + 1, returns=beside if kind < 0.9 else None)
        case fate if fate < 0.8:
            beside = consumer(f"{chance.choice(('cleanup', 'migration'))} of {who}")
            return a_release(beside, max(attempt - 1, 1))
        case _:
            return a_release(who, attempt)


def _any_share(chance: random.Random) -> Share:
    name = chance.choice(HOSTS)
    host = provider(name)
    asked: tuple[ResourceAmount, ...] = (
        *amounts(host, MEMORY_MB=chance.randint(1, 64)),
        *amounts(_numa_node_of(name), VCPU=chance.randint(1, 4)),
        *amounts(POOL, DISK_GB=chance.randint(1, 20)),
    )
    return a_share(host, asked, {host: 1, POOL: 1})


def _wrong(connection: Connection, revisions: dict[ProviderId, int]) -> list[str]:
    """Check the numbers directly, without the store."""
    rows = connection.execute(sa.select(tables.consumers.c.uuid, tables.consumers.c.held)).all()
    held = {who: {int(number): amounts for number, amounts in json.loads(text).items()} for who, text in rows}
    return [
        *_overused(connection, held.values()),
        *_on_two_hosts(connection, held),
        *_lost(connection, revisions),
    ]


# Per provider number, how much of each class is in use.
Held = dict[int, dict[str, int]]


def _overused(connection: Connection, held: Iterable[Held]) -> list[str]:
    sums: Counter[tuple[int, str]] = Counter()
    for of_one in held:
        for number, by_class in of_one.items():
            sums.update({(number, class_id): amount for class_id, amount in by_class.items()})
    query = sa.select(
        tables.providers.c.id,
        tables.providers.c.name,
        tables.inventories.c.class_id,
        tables.inventories.c.total,
        tables.providers.c.used,
    )
    return [
        f"{name} has {total}, {used} in use, and {sums[number, str(class_id)]} of it are held"
        for number, name, class_id, total, used in connection.execute(
            query.join(tables.inventories, tables.inventories.c.provider_id == tables.providers.c.id)
        )
        if not json.loads(used)[str(class_id)] == sums[number, str(class_id)] <= total
    ]


def _on_two_hosts(connection: Connection, held: Mapping[ConsumerId, Held]) -> list[str]:
    query = sa.select(tables.providers.c.id, tables.providers.c.root_id)
    roots = {row.id: row.root_id for row in connection.execute(query.where(tables.providers.c.uuid != POOL))}
    hosts = {who: {roots[number] for number in of_one if number in roots} for who, of_one in held.items()}
    return [f"{who} is on {len(of_one)} hosts" for who, of_one in hosts.items() if len(of_one) > 1]


def _lost(connection: Connection, revisions: dict[ProviderId, int]) -> list[str]:
    """A provider's revision rises by one with each write that touched it: if it rises less, updates were lost."""
    rows: Sequence[Any] = connection.execute(
        sa.select(tables.providers.c.uuid, tables.providers.c.revision)
    ).all()
    return [
        f"{which} is at revision {revision}, not at {revisions[which]}"
        for which, revision in rows
        if revision != revisions[which]
    ]
