"""Storage pools and networks of libvirt that hosts share, as providers."""

from uuid import UUID

import pytest
from msgspec import structs

from compute_sim.core.hosts import tree_of_pool
from compute_sim.libvirt.core.layout import (
    SharedPool,
    SharingOffer,
    claimed_of,
    read_sharing,
    shared_network,
    shared_storage,
    shared_with,
)
from compute_sim.libvirt.core.machine import BadXmlError
from compute_sim.libvirt.core.trees import tree_of
from compute_sim.libvirt.settings import LibvirtSettings
from engine.inventories import ProviderId, ResourceAmount, Share
from tests.unit.compute.libvirt_machines import ROOT, a_layout, named

STORAGE = """<pool type='netfs'><name>images</name><capacity unit='bytes'>2199023255552</capacity>
    <target><path>/srv/images</path></target></pool>"""


def test_a_pool_takes_over_the_disk_of_its_hosts() -> None:
    shared = shared_storage(STORAGE, SharingOffer("images"), "cell1")
    layout = structs.replace(a_layout(), shared=(shared,))
    root = named(tree_of(layout))[""]

    assert shared.pool is not None
    assert (shared.pool.name, shared.pool.resource, shared.pool.total) == ("cell1-images", "DISK_GB", 2_048)
    assert root.inventories == {}
    assert root.joins == tree_of_pool(shared.pool).providers[tree_of_pool(shared.pool).root].joins


def test_a_pool_of_several_cells_is_reported_by_none_and_only_joined() -> None:
    aggregate = "00000000-0000-0000-0000-0000000000a9"
    (offer,) = read_sharing([f"images={aggregate}@h*"], "storage_pools")
    shared = shared_storage(STORAGE, offer, "cell1")
    root = named(tree_of(structs.replace(a_layout(), shared=(shared,))))[""]

    assert (shared.pool, str(shared.aggregate), shared.path) == (None, aggregate, "/srv/images")
    assert (root.inventories, {str(each) for each in root.joins}) == ({}, {aggregate})
    assert (shared_with([offer], "h1"), shared_with([offer], "k1")) == ([offer], [])


def test_a_share_names_the_pool_that_gives_its_disk() -> None:
    first, second = (
        shared_storage(STORAGE.replace("images", name), SharingOffer(name), "cell1") for name in ("a", "b")
    )
    outside = structs.replace(first, name="c", pool=None)
    assert second.provider is not None

    def claimed(provider: ProviderId) -> list[SharedPool]:
        amount = ResourceAmount(provider=provider, resource="DISK_GB", amount=1)
        return claimed_of((first, second, outside), Share(host=ROOT, amounts=(amount,)), "DISK_GB")

    assert claimed(second.provider) == [second]
    assert claimed(ROOT) == []
    # A provider that the compute does not report is that of the aggregate.
    assert claimed(ProviderId(UUID(int=5))) == [outside]


def test_a_network_shares_its_addresses() -> None:
    text = """<network><name>default</name><ip address='192.168.122.1' netmask='255.255.255.0'>
        <dhcp><range start='192.168.122.2' end='192.168.122.254'/></dhcp></ip>
        <ip family='ipv6' address='fd00::1' prefix='64'><dhcp><range start='fd00::2' end='fd00::9'/></dhcp></ip></network>"""

    pool = shared_network(text, SharingOffer("default", hosts="h*"), "cell1").pool

    assert pool is not None
    assert (pool.name, pool.resource, pool.total, pool.hosts) == ("cell1-default", "IPV4_ADDRESS", 253, "h*")
    with pytest.raises(BadXmlError, match="'bare' has no range"):
        shared_network("<network><name>bare</name></network>", SharingOffer("bare"), "cell1")
    with pytest.raises(BadXmlError, match="'rbd' has the type 'rbd', must be dir, fs, netfs"):
        shared_storage("<pool type='rbd'><name>rbd</name></pool>", SharingOffer("rbd"), "cell1")
    with pytest.raises(BadXmlError, match="'off' has less than 1 GiB"):
        shared_storage(
            "<pool type='dir'><name>off</name><capacity>0</capacity></pool>", SharingOffer("off"), "cell1"
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nfs=a", "storage_pools has 'nfs=a', must be NAME, as libvirt calls it"),
        (f"nfs={'-' * 36}", "storage_pools has 'nfs=---"),
        ("a b", "storage_pools has 'a b'"),
    ],
)
def test_wrong_settings_are_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LibvirtSettings(folder="/nowhere", storage_pools=(text,))
    with pytest.raises(ValueError, match="shared_networks has the name 'a' twice"):
        LibvirtSettings(folder="/nowhere", shared_networks=("a@h1", "a@h2"))
