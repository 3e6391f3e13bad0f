"""Simulated hosts, their pools and their settings."""

import msgspec
import pytest
from msgspec import structs

from bus.messages.hosts import in_messages
from compute_sim.__main__ import main
from compute_sim.core.hosts import aggregate_of, pools_of, read_networks, read_pools
from compute_sim.core.trees import ProviderTree
from compute_sim.settings import COMPUTE, ComputeSettings
from engine.flavors import Image
from engine.hosts import HostFacts
from engine.inventories import ReportedInventory
from laboratory.computes.driver import IMAGES_MAX, SimulatedDriver, SimulatedPool, root_of
from laboratory.computes.hosts import HostSize, SimulatedHost, equal_hosts, in_cells
from tests.unit.compute.compute_trees import HOST, a_spawn
from tests.unit.compute.test_compute_driver_kit import ADDRESSES, STORAGE_POOL
from tests.unit.compute.test_compute_faults import a_receive


def test_hosts_alike_have_names_of_their_cell_and_ids_that_follow_from_them() -> None:
    hosts = equal_hosts("c7", 3)

    assert [each.name for each in hosts] == ["c7-host-00001", "c7-host-00002", "c7-host-00003"]
    assert len({each.availability_zone for each in hosts}) == 3
    assert SimulatedDriver(hosts[0]).root == root_of("c7-host-00001")


def test_a_pool_is_a_sharing_provider_and_a_host_in_its_aggregate_has_nothing_of_its_class() -> None:
    host = SimulatedHost(name="h1", size=HostSize(numa_nodes=2))
    driver = SimulatedDriver(host, None, pools_of((STORAGE_POOL, ADDRESSES), "h1"))

    tree = driver.update_provider_tree(ProviderTree(driver.root), 0.0)
    storage, aggregate = SimulatedPool(STORAGE_POOL), aggregate_of(STORAGE_POOL)
    pool = storage.update_provider_tree(ProviderTree(storage.root), 0.0)

    assert [sorted(each.inventories) for each in tree.providers.values()] == [
        [],
        *[["MEMORY_MB", "VCPU"]] * 2,
    ]
    assert tree.providers[driver.root].joins == {aggregate}
    shared = pool.providers[storage.root]
    assert shared.traits == {"MISC_SHARES_VIA_AGGREGATE"}
    assert shared.joins == {aggregate}
    assert shared.inventories == {"DISK_GB": ReportedInventory(total=500)}


def test_a_host_has_a_provider_with_the_bandwidth_of_each_network() -> None:
    networks = read_networks(("physnet0=1000", "rack-7=20"))
    driver = SimulatedDriver(SimulatedHost(name="h1"), None, (), networks)

    tree = driver.update_provider_tree(ProviderTree(driver.root), 0.0)

    below = [each for each in tree.providers.values() if each.parent == driver.root]
    assert [each.name for each in below] == ["h1:physnet0", "h1:rack-7"]
    assert [{key: value.total for key, value in each.inventories.items()} for each in below] == [
        dict.fromkeys(("NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC"), total)
        for total in (1000, 20)
    ]
    assert below[1].traits == {"CUSTOM_PHYSNET_RACK_7", "CUSTOM_VNIC_TYPE_NORMAL"}


def test_hosts_of_the_shape_cells_have_the_same_in_all_and_devices_in_each() -> None:
    flat, deep = HostSize(), in_cells(HostSize())

    assert deep.vcpus + deep.pcpus == flat.vcpus
    assert deep.ram_mb + sum(mb for _, mb in deep.pages) == flat.ram_mb
    driver = SimulatedDriver(SimulatedHost(name="h1", size=deep))
    tree = driver.update_provider_tree(ProviderTree(driver.root), 0.0).providers
    cells = [each.id for each in tree.values() if "HW_NUMA_ROOT" in each.traits]
    below = [each.parent for each in tree.values() if each.parent in cells]
    assert [below.count(cell) for cell in cells] == [2, 2]


@pytest.mark.parametrize("texts", [("physnet0",), ("=5",), ("a=0",), ("a=9999999999",), ("a-b=1", "a_b=2")])
def test_a_wrong_network_is_refused_with_its_text(texts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="networks has"):
        ComputeSettings(networks=texts)


def test_a_host_caches_the_images_that_it_built_from_last() -> None:
    driver = SimulatedDriver(SimulatedHost(name="h1"))

    for image in (*map(str, range(IMAGES_MAX)), "0", "new"):
        driver.begin(structs.replace(a_spawn(), image=Image(source=image)), 0.0)
    driver.begin(a_spawn(), 0.0)
    driver.begin(a_receive(), 0.0)

    assert driver.images() == (*map(str, range(2, IMAGES_MAX)), "0", "new")


def test_pools_are_read_from_the_settings_and_named_after_their_cell() -> None:
    settings = ComputeSettings(cell="c1", pools=("nfs:DISK_GB=500", "net:IPV4_ADDRESS=250@c1-*"))

    assert read_pools(settings.pools, "c1") == (STORAGE_POOL, ADDRESSES)
    assert pools_of((STORAGE_POOL, ADDRESSES), "c1-host-00001") == (STORAGE_POOL, ADDRESSES)


@pytest.mark.parametrize(
    ("pools", "what"),
    [
        (("nfs",), "pools has 'nfs', must be NAME:CLASS=TOTAL"),
        (("nfs:disk=5",), "pools has 'nfs:disk=5', must be NAME:CLASS=TOTAL"),
        (("nfs:DISK_GB=0",), "TOTAL is 0, must be 1 to 2147483647"),
        (("nfs:DISK_GB=1", "nfs:VCPU=1"), "the name 'nfs' twice"),
    ],
)
def test_pools_that_cannot_be_are_refused_by_value(pools: tuple[str, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ComputeSettings(pools=pools)


def test_facts_are_cut_into_messages_by_their_number_and_their_size() -> None:
    short = [HostFacts(id=HOST, name=f"h{n}") for n in range(2500)]
    long = [HostFacts(id=HOST, name="\x01" * 200, availability_zone="ä" * 200) for _ in range(1000)]

    assert [len(each) for each in in_messages(short)] == [1000, 1000, 500]
    assert sum(len(each) for each in in_messages(long)) == 1000
    assert all(len(msgspec.json.encode(each)) < 256 * 1024 for each in in_messages(long))
    assert in_messages([]) == []


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"BEAT_S": "0"}, "beat_s is '0'"),
        ({"FACTS_EVERY_S": "-1.0"}, "facts_every_s is '-1.0'"),
        ({"BUILDS_AT_ONCE_MAX": "-1"}, "builds_at_once_max is '-1' .* must be a whole number, at least 0"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, str], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        COMPUTE.read({f"MOOR_COMPUTE_{name}": value for name, value in wrong.items()})


def test_the_name_of_a_cell_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="matching regex"):
        structs.replace(ComputeSettings(), cell="Not A Cell")


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({}, "MOOR_BUS_URL and MOOR_CELL must be set"),
        ({"MOOR_BUS_URL": "unix:///x"}, "MOOR_CELL must be set"),
        (
            {"MOOR_BUS_URL": "unix:///x", "MOOR_CELL": "c1", "MOOR_COMPUTE_HOSTS": "many"},
            "MOOR_COMPUTE_HOSTS is 'many', must be a whole number, 0 or more",
        ),
        (
            {"MOOR_BUS_URL": "unix:///x", "MOOR_CELL": "c1", "LABORATORY_FAULTS": "/no/such.toml"},
            "fault script /no/such.toml",
        ),
        ({"MOOR_BUS_URL": "unix:///x", "MOOR_CELL": "Not A Cell"}, "a cell's name is a-z"),
    ],
)
def test_a_process_that_was_started_wrongly_names_what_is_missing(
    environment: dict[str, str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(environment)
    assert what in capsys.readouterr().err
