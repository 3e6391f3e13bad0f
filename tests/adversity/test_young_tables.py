"""Tables that grow after their first statements were planned: PostgreSQL keeps the plans, and they must not walk whole
tables.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from bus.messages.placement import ClaimResources
from cell_conductor.store_sql import ConductorStore
from engine.hosts import HostState
from engine.inventories import ProviderId
from engine.refusals import Claimed
from ironic_sync.core.rows import NodeRow
from ironic_sync.store_sql import IronicStore
from kit.sql import upgrade
from placement_worker.store_sql import PlacementStore
from scheduler_worker.core.hosts import HostLoad
from scheduler_worker.core.instances.lifecycle import deleted
from scheduler_worker.store_sql import SchedulerStore
from tests.contracts import placement_orders as placement
from tests.contracts import scheduler_rows as scheduler
from tests.contracts import test_conductor_store as conductor
from tests.contracts import test_ironic_store as ironic
from tests.contracts.sql_stores import a_session, administer, empty_database, rows_of
from tests.contracts.store_client import StoreClient
from tests.running import closing, once

pytestmark = pytest.mark.postgresql

FEW, MANY = 3, 2000

Deed = Callable[[Any, range], Awaitable[None]]


async def write_in_a_cell(store: ConductorStore, numbers: range, due_s: float) -> None:
    await conductor.save(store, *(conductor.a_row(number, due_s=due_s) for number in numbers))


async def add_to_the_scheduler(store: SchedulerStore, numbers: range) -> None:
    new = [scheduler.a_placed(scheduler.a_request(number)) for number in numbers]
    async with store.transaction() as transaction:
        await transaction.accept(new)
        await transaction.note([[row for each in new for row in each.rows]])
        await transaction.save_hosts([reporting_host(number) for number in numbers], scheduler.NOON)


def reporting_host(number: int) -> HostState:
    id_ = ProviderId(UUID(int=number))
    # As long as the description of a host that reports what it is capable of.
    return HostState(
        id=id_, name=f"host-{number}", cell="c1", up=True, sequence=1, capabilities={"cpu": 400 * "x"}
    )


async def write_loads(store: SchedulerStore, numbers: range, report: int) -> None:
    loads = [HostLoad(ProviderId(UUID(int=number)), 1, 0, report, 7, 1, 0) for number in numbers]
    assert await once(store.transaction, lambda tx: tx.save_loads(loads)) == len(loads)


async def change_in_the_scheduler(store: SchedulerStore, numbers: range) -> None:
    assert await once(
        store.transaction, lambda tx: tx.apply_events([scheduler.an_active(number) for number in numbers])
    ) == len(numbers)
    async with store.transaction() as transaction:
        rows = await transaction.lock([scheduler.instance(number) for number in numbers])
        await transaction.save([*rows.values()])
        ending = [each for row in rows.values() if (each := deleted(row, scheduler.LATER)) is not None]
        await transaction.save(ending)
        names = await transaction.note([ending])
    await write_loads(store, numbers, report=numbers.start)
    await once(store.transaction, lambda tx: tx.confirm(names))


async def add_nodes(store: IronicStore, numbers: range) -> None:
    await once(
        store.transaction,
        lambda tx: tx.save([NodeRow(id=ironic.node_id(number), owner="d1") for number in numbers]),
    )


async def change_nodes(store: IronicStore, numbers: range) -> None:
    async with store.transaction() as transaction:
        rows = await transaction.load([ironic.node_id(number) for number in numbers])
        assert not (await transaction.save([*rows.values()])).lost


async def add_hosts(store: PlacementStore, numbers: range) -> None:
    await StoreClient(store).report(*(placement.a_host(f"host-{number}") for number in numbers))


async def add_hosts_in_use(store: PlacementStore, numbers: range) -> None:
    await add_hosts(store, numbers)
    claims = [a_claim_on(number, f"stays-{number}") for number in numbers]
    assert all(isinstance(each, Claimed) for each in await StoreClient(store).ask(*claims))


def a_claim_on(number: int, who: str) -> ClaimResources:
    return placement.a_claim(placement.a_share(placement.provider(f"host-{number}")), placement.consumer(who))


async def claim_and_release(store: PlacementStore, numbers: range) -> None:
    client = StoreClient(store)
    claims = [a_claim_on(number, f"server-{number}") for number in numbers]
    assert all(isinstance(each, Claimed) for each in await client.ask(*claims))
    for claim in claims:
        assert (await store.consumer(claim.consumer)) is not None
    await client.ask(*(placement.a_release(claim.consumer) for claim in claims))


CASES: dict[str, tuple[Callable[[str], Any], Deed, Deed]] = {
    "placement_worker": (PlacementStore, add_hosts_in_use, claim_and_release),
    "cell_conductor": (
        lambda url: ConductorStore(url, "c1"),
        partial(write_in_a_cell, due_s=10),
        partial(write_in_a_cell, due_s=20),
    ),
    "scheduler_worker": (SchedulerStore, add_to_the_scheduler, change_in_the_scheduler),
    "ironic_sync": (IronicStore, add_nodes, change_nodes),
}


@pytest.mark.parametrize("room", CASES)
async def test_a_plan_that_was_made_for_few_rows_walks_no_table_of_many(room: str) -> None:
    opened, add, change = CASES[room]
    async with empty_database("postgresql") as url:
        await upgrade(url, room)
        async with closing(opened(url)) as (store,):
            await add(store, range(1, FEW))
            await administer("ANALYZE", url=url)
            await change(store, range(1, FEW))
            await add(store, range(FEW, MANY))
            for number in range(FEW, MANY, MANY // 40):
                await change(store, range(number, number + 3))

        # Adding a row reads a few rows by key. A statement that walks the table would read 1,000 more each time.
        assert await _rows_read(url) < 20 * MANY


async def test_to_become_active_on_the_chosen_host_writes_no_index() -> None:
    """An index on a changed column would be written again for each instance, and all other indexes with it."""
    numbers = range(1, 201)
    async with empty_database("postgresql") as url:
        await upgrade(url, "scheduler_worker")
        await _without_autovacuum(url, "requested_instances")
        async with closing(SchedulerStore(url)) as (store,):
            await add_to_the_scheduler(store, numbers)
            async with store.transaction() as transaction:
                active = [scheduler.an_active(number, host="h7") for number in numbers]
                assert await transaction.apply_events(active) == 200

        # A few rows may find no free space beside the old version.
        changed, in_place = await _updates(url, "requested_instances")
        assert changed == 200
        assert in_place > 150


async def test_claims_write_no_index_of_providers() -> None:
    """A page of providers has room for the versions that claims write, while a reader still needs the old ones."""
    numbers = range(1, 401)
    async with empty_database("postgresql") as url:
        await upgrade(url, "placement_worker")
        await _without_autovacuum(url, "providers")
        async with closing(PlacementStore(url)) as (store,), a_session(url) as reader:
            await add_hosts(store, numbers)
            await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await reader.fetch("SELECT id FROM providers")
            await claim_and_release(store, numbers)

        changed, in_place = await _updates(url, "providers")
        assert changed == 2 * 400
        assert in_place > 600


async def _without_autovacuum(url: str, table: str) -> None:
    """While autovacuum looks at a table, its old rows stay, and take the room of new ones."""
    await administer(f"ALTER TABLE {table} SET (autovacuum_enabled = off)", url=url)


async def _updates(url: str, table: str) -> tuple[int, int]:
    """How many rows of a table were updated, and how many of these without writing an index."""
    ((changed, in_place),) = await rows_of(
        url, "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1", table
    )
    return changed, in_place


async def _rows_read(url: str) -> int:
    ((read,),) = await rows_of(
        url, "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables"
    )
    return int(read)
