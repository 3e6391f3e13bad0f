"""Simulated hosts, their pools and their settings."""

import msgspec
import pytest
from msgspec import structs

from bus.messages.hosts import in_messages
from compute_sim.core.hosts import aggregate_of, pools_of, read_pools
from compute_sim.core.trees import ProviderTree
from compute_sim.settings import COMPUTE, ComputeSettings
from engine.hosts import HostFacts
from engine.inventories import ReportedInventory
from laboratory.computes.driver import SimulatedDriver, SimulatedPool
from laboratory.computes.hosts import HostSize, SimulatedHost
from tests.unit.compute.compute_trees import HOST
from tests.unit.compute.test_compute_driver_kit import ADDRESSES, STORAGE_POOL


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


@pytest.mark.parametrize("texts", [("physnet0",), ("=5",), ("a=0",), ("a=9999999999",), ("a-b=1", "a_b=2")])
def test_a_wrong_network_is_refused_with_its_text(texts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="networks has"):
        ComputeSettings(networks=texts)


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
