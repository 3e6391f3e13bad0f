"""The driver of hosts with libvirt keeps the contract of drivers, on libvirt's own test driver; and a folder has one compute of a cell."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.workers.connections import Station
from compute_sim.core.trees import ProviderTree
from compute_sim.libvirt.driver import LibvirtDriver
from compute_sim.libvirt.running import libvirt_parts, shared_pools
from compute_sim.settings import ComputeSettings
from kit.errors import Unavailable
from tests.contracts.driver_contract import breaches
from tests.libvirt.driven_host import Host, driver_of
from tests.libvirt.libvirt_cloud import libvirt_settings
from tests.waiting import wait_for


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with closing(Host(tmp_path, stop_s=1.0)) as made:
        (tmp_path / "images" / "another").write_bytes(bytes(1024 * 1024))
        yield made


def driver_with(host: Host, **settings: object) -> LibvirtDriver:
    """A driver of the host with these settings. The one before ends first, like a process that was killed."""
    host.settings = structs.replace(host.settings, **settings)
    host.restart()
    return host.driver


def test_the_driver_keeps_the_contract(host: Host) -> None:
    assert breaches(lambda: driver_with(host), proceed=lambda: time.sleep(0.02), moves_live=False) == ()


def test_what_the_test_machine_runs_is_reserved(host: Host) -> None:
    driver = driver_with(host, flat=False)

    tree = driver.update_provider_tree(ProviderTree(driver.root), 0.0)

    # Its one domain, `test`, has 2 CPUs and 8 GiB, and more memory than its machine.
    cells = [each for each in tree.providers.values() if "HW_NUMA_ROOT" in each.traits]
    assert len(cells) == 2
    assert all(each.inventories["MEMORY_MB"].reserved > 0 for each in cells)


def test_a_pool_of_the_compute_is_reported_once_and_shared_with_its_hosts(host: Host) -> None:
    driver = driver_with(host, pools=("seats:CUSTOM_LICENCE=7@h*", "no:CUSTOM_X=1@x*"))

    (pool,) = shared_pools([driver.view])
    (seats,) = pool.update_provider_tree(ProviderTree(pool.root), 0.0).providers.values()
    root = driver.update_provider_tree(ProviderTree(driver.root), 0.0).providers[driver.root]

    assert (seats.name, seats.inventories["CUSTOM_LICENCE"].total) == ("-seats", 7)
    assert seats.joins == root.joins
    assert "CUSTOM_LICENCE" not in root.inventories


@pytest.mark.parametrize("resource", ["DISK_GB", "IPV4_ADDRESS"])
def test_a_pool_of_what_libvirt_gives_is_refused_by_name(host: Host, resource: str) -> None:
    with closing(driver_of(structs.replace(host.settings, pools=(f"own:{resource}=7",)))) as driver:
        driver.open()
        wait_for(lambda: "storage_pools or shared_networks" in driver.why_not_seen)
        assert f"pools has '-own' of {resource}" in driver.why_not_seen


async def test_a_folder_has_one_compute_of_a_cell_at_once(tmp_path: Path) -> None:
    """That of the same cell waits until the first one has ended, and that of another cell works beside it."""
    broker = MemoryBroker().as_user()
    first, second = Station(broker, "first", asks=True), Station(broker, "second", asks=True)
    settings = libvirt_settings(tmp_path, "test:///default", domain_type="test")
    of_cell = {cell: ComputeSettings(cell=cell) for cell in ("c1", "c2")}
    async with libvirt_parts(first, of_cell["c1"], settings):
        with pytest.raises(Unavailable, match=f"first works in {tmp_path}, as the compute of cell 'c1'"):
            async with libvirt_parts(second, of_cell["c1"], settings):
                pass
        async with libvirt_parts(
            second, of_cell["c2"], structs.replace(settings, hosts=("h2=test:///default",))
        ):
            pass
    async with libvirt_parts(second, of_cell["c1"], settings):
        pass
    for each in (first, second):
        await each.close()
