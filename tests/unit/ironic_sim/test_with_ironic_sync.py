"""Moorage's own reader and client work with the simulated Ironic as with a real one."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio

from engine.inventories import ProviderId
from ironic_sync.core.notifications import NodeDoubted, NodeNotified, read
from ironic_sync.rest import HttpIronicApi, IronicRefused, PatchOperation
from kit.errors import CredentialsRefused, Locked, Unavailable
from kit.keystone import OpenStackSettings
from kit.rest import RestLimits
from laboratory.ironic import IronicScript, IronicTransport, available_nodes
from laboratory.ironic.script import NodeLocked
from tests.ironic_clients.passwords import PasswordTransport
from tests.unit.ironic_sim.worlds import World

# ruff: noqa: S106 - this password is for a server inside the tests

INSTANCE = UUID("11111111-2222-3333-4444-555555555555")
LIMITS = RestLimits(tries_max=2, retry_delay_s_first=0.001)


def client_of(world: World, page: int = 3) -> HttpIronicApi:
    return HttpIronicApi(
        "http://ironic", has_shards=True, page=page, limits=LIMITS, transport=IronicTransport(world.ironic)
    )


@pytest.fixture
def world() -> World:
    return World(available_nodes(7, shard="s1", traits=("CUSTOM_A",)))


@pytest_asyncio.fixture
async def client(world: World) -> AsyncIterator[HttpIronicApi]:
    client = client_of(world)
    yield client
    await client.close()


def id_of(world: World, name: str = "node-00000") -> ProviderId:
    return ProviderId(UUID(world.node(name).uuid))


def test_each_notification_of_a_deploy_is_read(world: World) -> None:
    operation = {"op": "add", "path": "/instance_uuid", "value": str(INSTANCE)}
    world.do(world.ironic.patch("node-00000", [operation]))
    for target in ("active", "deleted"):
        world.do(world.ironic.provision("node-00000", target))
    words = [read(said.body.encode()) for said in world.said]
    taken = [
        (each.node.provision_state, each.node.instance_uuid)
        for each in words
        if isinstance(each, NodeNotified)
    ]

    assert taken == [
        ("available", INSTANCE),
        ("deploying", INSTANCE),
        ("active", INSTANCE),
        ("deleting", INSTANCE),
        ("cleaning", None),
        ("available", None),
    ]
    assert len(words) == 7


def test_a_change_that_failed_is_read_as_a_doubt(world: World) -> None:
    world.ironic.script = IronicScript(faults=(NodeLocked(),))
    assert world.refused(lambda: world.ironic.set_maintenance("node-00000", is_on=True)) == 409

    assert isinstance(read(world.said[-1].body.encode()), NodeDoubted)


@pytest.mark.asyncio
async def test_all_nodes_are_read_by_pages(world: World, client: HttpIronicApi) -> None:
    pages = [page async for page in client.pages()]
    nodes = [node for page in pages for node in page.nodes]

    assert [len(page.nodes) for page in pages] == [3, 3, 1]
    assert [str(node.id) for node in nodes] == [*world.ironic.nodes]
    assert {(node.shard, node.traits, node.provision_state) for node in nodes} == {
        ("s1", ("CUSTOM_A",), "available")
    }


@pytest.mark.asyncio
async def test_a_node_is_deployed_and_torn_down(world: World, client: HttpIronicApi) -> None:
    node = id_of(world)
    assert await client.patch(node, [PatchOperation("add", "/instance_uuid", str(INSTANCE))]) is None
    assert await client.attach_vif(node, "vif-1") is None
    checks = await client.validate(node)
    assert not isinstance(checks, IronicRefused)
    assert {check.result for check in checks.values()} == {True}
    assert await client.set_provision_state(node, "active", configdrive={"meta_data": {}}) is None
    world.settle()
    deployed = await client.node(node)
    vifs = await client.vifs(node)
    assert await client.set_provision_state(node, "deleted") is None
    world.settle()
    torn_down = await client.node(node)

    assert deployed is not None
    assert torn_down is not None
    assert (deployed.provision_state, deployed.instance_uuid, vifs) == ("active", INSTANCE, ("vif-1",))
    assert (torn_down.provision_state, torn_down.instance_uuid) == ("available", None)


@pytest.mark.asyncio
async def test_an_instance_is_refused_where_there_is_one_and_a_lock_is_told_from_that(
    world: World, client: HttpIronicApi
) -> None:
    node = id_of(world)
    await client.patch(node, [PatchOperation("add", "/instance_uuid", str(INSTANCE))])
    other = [PatchOperation("add", "/instance_uuid", str(UUID(int=1)))]
    refused = await client.patch(node, other)
    world.ironic.script = IronicScript(faults=(NodeLocked(),))

    assert isinstance(refused, IronicRefused)
    assert refused.status == 409
    assert str(INSTANCE) in refused.message
    with pytest.raises(Locked, match="ironic-sim-1"):
        await client.patch(node, other)


@pytest.mark.asyncio
async def test_an_ironic_that_is_away_is_unavailable_in_both_ways(
    world: World, client: HttpIronicApi
) -> None:
    for refuses in (False, True):
        world.ironic.go_away(60, refuses=refuses)
        with pytest.raises(Unavailable):
            await client.node(id_of(world))
    world.ironic.come_back()

    assert await client.node(id_of(world)) is not None


@pytest.mark.asyncio
async def test_users_are_asked_for_their_password() -> None:
    world = World(available_nodes(1))
    transport = PasswordTransport(world.ironic, "moor", "secret")
    known, stranger = (
        HttpIronicApi("http://ironic", account, limits=LIMITS, transport=transport)
        for account in (OpenStackSettings(user="moor", password="secret"), OpenStackSettings())
    )

    assert await known.node(id_of(world)) is not None
    with pytest.raises(CredentialsRefused):
        await stranger.node(id_of(world))
    await known.close()
    await stranger.close()
