"""The client of Ironic's REST API and the simulated Ironic understand each other."""

import itertools
from uuid import UUID

import pytest

from engine.inventories import ProviderId
from ironic_sync.rest import HttpIronicApi, IronicRefused, PatchOperation
from kit.errors import CredentialsRefused, Locked, Unavailable
from kit.rest import RestLimits
from laboratory.ironic.api import IronicTransport
from laboratory.ironic.node import SimulatedNode as Simulated
from laboratory.ironic.script import IronicScript, NodeLocked
from laboratory.ironic.simulated import SimulatedIronic
from tests.ironic_clients.passwords import PasswordTransport

pytestmark = pytest.mark.asyncio

QUICK = RestLimits(retry_delay_s_first=0.001, retry_delay_s_max=0.002)
NODE = ProviderId(UUID(int=1))
INSTANCE, VIF = str(UUID(int=500)), str(UUID(int=600))


def ironic_with(count: int) -> SimulatedIronic:
    nodes = [
        Simulated(
            uuid=str(UUID(int=number)),
            name=f"node-{number}",
            resource_class="baremetal",
            provision_state="available",
            power_state="power off",
            shard=f"s{number % 2}",
            network_interface="flat",
        )
        for number in range(1, count + 1)
    ]
    seconds = itertools.count(0.0)
    # Each look at the clock takes a second.
    return SimulatedIronic(nodes, lambda: next(seconds), lambda *_: None)


def api_of(ironic: SimulatedIronic, *, has_shards: bool = False) -> HttpIronicApi:
    transport = IronicTransport(ironic)
    return HttpIronicApi(
        "http://ironic.example", has_shards=has_shards, page=10, limits=QUICK, transport=transport
    )


async def test_all_nodes_are_read_by_pages_with_their_shards() -> None:
    api = api_of(ironic_with(25), has_shards=True)

    pages = [page async for page in api.pages()]

    assert [len(page.nodes) for page in pages] == [10, 10, 5]
    assert not any(page.unreadable for page in pages)
    assert {node.id.int: node.shard for page in pages for node in page.nodes} == {
        number: f"s{number % 2}" for number in range(1, 26)
    }
    assert await api.node(pages[0].nodes[0].id) == pages[0].nodes[0]


async def test_a_node_is_claimed_by_one_deployed_and_undeployed() -> None:
    api = api_of(ironic_with(1))
    claim = [
        PatchOperation("add", "/instance_uuid", INSTANCE),
        PatchOperation("add", "/instance_info/image_source", "image"),
    ]

    assert await api.patch(NODE, claim) is None
    other = await api.patch(NODE, [PatchOperation("add", "/instance_uuid", str(UUID(int=501)))])
    assert isinstance(other, IronicRefused)
    assert (other.status, INSTANCE in other.message) == (409, True)
    assert await api.attach_vif(NODE, VIF) is None
    assert await api.vifs(NODE) == (VIF,)
    checks = await api.validate(NODE)
    assert not isinstance(checks, IronicRefused)
    assert {"deploy", "power", "storage"} <= checks.keys()
    assert await api.set_provision_state(NODE, "active", configdrive={"meta_data": {}}) is None

    async def until(state: str) -> None:
        for _ in range(1000):
            node = await api.node(NODE)
            assert node is not None
            if node.provision_state == state:
                return
        raise AssertionError(f"never {state}")

    await until("active")
    assert isinstance(await api.set_provision_state(NODE, "active"), IronicRefused)
    assert await api.set_provision_state(NODE, "deleted") is None
    await until("available")
    node = await api.node(NODE)
    assert node is not None
    assert node.instance_uuid is None


async def test_orders_that_leave_a_node_where_it_is() -> None:
    ironic = ironic_with(1)
    api = api_of(ironic)

    assert await api.set_maintenance(NODE, "disk swap") is None
    ironic.set_traits(str(NODE), ("CUSTOM_B", "CUSTOM_A"))
    node = await api.node(NODE)
    assert node is not None
    assert (node.maintenance, node.maintenance_reason) == (True, "disk swap")
    assert node.traits == ("CUSTOM_A", "CUSTOM_B")
    assert await api.set_maintenance(NODE, is_on=False) is None
    nowhere = await api.set_power_state(ProviderId(UUID(int=9)), "power on")
    assert nowhere is not None
    assert nowhere.status == 404
    assert await api.node_of_allocation(UUID(int=9)) is None


async def test_a_node_whose_lock_is_held_is_locked() -> None:
    ironic = ironic_with(1)
    ironic.script = IronicScript(faults=(NodeLocked(),))
    with pytest.raises(Locked, match="locked by"):
        await api_of(ironic).set_provision_state(NODE, "active")
    ironic.script = IronicScript()
    assert await api_of(ironic).set_power_state(NODE, "power on") is None


async def test_an_ironic_that_is_away_is_unavailable() -> None:
    ironic = ironic_with(1)
    for refuses in (False, True):
        ironic.go_away(1_000_000.0, refuses=refuses)
        with pytest.raises(Unavailable):
            await api_of(ironic).node(NODE)
        ironic.come_back()


async def test_a_wrong_password_is_refused_and_the_right_one_is_not() -> None:
    transport = PasswordTransport(ironic_with(1), "moor", "secret")

    def api_as(user: str) -> HttpIronicApi:
        return HttpIronicApi(f"http://{user}ironic.example", limits=QUICK, transport=transport)

    assert await api_as("moor:secret@").node(NODE) is not None
    for user in ("", "moor:wrong@"):
        with pytest.raises(CredentialsRefused, match="refuses GET"):
            await api_as(user).node(NODE)
