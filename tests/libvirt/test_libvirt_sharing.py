"""Hosts share a storage pool of libvirt: placement counts its disk once, and guests have their disks there."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.books import CreateProvider, SetAggregates, SetInventories, SetTraits
from compute_sim.core.trees import ProviderTree
from compute_sim.libvirt.core.layout import SharingOffer, shared_storage
from compute_sim.libvirt.hypervisor import HostView
from compute_sim.libvirt.running import NotShared, shared_pools
from compute_sim.libvirt.settings import LibvirtHost, LibvirtRules
from engine.inventories import AggregateId, ProviderId, ProviderState, ReportedInventory
from tests.libvirt.libvirt_cloud import (
    TINY,
    LibvirtCloud,
    domains,
    files,
    libvirt_cloud,
    libvirt_settings,
    virsh,
)
from tests.servers.libvirtd import PrivateLibvirtd
from tests.unit.compute.libvirt_machines import a_layout
from tests.unit.compute.test_libvirt_shared_pools import STORAGE
from tests.waiting import until

WITH_DISK = structs.replace(TINY, root_gb=1, swap_mb=4)
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 32, "DISK_GB": 2}
SHARES = "MISC_SHARES_VIA_AGGREGATE"


@pytest.fixture
def storage(tmp_path: Path, libvirtds: tuple[PrivateLibvirtd, PrivateLibvirtd]) -> Iterator[Path]:
    """The folder of the pool `nfs`, which both libvirts reach."""
    folder = tmp_path / "nfs"
    folder.mkdir()
    for each in libvirtds:
        virsh(each.uri, "pool-create-as", "nfs", "dir", "--target", str(folder))
    yield folder
    for each in libvirtds:
        virsh(each.uri, "pool-destroy", "nfs")


async def pool_and_hosts(cloud: LibvirtCloud) -> tuple[ProviderState, dict[str, ProviderState]]:
    found = {each.name: each for each in await cloud.providers()}
    (pool,) = [each for each in found.values() if SHARES in each.traits]
    return pool, {name: each for name, each in found.items() if each is not pool}


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def test_two_hosts_share_a_pool_that_is_counted_once_and_has_the_disks(
    tmp_path: Path, storage: Path, libvirtds: tuple[PrivateLibvirtd, PrivateLibvirtd]
) -> None:
    settings = libvirt_settings(tmp_path, *(each.uri for each in libvirtds), storage_pools=("nfs",))
    async with libvirt_cloud(tmp_path, {"c1": settings}) as cloud:
        pool, hosts = await pool_and_hosts(cloud)
        said = virsh(libvirtds[0].uri, "pool-info", "nfs", "--bytes")
        capacity = int(next(line for line in said.splitlines() if "Capacity" in line).split()[1])
        assert (pool.name, pool.inventories["DISK_GB"].total) == ("c1-nfs", capacity // 1024**3)
        assert set(hosts) == {"h1", "h2"}
        for each in hosts.values():
            assert "DISK_GB" not in each.inventories
            assert each.aggregates == pool.aggregates

        webs = [await cloud.boot(name=name, flavor=WITH_DISK, hosts=(name,)) for name in ("h1", "h2")]

        pool, _ = await pool_and_hosts(cloud)
        assert pool.inventories["DISK_GB"].used == 4
        expected = [f"moor-{web.id}-1-{disk}" for web in webs for disk in ("disk", "swap")]
        assert names_in(storage) == sorted(expected)
        for web, libvirtd in zip(webs, libvirtds, strict=True):
            text = virsh(libvirtd.uri, "dumpxml", f"moor-{web.id}-1")
            assert f"<source file='{storage}/moor-{web.id}-1-disk'" in text
        assert await cloud.problems(*webs, amounts=AMOUNTS) == []

        # A migration copies the disk inside the pool, and holds its amount once.
        await (await cloud.client.migrate(webs[0].id, hosts=("h2",), confirm_s=0)).until_done()
        await until(lambda: [len(domains(each.uri)) for each in libvirtds] == [0, 2])
        await until(lambda: f"moor-{webs[0].id}-1-disk" not in names_in(storage))
        assert f"moor-{webs[0].id}-2-disk" in names_in(storage)

        await cloud.delete(*webs)
        assert (names_in(storage), files(tmp_path)) == ([], [])
        pool, _ = await pool_and_hosts(cloud)
        assert pool.inventories["DISK_GB"].used == 0


async def test_computes_of_two_cells_share_a_pool_that_an_operator_has_made(
    tmp_path: Path, storage: Path, libvirtds: tuple[PrivateLibvirtd, PrivateLibvirtd]
) -> None:
    shared = AggregateId(UUID(int=0xA9))
    cells = {
        f"c{number}": libvirt_settings(
            tmp_path / f"c{number}", each.uri, first=number, storage_pools=(f"nfs={shared}",)
        )
        for number, each in enumerate(libvirtds, 1)
    }
    async with libvirt_cloud(tmp_path, cells) as cloud:
        await make_provider(cloud, "san", shared, total=3)
        web = await cloud.boot(flavor=WITH_DISK, hosts=("h1",))
        (refused,) = await (await cloud.client.boot(WITH_DISK, image="tiny", hosts=("h2",))).until_ended()

        pool, hosts = await pool_and_hosts(cloud)
        assert (pool.name, pool.inventories["DISK_GB"].used) == ("san", 2)
        assert [each.aggregates for each in hosts.values()] == [(shared,), (shared,)]
        # The other cell's host sees what is left of the same pool.
        assert refused.no_valid_host is not None
        (short,) = [each.example for each in refused.no_valid_host.steps if each.step == "capacity"]
        assert "DISK_GB asked 2, free 1 of 3 at san" in short
        assert names_in(storage) == [f"moor-{web.id}-1-disk", f"moor-{web.id}-1-swap"]

        await cloud.delete(web, refused)
        assert names_in(storage) == []


async def make_provider(cloud: LibvirtCloud, name: str, aggregate: AggregateId, total: int) -> None:
    provider = ProviderId(UUID(int=0x5A4))
    inventories = {"DISK_GB": ReportedInventory(total=total)}
    for order in (
        CreateProvider(id=provider, name=name),
        SetInventories(provider=provider, generation=0, inventories=inventories),
        SetTraits(provider=provider, generation=1, traits=(SHARES,)),
        SetAggregates(provider=provider, generation=2, aggregates=(aggregate,)),
    ):
        await cloud.write(order)


def test_a_pool_is_reported_once_and_not_if_hosts_see_different_ones() -> None:
    def view(name: str, text: str) -> HostView:
        seen = HostView(LibvirtHost(name, "test:///default"), LibvirtRules(folder="/nowhere"), "cell1")
        seen._layout = structs.replace(  # noqa: SLF001 - as a look leaves it
            a_layout(), shared=(shared_storage(text, SharingOffer("images"), "cell1"),)
        )
        return seen

    (pool,) = shared_pools([view("h1", STORAGE), view("h2", STORAGE)])
    smaller = STORAGE.replace("2199023255552", "1099511627776")
    (was,) = shared_pools([view("h1", smaller)])
    reported = was.update_provider_tree(ProviderTree(pool.root), 0.0)
    (provider,) = pool.update_provider_tree(reported, 0.0).providers.values()
    assert (provider.name, provider.inventories["DISK_GB"].total) == ("cell1-images", 2_048)

    with pytest.raises(NotShared, match="cell1-images has 2048 DISK_GB on host h1 and 1024 on host h2"):
        shared_pools([view("h1", STORAGE), view("h2", smaller)])
