"""A guest that another cloud has built under libvirt is adopted while it runs, and left while it runs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest

from bus.messages.cell import (
    AdoptGuest,
    DestroyInstance,
    LeaveGuest,
    StartInstance,
    StopInstance,
)
from compute_sim.core.attempts import AttemptRecord, AttemptState, HostOrder
from compute_sim.core.trees import ProviderTree
from engine.flavors import Flavor
from engine.inventories import ConsumerId, ResourceAmount, Share
from tests.libvirt.driven_host import open_driver
from tests.libvirt.guest_images import write_image
from tests.libvirt.libvirt_cloud import domains, libvirt_settings, virsh
from tests.servers.libvirtd import PrivateLibvirtd
from tests.waiting import wait_for

THEIRS = ConsumerId(UUID("c7a5fdbd-edaf-9455-926a-d65c16db1809"))
NAME = "instance-00000007"
T = TypeVar("T")
DOMAIN = """
<domain type='qemu'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>32</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64'>hvm</type></os>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='{disk}'/><target dev='vda' bus='virtio'/>
    </disk>
  </devices>
</domain>
"""


class Adopter:
    """A host with a guest of another cloud, and its driver, which may be started anew."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.uri = uri
        self.disk = folder / "theirs" / "disk"
        write_image(self.disk)
        domain = folder / "theirs" / "libvirt.xml"
        domain.write_text(DOMAIN.format(name=NAME, uuid=THEIRS, disk=self.disk))
        virsh(uri, "define", str(domain))
        virsh(uri, "start", NAME)
        self.settings = libvirt_settings(folder, uri)
        self.folder = folder / "instances" / "h1" / f"{THEIRS}.1"
        self.driver = open_driver(self.settings)

    def obey(self, order: HostOrder, state: AttemptState) -> str:
        """Obey an order to its end; why it failed."""
        self.driver.begin(order, 0)
        return self.end_of(self.order(AttemptRecord, state=state))

    def order(self, kind: Callable[..., T], **fields: Any) -> T:
        return kind(cell="c1", instance=THEIRS, attempt=1, host=self.driver.root, **fields)

    def end_of(self, attempt: AttemptRecord) -> str:
        # A build that has failed is told once.
        work = wait_for(lambda: self.driver.look_at(attempt, 0), "its end", lambda found: not found.left_ms)
        return work.failure

    def adoption(self, vcpus: int = 1, resource: str = "VCPU") -> AdoptGuest:
        host = self.driver.root
        amounts = (
            ResourceAmount(provider=host, resource=resource, amount=vcpus),
            ResourceAmount(provider=host, resource="MEMORY_MB", amount=32),
        )
        share = Share(host=host, amounts=amounts)
        return self.order(AdoptGuest, flavor=Flavor(vcpus=1, ram_mb=32), share=share)

    def reserved_mb(self) -> int:
        tree = self.driver.update_provider_tree(ProviderTree(self.driver.root), 0)
        return tree.providers[tree.root].inventories["MEMORY_MB"].reserved

    def is_running(self) -> bool:
        return NAME in virsh(self.uri, "list", "--name").split()

    def metadata(self) -> bool:
        return "urn:moorage:guest:1" in virsh(self.uri, "dumpxml", NAME)


@pytest.fixture
def host(tmp_path: Path, libvirtd: PrivateLibvirtd) -> Iterator[Adopter]:
    adopter = Adopter(tmp_path, libvirtd.uri)
    try:
        yield adopter
    finally:
        adopter.driver.close()
        if adopter.is_running():
            virsh(libvirtd.uri, "destroy", NAME)
        if NAME in domains(libvirtd.uri):
            virsh(libvirtd.uri, "undefine", NAME)


def test_a_running_guest_is_adopted_as_it_is_and_destroyed_as_ours(host: Adopter) -> None:
    wait_for(lambda: host.reserved_mb() == 32)

    assert host.obey(host.adoption(), AttemptState.BUILDING) == ""
    assert host.is_running()
    wait_for(lambda: host.reserved_mb() == 0)
    (found,) = host.driver.has("c1")
    assert (found.instance, found.attempt, found.state) == (THEIRS, 1, AttemptState.BUILT)

    assert host.obey(host.order(StopInstance, number=1), AttemptState.STOPPING) == ""
    assert not host.is_running()
    assert host.obey(host.order(StartInstance, number=1), AttemptState.STARTING) == ""
    assert host.is_running()

    assert host.obey(host.order(DestroyInstance), AttemptState.DESTROYED) == ""
    assert NAME not in domains(host.uri)
    assert not host.disk.exists()
    assert not host.folder.exists()


def test_an_adoption_whose_folder_cannot_be_written_leaves_the_guest_to_its_owner(host: Adopter) -> None:
    (host.folder / "domain.xml" / "in the way").mkdir(parents=True)

    assert host.obey(host.adoption(), AttemptState.BUILDING).startswith("its folder cannot be written: ")

    assert not host.metadata()
    assert host.is_running()
    assert host.obey(host.order(DestroyInstance), AttemptState.DESTROYED) == ""
    assert host.is_running()
    assert host.disk.exists()


def test_a_guest_that_is_left_runs_on_and_is_foreign_again(host: Adopter) -> None:
    assert host.obey(host.adoption(), AttemptState.BUILDING) == ""
    assert host.metadata()

    assert host.obey(host.order(LeaveGuest), AttemptState.DESTROYED) == ""

    assert host.is_running()
    assert not host.metadata()
    assert host.disk.exists()
    assert not host.folder.exists()
    wait_for(lambda: host.reserved_mb() == 32)
    wait_for(lambda: host.driver.has("c1") == [])


@pytest.mark.parametrize("noted", ["noted", "not noted"])
def test_a_compute_that_ends_in_the_middle_of_an_adoption_adopts_or_touches_nothing(
    host: Adopter, noted: str
) -> None:
    is_noted = noted == "noted"
    host.driver.close()
    host.driver = open_driver(host.settings)
    noted_order = host.adoption() if is_noted else None
    attempt = host.order(AttemptRecord, state=AttemptState.BUILDING, begun_order=noted_order)

    failure = host.end_of(attempt)

    assert host.is_running()
    assert host.disk.exists()
    assert (failure == "", host.metadata()) == (is_noted, is_noted)
