"""A guest that another cloud has built under libvirt is adopted while it runs, and left while it runs."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest

from bus.messages.cell import AdoptGuest, DestroyInstance, LeaveGuest, StartInstance, StopInstance
from compute_sim.core.attempts import AttemptRecord, AttemptState
from compute_sim.core.trees import ProviderTree
from tests.libvirt.driven_host import SMALLEST, Host
from tests.libvirt.libvirt_cloud import virsh, write_image
from tests.servers.libvirtd import PrivateLibvirtd
from tests.waiting import wait_for

THEIRS = UUID("c7a5fdbd-edaf-9455-926a-d65c16db1809")
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


class Adopter(Host):
    """A host with a guest of another cloud."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.uri = uri
        self.disk = folder / "theirs" / "disk"
        write_image(self.disk)
        domain = folder / "theirs" / "libvirt.xml"
        domain.write_text(DOMAIN.format(name=NAME, uuid=THEIRS, disk=self.disk))
        virsh(uri, "define", str(domain))
        virsh(uri, "start", NAME)
        super().__init__(folder, uri, domain_type="qemu")
        self.its_folder = folder / "instances" / "h1" / f"{THEIRS}.1"

    def order(self, kind: Callable[..., T], **fields: Any) -> T:
        return self._order(kind, THEIRS.int, **fields)

    def adoption(self) -> AdoptGuest:
        return self.order(AdoptGuest, flavor=SMALLEST, share=self.share(SMALLEST))

    def reserved_mb(self) -> int:
        tree = self.driver.update_provider_tree(ProviderTree(self.driver.root), 0)
        return tree.providers[tree.root].inventories["MEMORY_MB"].reserved

    def metadata(self) -> bool:
        return "urn:moorage:guest:1" in virsh(self.uri, "dumpxml", NAME)


@pytest.fixture
def host(tmp_path: Path, libvirtd: PrivateLibvirtd) -> Iterator[Adopter]:
    with closing(Adopter(tmp_path, libvirtd.uri)) as adopter:
        yield adopter


def test_a_running_guest_is_adopted_as_it_is_and_destroyed_as_ours(host: Adopter) -> None:
    wait_for(lambda: host.reserved_mb() == 32)

    assert host.end_of(host.adoption()) == ""
    assert host.running == [NAME]
    wait_for(lambda: host.reserved_mb() == 0)
    (found,) = host.driver.has("c1")
    assert (found.instance, found.attempt, found.state) == (THEIRS, 1, AttemptState.BUILT)

    assert host.end_of(host.order(StopInstance, number=1)) == ""
    assert host.running == []
    assert host.end_of(host.order(StartInstance, number=1)) == ""
    assert host.running == [NAME]

    assert host.end_of(host.order(DestroyInstance)) == ""
    assert host.domains == []
    assert not host.disk.exists()
    assert not host.its_folder.exists()


def test_an_adoption_whose_folder_cannot_be_written_leaves_the_guest_to_its_owner(host: Adopter) -> None:
    (host.its_folder / "domain.xml" / "in the way").mkdir(parents=True)

    assert host.end_of(host.adoption()).startswith("its folder cannot be written: ")

    assert not host.metadata()
    assert host.running == [NAME]
    assert host.end_of(host.order(DestroyInstance)) == ""
    assert host.running == [NAME]
    assert host.disk.exists()


def test_a_guest_that_is_left_runs_on_and_is_foreign_again(host: Adopter) -> None:
    assert host.end_of(host.adoption()) == ""
    assert host.metadata()

    assert host.end_of(host.order(LeaveGuest)) == ""

    assert host.running == [NAME]
    assert not host.metadata()
    assert host.disk.exists()
    assert not host.its_folder.exists()
    wait_for(lambda: host.reserved_mb() == 32)
    wait_for(lambda: host.driver.has("c1") == [])


@pytest.mark.parametrize("noted", ["noted", "not noted"])
def test_a_compute_that_ends_in_the_middle_of_an_adoption_adopts_or_touches_nothing(
    host: Adopter, noted: str
) -> None:
    is_noted = noted == "noted"
    host.restart()
    noted_order = host.adoption() if is_noted else None

    failure = host.end_of_attempt(
        host.order(AttemptRecord, state=AttemptState.BUILDING, begun_order=noted_order)
    )

    assert host.running == [NAME]
    assert host.disk.exists()
    assert (failure == "", host.metadata()) == (is_noted, is_noted)
