"""What `moor node` shows of nodes: from Ironic, from the daemons' rows, or from both."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
import pytest
from msgspec import structs

from bus.messages.build import InstanceState
from engine.flavors import InstanceId, RequestId
from engine.inventories import ProviderId
from ironic_sync.core.node import Node
from ironic_sync.core.rows import NodeDeploy, NodeRow, Offer
from ironic_sync.rest import HttpIronicApi
from ironic_sync.store import IronicStore
from kit.errors import Unavailable
from laboratory.ironic import IronicTransport, SimulatedIronic, available_nodes
from moor.bare_metal.nodes import NodeReader, SeveralNodesError
from tests.stores_in_memory import MemoryIronicStore

pytestmark = pytest.mark.asyncio

INSTANCE = InstanceId(UUID(int=500))
FREE = Offer(resource_class="CUSTOM_BAREMETAL", reserved=False)


class NodesSetup:
    """Three nodes of a simulated Ironic; a daemon has rows of the first two, and of one that Ironic has no more."""

    def __init__(self, rows: IronicStore) -> None:
        self.ironic = SimulatedIronic(available_nodes(3), lambda: 1_800_000_000.0, lambda *_: None)
        self.rows = rows
        self.ids = [ProviderId(UUID(uuid)) for uuid in self.ironic.nodes]
        self.gone = ProviderId(UUID(int=9))

    async def fill(self) -> None:
        known = [
            NodeRow(
                id=id_,
                cell="c1",
                owner="d1",
                epoch=2,
                node=Node(
                    id=id_,
                    name=f"node-0000{number}",
                    provision_state="available",
                    power_state="power off",
                    resource_class="baremetal",
                ),
                offer=FREE,
                reported=FREE,
            )
            for number, id_ in enumerate((*self.ids[:2], self.gone))
        ]
        deploy = NodeDeploy(
            kind="deploy", cell="c1", instance=INSTANCE, attempt=2, progress="Ironic deploys", tries=1
        )
        known[1] = structs.replace(known[1], deploy=deploy)
        known[2] = structs.replace(
            known[2], is_deleted=True, offer=Offer(reasons=("the node is deleted in Ironic",))
        )
        async with self.rows.transaction() as tx:
            await tx.save(known)

    @asynccontextmanager
    async def reader(
        self,
        *,
        asks_ironic: bool = True,
        has_rows: bool = True,
        transport: Any = None,
        instances: Sequence[InstanceState] = (),
    ) -> AsyncIterator[NodeReader]:
        """`instances` are those that the bus knows."""
        api = HttpIronicApi("http://ironic", transport=transport or IronicTransport(self.ironic))

        async def named(names: Sequence[str]) -> dict[str, InstanceState]:
            return {each.name: each for each in instances if each.name in names}

        try:
            yield NodeReader(api if asks_ironic else None, self.rows if has_rows else None, named)
        finally:
            await api.close()


async def a_nodes_setup() -> NodesSetup:
    setup = NodesSetup(MemoryIronicStore())
    await setup.fill()
    return setup


async def test_ironic_and_the_rows_are_put_side_by_side() -> None:
    setup = await a_nodes_setup()
    setup.ironic.set_maintenance("node-00000", is_on=True)
    async with setup.reader() as reader:
        found = await reader.all()

    assert found.unreadable == ()
    assert [each.name for each in found.nodes] == ["node-00000", "node-00001", "node-00002", "node-00002"]
    first, second, unknown, gone = sorted(found.nodes, key=lambda each: (each.ironic is None, each.name))
    assert first.ironic is not None
    assert first.ironic.maintenance
    assert (first.daemon, first.cell, first.offered.amount) == ("d1", "c1", 1)
    assert "Ironic has changed the node, and the daemons have not heard of it yet" in first.offered.reasons
    assert second.deploy is not None
    assert (second.deploy.instance, second.deploy.attempt, second.deploy.words) == (
        INSTANCE,
        2,
        "Ironic deploys",
    )
    assert unknown.offered.reasons == ("no daemon knows the node yet",)
    assert gone.id == setup.gone
    assert gone.offered.reasons[0] == "the node is deleted in Ironic"


async def test_without_ironic_a_node_is_shown_as_last_known() -> None:
    setup = await a_nodes_setup()
    async with setup.reader(asks_ironic=False) as reader:
        found = (await reader.all()).nodes
        named = await reader.find(["node-00001", str(setup.ids[0]), "nope", str(UUID(int=1))])

    assert {each.name: each.ironic is not None for each in found} == {
        "node-00000": True,
        "node-00001": True,
        "node-00002": False,
    }
    assert [each and each.name for each in named.values()] == ["node-00001", "node-00000", None, None]


async def test_while_ironic_is_away_nodes_are_shown_as_last_known_with_the_reason() -> None:
    setup = await a_nodes_setup()
    setup.ironic.go_away(60, refuses=True)
    async with setup.reader() as reader:
        everything = await reader.all()
        named = await reader.find([str(setup.ids[0]), "node-00001"])
        assert "cannot be reached" in reader.away
        with pytest.raises(Unavailable):
            await reader.find([str(setup.ids[2])])
    async with setup.reader(has_rows=False) as alone:
        with pytest.raises(Unavailable):
            await alone.all()

    assert "cannot be reached" in everything.away
    assert [each.name for each in everything.nodes] == ["node-00000", "node-00001", "node-00002"]
    assert [each and each.offered.amount for each in named.values()] == [1, 1]


async def test_without_the_rows_nothing_is_known_to_be_offered() -> None:
    setup = await a_nodes_setup()
    async with setup.reader(has_rows=False) as reader:
        found = (await reader.all()).nodes
        named = await reader.find(["node-00002", str(setup.ids[2])])

    assert len(found) == 3
    assert {each.offered.reasons for each in found} == {("the daemons' database is not named",)}
    assert [each and each.id for each in named.values()] == [setup.ids[2], setup.ids[2]]


async def test_an_unreadable_node_is_reported_and_the_others_are_shown() -> None:
    setup = await a_nodes_setup()
    listed = {"nodes": [{"uuid": str(setup.ids[0])}, {"uuid": str(setup.ids[1]), "provision_state": 5}]}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=listed))
    async with setup.reader(transport=transport) as reader:
        found = await reader.all()

    assert {each.id for each in found.unreadable} == {setup.ids[0], setup.ids[1]}
    assert [each.ironic for each in found.nodes] == [None] * len(found.nodes)


@pytest.mark.parametrize("asks_ironic", [True, False], ids=["asked", "not asked"])
async def test_of_several_nodes_of_one_name_the_one_that_lives_is_meant(*, asks_ironic: bool) -> None:
    setup = await a_nodes_setup()
    graves = [ProviderId(UUID(int=number)) for number in range(1, 40)]
    async with setup.rows.transaction() as tx:
        await tx.save(
            [
                NodeRow(id=id_, cell="c1", node=Node(id=id_, name="node-00001"), is_deleted=True)
                for id_ in graves
            ]
        )
    async with setup.reader(asks_ironic=asks_ironic) as reader:
        found = await reader.find(["node-00001", str(graves[0])])

    assert [each and each.id for each in found.values()] == [setup.ids[1], graves[0]]
    assert found["node-00001"] is not None
    assert found["node-00001"].ironic is not None


async def test_a_name_of_two_nodes_that_live_or_of_two_that_are_gone_is_refused_with_their_ids() -> None:
    setup = await a_nodes_setup()
    twins, graves = [[ProviderId(UUID(int=10 * kind + each)) for each in (1, 2)] for kind in (1, 2)]
    async with setup.rows.transaction() as tx:
        for ids, name, is_deleted in ((twins, "twin", False), (graves, "grave", True)):
            await tx.save(
                [NodeRow(id=id_, node=Node(id=id_, name=name), is_deleted=is_deleted) for id_ in ids]
            )
    async with setup.reader(asks_ironic=False) as reader:
        for name, ids in (("twin", twins), ("grave", graves)):
            with pytest.raises(
                SeveralNodesError,
                match=f"'{name}' may be any of 2 nodes: {ids[0]} {name}, {ids[1]} {name}; give",
            ):
                await reader.find(["node-00000", name])


@pytest.mark.parametrize("asks_ironic", [True, False])
async def test_a_node_is_found_by_the_name_of_its_instance_only_while_it_has_that(
    *, asks_ironic: bool
) -> None:
    setup = await a_nodes_setup()
    node = setup.ids[0]
    setup.ironic.patch(str(node), [{"op": "add", "path": "/instance_uuid", "value": str(INSTANCE)}])
    async with setup.rows.transaction() as tx:
        (row,) = (await tx.load((node,))).values()
        assert row.node is not None
        known = structs.replace(row.node, instance_uuid=INSTANCE)
        await tx.save([structs.replace(row, node=known)])
    there = an_instance(INSTANCE, "db", host=str(node))
    # It was deleted, or its node is another's by now; and one on a hypervisor.
    left = an_instance(InstanceId(UUID(int=501)), "old", host=str(node))
    guest = an_instance(InstanceId(UUID(int=502)), "guest", host="h-1")
    async with setup.reader(asks_ironic=asks_ironic, instances=(there, left, guest)) as reader:
        found = await reader.find(["db", "old", "guest", "nothing"])

    assert {name: each and each.id for name, each in found.items()} == {
        "db": node,
        "old": None,
        "guest": None,
        "nothing": None,
    }


def an_instance(id_: InstanceId, name: str, *, host: str) -> InstanceState:
    return InstanceState(
        id=id_, request_id=RequestId(UUID(int=5)), sequence=4, state="active", cell="c1", host=host, name=name
    )
