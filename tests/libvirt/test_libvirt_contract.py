"""The driver of hosts with libvirt keeps the contract of drivers, on libvirt's own test driver."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from compute_sim.core.trees import ProviderTree
from compute_sim.libvirt.driver import LibvirtDriver
from compute_sim.libvirt.running import shared_pools
from compute_sim.libvirt.settings import LibvirtRules
from tests.contracts.driver_contract import breaches
from tests.libvirt.driven_host import driver_of, open_driver
from tests.waiting import wait_for


class Drivers:
    """Makes drivers of one host. The one before ends first, like a process that was killed."""

    def __init__(self, settings: LibvirtRules) -> None:
        self.settings = settings
        self._last: LibvirtDriver | None = None

    def make(self) -> LibvirtDriver:
        self.end()
        self._last = open_driver(self.settings)
        return self._last

    def end(self) -> None:
        if self._last is not None:
            self._last.close()
            self._last = None


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "another").write_bytes(bytes(1024 * 1024))
    made = Drivers(LibvirtRules(hosts=("t1=test:///default",), folder=str(tmp_path), flat=True, stop_s=1.0))
    yield made
    made.end()


def test_the_driver_keeps_the_contract(drivers: Drivers) -> None:
    found = breaches(drivers.make, proceed=lambda: time.sleep(0.02), moves_live=False)

    assert found == ()


def test_what_the_test_machine_runs_is_reserved(drivers: Drivers) -> None:
    drivers.settings = structs.replace(drivers.settings, flat=False)
    driver = drivers.make()

    tree = driver.update_provider_tree(ProviderTree(driver.root), 0.0)

    # Its one domain, `test`, has 2 CPUs and 8 GiB, and more memory than its machine.
    cells = [each for each in tree.providers.values() if "HW_NUMA_ROOT" in each.traits]
    assert len(cells) == 2
    assert all(each.inventories["MEMORY_MB"].reserved > 0 for each in cells)


def test_a_pool_of_the_compute_is_reported_once_and_shared_with_its_hosts(drivers: Drivers) -> None:
    drivers.settings = structs.replace(
        drivers.settings, pools=("seats:CUSTOM_LICENCE=7@t*", "no:CUSTOM_X=1@x*")
    )
    driver = drivers.make()

    (pool,) = shared_pools([driver.view])
    (seats,) = pool.update_provider_tree(ProviderTree(pool.root), 0.0).providers.values()
    root = driver.update_provider_tree(ProviderTree(driver.root), 0.0).providers[driver.root]

    assert (seats.name, seats.inventories["CUSTOM_LICENCE"].total) == ("-seats", 7)
    assert seats.joins == root.joins
    assert "CUSTOM_LICENCE" not in root.inventories


@pytest.mark.parametrize("resource", ["DISK_GB", "IPV4_ADDRESS"])
def test_a_pool_of_what_libvirt_gives_is_refused_by_name(drivers: Drivers, resource: str) -> None:
    settings = structs.replace(drivers.settings, pools=(f"own:{resource}=7",))
    driver = driver_of(settings)
    driver.open()
    try:
        wait_for(lambda: "storage_pools or shared_networks" in driver.why_not_seen)
        assert f"pools has '-own' of {resource}" in driver.why_not_seen
    finally:
        driver.close()
