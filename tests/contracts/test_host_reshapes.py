"""Contract of all stores: a host gets a new shape together with what consumers hold of it."""

from collections.abc import AsyncIterator

import pytest
from msgspec import structs

from bus.messages.books import ConsumerMoved, CreateProvider
from bus.messages.hosts import AskHostShape, HostHolder, HostShapeFound, ReshapeHost, ReshapeVerdict
from bus.messages.placement import InventoryInUse, ReportAccepted
from bus.workers.handlers import Answer, ReadOnly, Received
from engine.inventories import ConsumerId, ProviderId, ReportedProvider, ResourceAmount
from engine.refusals import Claimed, DoesNotFit, NotAllowed, ShapeMoved
from placement_worker.admin_writes import WriteBatcher
from placement_worker.core.ledger import Sent
from placement_worker.handlers import host_shape_handlers, reshape
from tests.contracts.placement_orders import (
    DB,
    HOST,
    MIGRATION,
    NOON,
    OTHER_HOST,
    VOCABULARY,
    WEB,
    a_claim,
    a_host,
    a_provider,
    a_release,
    a_report,
    a_share,
    amounts,
    inventories,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import STORES, open_store
from tests.narrowing import must_be
from tests.running import once

LEFT, RIGHT, CARD, POOL = (provider(name) for name in ("numa-0", "numa-1", "card", "pool"))
FLAT = (a_provider("host-1", holds=inventories(VCPU=8, MEMORY_MB=800, DISK_GB=90, CUSTOM_NIC=2), traits=()),)
NESTED = (
    a_provider("host-1", holds=inventories(DISK_GB=90), traits=()),
    a_provider("numa-0", HOST, inventories(VCPU=4, MEMORY_MB=400), ()),
    a_provider("numa-1", HOST, inventories(VCPU=4, MEMORY_MB=400), ()),
    a_provider("card", LEFT, inventories(CUSTOM_NIC=2), ()),
)


class ReshapingClient(StoreClient):
    async def shape(self, root: ProviderId = HOST, cell: str = "c1", by: str | None = "c1") -> HostShapeFound:
        handler = must_be(ReadOnly, host_shape_handlers(self.store, VOCABULARY, lambda: NOON)[AskHostShape])
        ask = Received(
            message=AskHostShape(cell=cell, root=root),
            id="1",
            trace="",
            sender="",
            reply_to="me",
            attempts=0,
            cell=by,
        )
        (said,) = await handler.handle([ask])
        return must_be(HostShapeFound, must_be(Answer, said).message)

    async def reshape(
        self,
        providers: tuple[ReportedProvider, ...],
        moved: dict[ConsumerId, tuple[ResourceAmount, ...]],
        *,
        seen: HostShapeFound | None = None,
        cell: str = "c1",
        by: str | None = "c1",
    ) -> ReshapeVerdict:
        seen = seen or await self.shape()
        generations = {each.consumer: each.generation for each in seen.holders}
        order = ReshapeHost(
            cell=cell,
            root=HOST,
            shape=seen.providers[0].shape,
            providers=providers,
            sequence=5,
            moved=tuple(
                HostHolder(consumer=who, generation=generations.get(who, 1), amounts=gets)
                for who, gets in moved.items()
            ),
        )
        return await once(self.store.transaction, lambda tx: reshape(tx, Sent(order, by), VOCABULARY, NOON))

    async def everything(self) -> tuple[object, ...]:
        rows = [await self.row(who) for who in (WEB, DB, MIGRATION)]
        return await self.providers(), rows, [await self.held(who) for who in (WEB, DB, MIGRATION)]


@pytest.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[ReshapingClient]:
    """A flat host with two consumers, and a pool of which one holds something."""
    async with open_store(request.param) as store:
        client = ReshapingClient(store)
        await client.report(
            structs.replace(a_report(*FLAT), sequence=1),
            a_host("host-2"),
            a_report(a_provider("pool", holds=inventories(DISK_GB=500)), root=POOL, cell=""),
        )
        of_web = (*amounts(HOST, VCPU=3, MEMORY_MB=300, CUSTOM_NIC=1), *amounts(POOL, DISK_GB=50))
        of_db = amounts(HOST, VCPU=2, MEMORY_MB=200, DISK_GB=10)
        verdicts = await client.ask(
            a_claim(a_share(HOST, of_web)), a_claim(a_share(HOST, of_db), DB, attempt=4)
        )
        assert verdicts == (Claimed(), Claimed())
        yield client
        assert await store.audit() == ()


WEB_IN_LEFT = (*amounts(LEFT, VCPU=3, MEMORY_MB=300), *amounts(CARD, CUSTOM_NIC=1))
DB_IN_RIGHT = (*amounts(RIGHT, VCPU=2, MEMORY_MB=200), *amounts(HOST, DISK_GB=10))


async def test_the_tree_and_its_holders_are_told_to_its_cell_alone(client: ReshapingClient) -> None:
    seen = await client.shape()

    assert [each.id for each in seen.providers] == [HOST]
    # Without what it holds of the pool.
    assert {each.consumer: (each.generation, frozenset(each.amounts)) for each in seen.holders} == {
        WEB: (1, frozenset(amounts(HOST, VCPU=3, MEMORY_MB=300, CUSTOM_NIC=1))),
        DB: (4, frozenset(amounts(HOST, VCPU=2, MEMORY_MB=200, DISK_GB=10))),
    }
    assert seen.next is None
    assert await client.shape(cell="c2", by="c2") == HostShapeFound(root=HOST)
    assert await client.shape(by="c2") == HostShapeFound(root=HOST)
    assert await client.shape(provider("nowhere")) == HostShapeFound(root=provider("nowhere"))


async def test_inventories_and_what_is_held_move_together_and_back(client: ReshapingClient) -> None:
    assert isinstance(await client.reshape(NESTED, {WEB: WEB_IN_LEFT, DB: DB_IN_RIGHT}), ReportAccepted)

    states = await client.providers()
    assert {each.id for each in states.values()} == {HOST, LEFT, RIGHT, CARD, OTHER_HOST, POOL}
    assert states[CARD].parent == LEFT
    assert await client.used(HOST) == {"DISK_GB": 10}
    assert await client.used(LEFT) == {"VCPU": 3, "MEMORY_MB": 300}
    assert await client.used(RIGHT) == {"VCPU": 2, "MEMORY_MB": 200}
    assert await client.used(POOL) == {"DISK_GB": 50}
    assert await client.held(WEB) == frozenset((*WEB_IN_LEFT, *amounts(POOL, DISK_GB=50)))
    web, db = await client.row(WEB), await client.row(DB)
    assert (web.attempt, web.generation, web.host, web.cell, web.project) == (1, 2, HOST, "c1", "shop")
    assert (db.attempt, db.generation, db.host) == (4, 5, HOST)
    assert states[HOST].consumers == 2
    # A boot that saw the old shape tries again.
    stale = a_claim(a_share(HOST, amounts(HOST, VCPU=1)), MIGRATION)
    assert isinstance(await client.ask_one(stale), ShapeMoved)


async def test_a_refusal_changes_nothing_and_says_why(client: ReshapingClient) -> None:
    before = await client.everything()
    both = {WEB: WEB_IN_LEFT, DB: DB_IN_RIGHT}

    async def refused(
        moved: dict[ConsumerId, tuple[ResourceAmount, ...]],
        providers: tuple[ReportedProvider, ...] = NESTED,
        *,
        cell: str = "c1",
        by: str | None = "c1",
    ) -> ReshapeVerdict:
        verdict = await client.reshape(providers, moved, seen=seen, cell=cell, by=by)
        assert await client.everything() == before
        return verdict

    seen = await client.shape()
    forgotten = must_be(InventoryInUse, await refused({WEB: WEB_IN_LEFT}))
    assert (forgotten.provider, forgotten.used) in ((HOST, 2), (HOST, 200))
    together = must_be(
        DoesNotFit,
        await refused({**both, DB: (*amounts(LEFT, VCPU=2, MEMORY_MB=200), *amounts(HOST, DISK_GB=10))}),
    )
    assert [(one.provider, one.resource) for one in together.shortfalls] == [
        (LEFT, "VCPU"),
        (LEFT, "MEMORY_MB"),
    ]
    less = must_be(NotAllowed, await refused({**both, WEB: amounts(LEFT, VCPU=3, MEMORY_MB=300)}))
    assert "would hold MEMORY_MB 300, VCPU 3" in less.reason
    strayed = must_be(
        NotAllowed, await refused({**both, WEB: (*WEB_IN_LEFT[:2], *amounts(OTHER_HOST, CUSTOM_NIC=1))})
    )
    assert (strayed.field, str(OTHER_HOST) in strayed.reason) == ("moved[0].amounts", True)
    assert await refused({**both, MIGRATION: amounts(LEFT, VCPU=1)}) == ConsumerMoved(MIGRATION, 1, None)
    nonsense = (*NESTED[:3], a_provider("card", provider("nowhere"), {}, ()))
    assert isinstance(await refused(both, nonsense), NotAllowed)
    assert isinstance(await refused(both, cell="c2", by="c2"), NotAllowed)
    assert isinstance(await refused(both, by="c2"), NotAllowed)


async def test_what_changed_since_the_sender_looked_is_told(client: ReshapingClient) -> None:
    both = {WEB: WEB_IN_LEFT, DB: DB_IN_RIGHT}
    seen = await client.shape()

    await client.ask(a_claim(a_share(HOST, amounts(HOST, VCPU=1)), MIGRATION))
    assert isinstance(await client.reshape(NESTED, both, seen=seen), InventoryInUse)
    await client.ask(a_release(MIGRATION))
    await client.ask(a_release(DB, attempt=4))
    assert await client.reshape(NESTED, both, seen=seen) == ConsumerMoved(DB, 4, None)
    await client.report(
        structs.replace(a_report(a_provider("host-1", traits=("HW_CPU_X86_VMX",))), sequence=2)
    )
    assert await client.reshape(NESTED, {WEB: WEB_IN_LEFT}, seen=seen) == ShapeMoved(roots=(HOST,))
    assert isinstance(await client.reshape(NESTED, {WEB: WEB_IN_LEFT}), ReportAccepted)


async def test_a_whole_report_leaves_alone_what_was_made_by_name(client: ReshapingClient) -> None:
    await client.ask(a_release(WEB), a_release(DB, attempt=4))
    await client.report(structs.replace(a_report(*NESTED), sequence=2))
    writer = WriteBatcher(client.store, VOCABULARY, lambda: NOON)
    by_hand = provider("by hand")
    await writer.ask(CreateProvider(id=by_hand, name="by hand", parent=RIGHT))

    await client.report(structs.replace(a_report(*FLAT), sequence=3, whole=True))

    assert {*await client.providers()} == {HOST, RIGHT, by_hand, OTHER_HOST, POOL}
