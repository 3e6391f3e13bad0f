"""Contract of the bare-metal stores: nothing is half done, no write overwrites a newer one, and a node has one owner."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.cell import DeployInstance, InstanceSpawned, RedeployInstance, SpawnFailed
from engine.flavors import Flavor, Image, InstanceId
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, Share
from ironic_sync.core.node import Node
from ironic_sync.core.ring import NodeHandover, Owned
from ironic_sync.core.rows import (
    Alarms,
    Deployed,
    Ended,
    NodeDeploy,
    NodeRow,
    Offer,
    Rebuilt,
    Unasked,
)
from ironic_sync.settings import IronicSettings
from ironic_sync.store_sql import DaemonNameTaken, IronicStore, SavedRows
from kit.database_settings import DatabaseSettings
from kit.errors import Unavailable
from kit.sql import POOL_SIZE
from tests.contracts.sql_stores import migrated_database
from tests.contracts.stores import STORES, open_ironic_store, open_ironic_stores, undone
from tests.running import closing, once
from tests.waiting import until

EACH_STORE = pytest.mark.parametrize("kind", STORES)

NOON = datetime(2026, 3, 4, 12, 0, 0, 123456, tzinfo=UTC)
LONG_S = 3600.0
OVER_S = 0.0


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[IronicStore]:
    async with open_ironic_store(request.param) as store:
        yield store


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def node_id(number: int) -> ProviderId:
    return ProviderId(UUID(int=number))


def a_row(number: int, owner: str = "", epoch: int = 0) -> NodeRow:
    return NodeRow(
        id=node_id(number), cell="c1", owner=owner, epoch=epoch, seen_epoch=epoch, read_epoch=epoch
    )


def deployed(row: NodeRow, due_s: float | None = None) -> NodeRow:
    deploy = NodeDeploy(
        kind="deploy",
        cell="c1",
        instance=InstanceId(ConsumerId(UUID(int=900))),
        attempt=1,
        due_at=None if due_s is None else later(due_s),
    )
    return structs.replace(row, deploy=deploy)


def everything() -> NodeRow:
    """A row with a value in every field."""
    node = Node(
        id=node_id(1),
        name="böx",
        provision_state="active",
        maintenance=True,
        traits=("CUSTOM_A", "CUSTOM_B"),
        instance_uuid=UUID(int=5),
        provision_updated_at=NOON,
        properties={"cpus": "8", "nested": {"a": [1, None]}},
    )
    return NodeRow(
        id=node_id(1),
        cell="c1",
        owner="d-1.example_org",
        epoch=7,
        read_epoch=6,
        node=node,
        is_deleted=True,
        heard_at_us=2**53 + 1,
        heard_from="conductor-1",
        doubts=("a doubt",),
        is_doubted=True,
        offer=Offer(resource_class="CUSTOM_GOLD", reserved=False, traits=("CUSTOM_A",)),
        reported=Offer(resource_class="CUSTOM_IRON", reasons=("maintenance",)),
        reported_number=3,
        deploy=NodeDeploy(
            kind="undeploy",
            cell="c1",
            instance=InstanceId(ConsumerId(UUID(int=5))),
            attempt=2,
            order=DeployInstance(
                cell="c1",
                instance=InstanceId(ConsumerId(UUID(int=5))),
                attempt=2,
                host=node_id(1),
                flavor=Flavor(name="gold", vcpus=2, extra_specs={"resources:CUSTOM_GOLD": "1"}),
                share=Share(host=node_id(1), amounts=(ResourceAmount(node_id(1), "CUSTOM_GOLD", 1),)),
                image=Image(source="http://images/1"),
                ports=("port-1",),
            ),
            failure="no image",
            progress="deploying",
            tries=3,
            started_at=NOON,
            due_at=later(60),
        ),
        deployed=Deployed(
            cell="c1",
            instance=InstanceId(ConsumerId(UUID(int=6))),
            attempt=1,
            rebuilt=Rebuilt(number=102, failure="no disk", is_active=False),
        ),
        ended=(Ended(instance=InstanceId(ConsumerId(UUID(int=7))), attempt=3, failure="no power"),),
        answers=(
            InstanceSpawned(
                cell="c1", instance=InstanceId(ConsumerId(UUID(int=6))), attempt=1, host=node_id(1)
            ),
            SpawnFailed(
                cell="c1",
                instance=InstanceId(ConsumerId(UUID(int=7))),
                attempt=3,
                host=node_id(1),
                reason="no power",
            ),
        ),
        answers_at=NOON,
    )


def rebuilding() -> NodeDeploy:
    instance = InstanceId(ConsumerId(UUID(int=5)))
    order = RedeployInstance(
        cell="c1",
        instance=instance,
        attempt=2,
        host=node_id(1),
        number=103,
        flavor=Flavor(name="gold"),
        image=Image(source="http://images/2"),
        image_properties={"trait:CUSTOM_GOLD": "required"},
        config_drive="http://drives/2",
    )
    return NodeDeploy(
        kind="rebuild",
        cell="c1",
        instance=instance,
        attempt=2,
        order=order,
        before="active since 2026-03-04T10:00:00+00:00",
        is_ordered=True,
        due_at=later(60),
    )


async def save(store: IronicStore, *rows: NodeRow) -> SavedRows:
    return await once(store.transaction, lambda tx: tx.save(rows))


async def known(store: IronicStore, *numbers: int) -> list[NodeRow]:
    return [*(await store.read([node_id(number) for number in numbers])).values()]


async def every_due(store: IronicStore, owner: str, at: datetime) -> list[ProviderId]:
    return [row.id for row in await store.due(owner, at, later(3600), 10)]


# Rows


@pytest.mark.parametrize("row", [everything(), structs.replace(everything(), deploy=rebuilding())])
async def test_a_row_is_found_again_as_it_was_with_the_next_version(row: NodeRow, store: IronicStore) -> None:

    saved = await save(store, row)

    kept = structs.replace(row, version=1)
    assert saved == SavedRows((kept,), ())
    assert await known(store, 1, 2) == [kept]
    async with store.transaction() as tx:
        assert await tx.load([node_id(2), node_id(1)]) == {kept.id: kept}
        assert await tx.load([]) == {}


async def test_a_row_that_was_written_since_it_was_read_is_not_written(store: IronicStore) -> None:
    first, second = (await save(store, a_row(1), a_row(2))).rows
    newer = (await save(store, structs.replace(first, cell="c2"))).rows[0]

    saved = await save(store, structs.replace(first, cell="c3"), structs.replace(second, cell="c3"))

    written = structs.replace(second, cell="c3", version=2)
    assert saved == SavedRows((written,), (first.id,))
    assert await known(store, 1, 2) == [newer, written]


async def test_of_two_that_insert_a_row_one_loses(store: IronicStore) -> None:
    await save(store, a_row(1))

    saved = await save(store, structs.replace(a_row(1), cell="c9"), a_row(2))

    assert [row.id for row in saved.rows] == [node_id(2)]
    assert saved.lost == (node_id(1),)
    assert (await known(store, 1))[0].cell == "c1"


async def test_a_row_that_was_never_there_is_not_made_by_a_write_that_names_a_version(
    store: IronicStore,
) -> None:
    assert await save(store, structs.replace(a_row(1), version=4)) == SavedRows((), (node_id(1),))
    assert await known(store, 1) == []


async def test_a_transaction_sees_what_it_wrote_and_a_failed_one_leaves_nothing(store: IronicStore) -> None:
    (kept,) = (await save(store, a_row(2))).rows
    async with undone(store.transaction()) as tx:
        (row,) = (await tx.save([a_row(1)])).rows
        assert await tx.load([row.id]) == {row.id: row}
        assert (await tx.save([row])).rows[0].version == 2
        assert await tx.forget([kept]) == 1

    assert await known(store, 1, 2) == [kept]


@EACH_STORE
async def test_of_many_who_write_at_once_each_write_counts_or_is_lost(kind: str) -> None:
    async with open_ironic_stores(kind, 4) as stores:
        await save(stores[0], *(a_row(number) for number in range(1, 21)))
        read = await known(stores[0], *range(1, 21))
        # Each names the rows in another order: a store that locked them in that order would deadlock.
        orders = (read, read[::-1], read[10:] + read[:10], read[::2] + read[1::2])

        async with asyncio.timeout(60):
            saved = await asyncio.gather(
                *(
                    save(store, *(structs.replace(row, heard_from=f"d{n}") for row in order))
                    for n, (store, order) in enumerate(zip(stores, orders, strict=True))
                )
            )

        won = [row for each in saved for row in each.rows]
        assert sorted(row.id for row in won) == [row.id for row in read]
        assert sum(len(each.lost) for each in saved) == 60
        assert await known(stores[0], *range(1, 21)) == sorted(won, key=lambda row: row.id)


# Pages of one owner


async def test_pages_are_of_one_owner_in_the_order_of_ids(store: IronicStore) -> None:
    mine = (await save(store, *(a_row(number, "d1") for number in (5, 1, 3, 2)))).rows
    await save(store, a_row(4, "d2"), a_row(6))
    one, two, three, five = sorted(mine, key=lambda row: row.id)

    assert await store.page_of("d1", 3) == (one, two, three)
    assert await store.page_of("d1", 3, three.id) == (five,)
    assert await store.page_of("d1", 3, five.id) == ()
    assert [row.id for row in await store.page_of("", 3)] == [node_id(6)]


async def test_rows_to_report_and_to_read_are_found_until_it_is_done(store: IronicStore) -> None:
    offer = Offer(resource_class="CUSTOM_GOLD")
    unreported = structs.replace(a_row(1, "d1"), offer=offer)
    unread, doubted = a_row(2, "d1"), structs.replace(a_row(3, "d1"), doubts=("why",))
    unread = structs.replace(unread, epoch=1)
    held = structs.replace(a_row(4, "d1"), is_doubted=True)
    others = structs.replace(a_row(5, "d2"), offer=offer, doubts=("why",))
    saved = {row.id.int: row for row in (await save(store, unreported, unread, doubted, held, others)).rows}

    assert await store.page_of("d1", 10, needs="report") == (saved[1],)
    assert await store.page_of("d1", 10, needs="read") == (saved[2], saved[3], saved[4])
    assert await store.page_of("d1", 1, node_id(2), needs="read") == (saved[3],)
    assert await store.page_of("d2", 10, needs="report") == (saved[5],)

    await save(
        store,
        structs.replace(saved[1], reported=offer),
        structs.replace(saved[2], seen_epoch=1, read_epoch=1),
        structs.replace(saved[3], doubts=()),
        structs.replace(saved[4], is_doubted=False),
    )
    assert await store.page_of("d1", 10, needs="report") == ()
    assert await store.page_of("d1", 10, needs="read") == ()


async def test_rows_are_due_when_their_time_has_come_the_longest_first(store: IronicStore) -> None:
    await save(
        store,
        deployed(a_row(1, "d1"), 20),
        deployed(a_row(2, "d1"), 10),
        deployed(a_row(3, "d1"), 21),
        deployed(a_row(4, "d2"), 5),
        deployed(a_row(5, "d1")),
        a_row(6, "d1"),
    )

    assert await every_due(store, "d1", later(9)) == []
    assert await every_due(store, "d1", later(20)) == [node_id(2), node_id(1)]
    assert [row.id for row in await store.due("d1", later(60), later(3600), 1)] == [node_id(2)]
    (row,) = await known(store, 2)
    await save(store, structs.replace(row, deploy=None))
    assert await every_due(store, "d1", later(20)) == [node_id(1)]


async def test_rows_that_are_due_later_than_any_pause_lasts_are_due_too(store: IronicStore) -> None:
    await save(
        store,
        deployed(a_row(1, "d1"), 3600.1),
        deployed(a_row(2, "d1"), 3600),
        deployed(a_row(3, "d1"), 5),
        structs.replace(a_row(4, "d1"), answers_at=later(86_400)),
        a_row(5, "d1"),
        deployed(a_row(6, "d2"), 3601),
    )

    assert await every_due(store, "d1", later(9)) == [node_id(3), node_id(1), node_id(4)]
    assert await every_due(store, "d1", later(4)) == [node_id(1), node_id(4)]
    assert [row.id for row in await store.due("d1", later(9), later(3600), 2)] == [node_id(3), node_id(1)]


# Owners


async def test_a_node_moves_once_from_the_owner_and_epoch_that_were_seen(store: IronicStore) -> None:
    before = (await save(store, a_row(1, "d1", 3), a_row(2, "d1", 4), a_row(3, "d2", 3))).rows
    moves = [NodeHandover(row.id, "d1", 3, "d2") for row in before]

    moved = await store.give(moves)
    again = await store.give(moves)

    assert moved == (Owned(node_id(1), "d2", 4),)
    assert again == ()
    assert await known(store, 1, 2, 3) == [
        structs.replace(before[0], owner="d2", epoch=4, version=2),
        *before[1:],
    ]
    assert [row.id for row in await store.page_of("d2", 10, needs="read")] == [node_id(1)]


async def test_a_move_of_free_nodes_leaves_those_with_an_instance(store: IronicStore) -> None:
    on_it = structs.replace(a_row(3, "d1"), node=Node(id=node_id(3), instance_uuid=UUID(int=8)))
    await save(store, a_row(1, "d1"), deployed(a_row(2, "d1")), on_it)

    moves = [NodeHandover(node_id(n), "d1", 0, "d2", only_free=True) for n in (1, 2, 3)]
    assert await store.give(moves) == (Owned(node_id(1), "d2", 1),)
    assert await store.give([structs.replace(each, only_free=False) for each in moves]) == (
        Owned(node_id(2), "d2", 1, holds_instance=True),
        Owned(node_id(3), "d2", 1, holds_instance=True),
    )
    assert await store.give([]) == ()


async def test_owners_are_of_all_nodes_or_of_the_names_that_are_asked_for(store: IronicStore) -> None:
    await save(store, a_row(3, "d1", 2), deployed(a_row(2, "d2")), a_row(1), a_row(4, "d3"))
    one, two = Owned(node_id(1), "", 0), Owned(node_id(2), "d2", 0, holds_instance=True)
    three, four = Owned(node_id(3), "d1", 2), Owned(node_id(4), "d3", 0)

    assert await store.owners() == (one, two, three, four)
    assert await store.owners(("d1", "", "d9")) == (one, three)
    assert await store.owners(()) == ()


@EACH_STORE
async def test_of_daemons_that_take_the_same_nodes_each_node_goes_to_one(kind: str) -> None:
    async with open_ironic_stores(kind, 3) as stores:
        await save(stores[0], *(a_row(number, "dead", 1) for number in range(1, 31)))

        async def take(store: IronicStore, me: str) -> set[ProviderId]:
            taken = set[ProviderId]()
            # A row that is locked now is left for the next try.
            while left := await store.owners(("dead",)):
                taken |= {
                    each.id for each in await store.give([NodeHandover(o.id, "dead", 1, me) for o in left])
                }
            return taken

        async with asyncio.timeout(60):
            taken = await asyncio.gather(*(take(store, f"d{n}") for n, store in enumerate(stores)))

        owners = await stores[0].owners()
        assert sum(map(len, taken)) == 30
        for n, each in enumerate(taken):
            assert each == {owned.id for owned in owners if owned.owner == f"d{n}"}
        assert {owned.epoch for owned in owners} == {2}


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_a_transaction_that_stands_still_keeps_only_its_own_rows_from_moving(kind: str) -> None:
    async with open_ironic_stores(kind, 2) as (still, store):
        await save(store, a_row(1, "d1"), a_row(2, "d1"))
        moves = [NodeHandover(node_id(number), "d1", 0, "d2") for number in (1, 2)]
        async with still.transaction() as tx:
            await tx.load([node_id(1)])
            assert [each.id for each in await store.give(moves)] == [node_id(2)]
        assert [each.id for each in await store.give(moves)] == [node_id(1)]


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_a_frozen_daemon_is_thrown_out_of_its_transaction_before_its_lease_is_over(kind: str) -> None:
    """With the settings that every daemon has from its environment."""
    async with (
        migrated_database(kind, "ironic_sync") as url,
        closing(*(IronicStore(url, settings=DatabaseSettings()) for _ in range(2))) as (frozen, store),
    ):
        await save(store, a_row(1, "d1"))
        move = NodeHandover(node_id(1), "d1", 0, "d2")

        async def freeze() -> None:
            async with frozen.transaction() as tx, asyncio.timeout(IronicSettings().lease_s):
                await tx.load([node_id(1)])
                given = await until(lambda: store.give([move]), "it loses the node")
                assert [each.owner for each in given] == ["d2"]
                await tx.save([a_row(1, "d1")])

        with pytest.raises(Unavailable):
            await freeze()


async def test_orders_that_nobody_gave_and_nodes_of_a_restored_ironic_are_counted(store: IronicStore) -> None:
    unasked = [Unasked(later(at_s), InstanceId(ConsumerId(UUID(int=9))), "it has ended") for at_s in (0, 60)]
    rows = [
        structs.replace(a_row(1), unasked=tuple(unasked)),
        structs.replace(a_row(2, "d1"), unasked=(unasked[0],)),
        structs.replace(a_row(3, "d2"), older_than=NOON),
        a_row(4),
    ]
    saved = await save(store, *rows)

    assert await store.alarms(later(-1)) == Alarms(older=1, unasked=2)
    assert await store.alarms(later(1)) == Alarms(older=1, unasked=1)
    await save(store, *(structs.replace(row, unasked=(), older_than=None) for row in saved.rows))
    assert await store.alarms(later(-1)) == Alarms(older=0, unasked=0)


# Members


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_a_lease_is_renewed_while_every_session_for_rows_is_in_use(kind: str) -> None:
    async with open_ironic_store(kind) as store, AsyncExitStack() as still:
        await store.join("d1", "a", LONG_S)
        for number in range(POOL_SIZE):
            transaction = await still.enter_async_context(store.transaction())
            await transaction.load([node_id(number)])

        async with asyncio.timeout(DatabaseSettings().POOL_WAIT_S / 2):
            assert await store.renew("d1", "a", LONG_S)
            assert [each.name for each in await store.members()] == ["d1"]


async def test_a_daemon_joins_renews_and_leaves(store: IronicStore) -> None:
    await store.join("d2", "b", LONG_S)
    await store.join("d1", "a", LONG_S)

    first, second = await store.members()
    assert (first.name, first.incarnation, second.name) == ("d1", "a", "d2")
    assert 0 < first.lease_left_s <= LONG_S
    assert first.is_alive
    assert not first.is_draining
    assert await store.renew("d1", "a", 2 * LONG_S)
    assert (await store.members())[0].lease_left_s > LONG_S
    await store.leave("d1", "another")
    await store.leave("d2", "b")
    assert [each.name for each in await store.members()] == ["d1"]


async def test_a_name_with_a_live_lease_is_refused_to_another_process(store: IronicStore) -> None:
    await store.join("d1", "a", LONG_S)

    with pytest.raises(DaemonNameTaken, match=r"'d1' is taken: incarnation a has a lease for another 3[56]"):
        await store.join("d1", "b", LONG_S)
    await store.join("d1", "a", LONG_S)
    assert not await store.renew("d1", "b", LONG_S)
    assert [each.incarnation for each in await store.members()] == ["a"]


async def test_a_lease_that_is_over_is_not_renewed_and_its_name_is_free(store: IronicStore) -> None:
    await store.join("d1", "a", OVER_S)
    assert not (await store.members())[0].is_alive

    assert not await store.renew("d1", "a", LONG_S)
    await store.join("d1", "b", LONG_S)

    assert not await store.renew("d1", "a", LONG_S)
    assert await store.renew("d1", "b", LONG_S)


async def test_of_two_that_join_under_one_name_one_is_refused(store: IronicStore) -> None:
    outcomes = await asyncio.gather(
        *(store.join("d1", incarnation, LONG_S) for incarnation in "abc"), return_exceptions=True
    )

    assert [type(each) for each in outcomes if each is not None] == [DaemonNameTaken] * 2
    assert len(await store.members()) == 1


async def test_a_daemon_drains_until_it_is_told_otherwise_or_joins_again(store: IronicStore) -> None:
    await store.join("d1", "a", LONG_S)

    assert await store.set_draining("d1", draining=True)
    assert (await store.members())[0].is_draining
    assert await store.renew("d1", "a", LONG_S)
    assert (await store.members())[0].is_draining
    await store.set_draining("d1", draining=False)
    assert not (await store.members())[0].is_draining
    await store.set_draining("d1", draining=True)
    await store.join("d1", "a", LONG_S)
    assert not (await store.members())[0].is_draining
    assert not await store.set_draining("d9", draining=True)


@pytest.mark.parametrize("name", ["", "two words", "-d1", "d" * 64, 'd"1'])
async def test_a_name_that_cannot_be_is_refused(store: IronicStore, name: str) -> None:
    with pytest.raises(ValueError, match="the daemon's name is"):
        await store.join(name, "a", LONG_S)


async def test_a_look_shows_members_owners_and_what_the_daemon_must_read(store: IronicStore) -> None:
    await store.join("d1", "a", LONG_S)
    await store.join("d2", "b", OVER_S)
    await save(store, a_row(1, "d1"), a_row(2, "d2"), a_row(3, "d2"), a_row(4), a_row(5, "d1"))
    await store.give([NodeHandover(node_id(1), "d1", 0, "d1"), NodeHandover(node_id(2), "d2", 0, "d3")])

    view = await store.look("d1", 10)

    assert [(each.name, each.is_alive) for each in view.members] == [("d1", True), ("d2", False)]
    assert view.owner_names == ("", "d1", "d2", "d3")
    assert view.unread == (Owned(node_id(1), "d1", 1),)


async def test_a_look_shows_a_page_of_what_the_daemon_must_read(store: IronicStore) -> None:
    await save(store, *(structs.replace(a_row(n, "d1"), epoch=n) for n in (1, 2, 3)))
    one, two, three = (Owned(node_id(n), "d1", n) for n in (1, 2, 3))

    assert (await store.look("d1", 2)).unread == (one, two)
    assert (await store.look("d1", 2, two.id)).unread == (three,)


async def test_a_look_at_nothing(store: IronicStore) -> None:
    view = await store.look("d1", 10)

    assert (view.members, view.owner_names, view.unread) == ((), (), ())
    assert await store.owners() == ()


async def test_rows_are_forgotten_but_not_those_that_were_written_since(store: IronicStore) -> None:
    await save(store, *(a_row(number) for number in (1, 2, 3)))
    read = await known(store, 1, 2)
    await save(store, read[1])

    assert await once(store.transaction, lambda tx: tx.forget(read)) == 1

    assert [row.id for row in await known(store, 1, 2, 3)] == [node_id(2), node_id(3)]
    # With the same id it is a new row.
    assert (await save(store, a_row(1))).rows[0].version == 1


async def test_an_epoch_is_raised_above_another_one(store: IronicStore) -> None:
    await save(store, a_row(1, "d1", 3), a_row(2, "d1", 3))

    moved = await store.give(
        [NodeHandover(node_id(1), "d1", 3, "d1", above=40), NodeHandover(node_id(2), "d1", 3, "d1", above=1)]
    )

    assert {each.id: each.epoch for each in moved} == {node_id(1): 41, node_id(2): 4}
    assert {each.id: each.epoch for each in await store.owners()} == {node_id(1): 41, node_id(2): 4}
