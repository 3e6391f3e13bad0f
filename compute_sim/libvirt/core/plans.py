"""What a guest gets of its host, as it is written into its domain and read back from there."""

from collections.abc import Mapping
from typing import Literal
from uuid import UUID

from msgspec import Struct

from bus.message import ProviderId
from bus.messages.build import InstanceId
from bus.messages.placement import Share


class DomainCell(Struct, frozen=True):
    """A NUMA cell of the guest. `host_cell` is None on a flat host."""

    cpus: tuple[int, ...]
    memory_mb: int
    host_cell: int | None = None


class PlannedFunction(Struct, frozen=True):
    """A PCI function that the guest gets. One with a `mac` is a network port, in the VLAN `vlan` if that is not 0."""

    address: str
    mac: str = ""
    vlan: int = 0


class PlannedMediated(Struct, frozen=True):
    """A mediated device of the guest. It must exist before the domain starts: `parent` is the GPU to make it from."""

    uuid: UUID
    type: str
    parent: str


class GuestDisk(Struct, frozen=True):
    path: str
    format: Literal["qcow2", "raw"] = "qcow2"
    device: Literal["disk", "cdrom"] = "disk"
    # Empty: the bus that the image's properties name, or virtio.
    bus: str = ""


class GuestNic(Struct, frozen=True):
    """A network card of the guest on a network of libvirt, or on a bridge of the host."""

    mac: str
    source: str
    kind: Literal["network", "bridge"] = "network"
    # Empty: the model that the image's properties name, or virtio.
    model: str = ""


class CpuTopology(Struct, frozen=True):
    sockets: int
    cores: int
    threads: int


class GuestPlan(Struct, frozen=True, kw_only=True):
    """A guest of this host: whose attempt it is, what it holds, and how it is built.

    `pins` are the host CPUs on which each of the guest's CPUs may run. `dedicated` are the host CPUs that only this guest uses:
    those of its dedicated CPUs, of its emulator, and the idle threads beside these if the thread policy is isolate.
    """

    instance: InstanceId
    attempt: int
    cell: str
    share: Share
    name: str = ""
    project: str = ""
    # How the domain is called.
    domain: str
    domain_type: str
    arch: str
    machine_type: str = ""
    cpu_mode: Literal["", "host-model", "host-passthrough"] = ""
    memory_mb: int
    # The size of the pages that the memory is in; 0: small ones.
    page_kib: int = 0
    pins: tuple[tuple[int, ...], ...]
    dedicated: tuple[int, ...] = ()
    emulator: tuple[int, ...] = ()
    # A guest without cells of its own has its memory in these cells of the host.
    memory_cells: tuple[int, ...] = ()
    cells: tuple[DomainCell, ...] = ()
    topology: CpuTopology | None = None
    functions: tuple[PlannedFunction, ...] = ()
    mediated: tuple[PlannedMediated, ...] = ()
    disks: tuple[GuestDisk, ...] = ()
    nics: tuple[GuestNic, ...] = ()
    kernel: str = ""
    ramdisk: str = ""
    cmdline: str = ""
    firmware: Literal["", "efi"] = ""
    video: str = ""
    console_log: str = ""

    @property
    def host(self) -> ProviderId:
        return self.share.host


class ForeignMemory(Struct, frozen=True):
    """Memory of a foreign guest. It may be in any of `cells`; none are named if it may be anywhere. `kib` is 0 for small pages."""

    mb: int
    kib: int = 0
    cells: tuple[int, ...] = ()


class ForeignGuest(Struct, frozen=True, kw_only=True):
    """A domain that is none of this host's guests, and what it takes of the machine.

    `pins` has for each of its CPUs the host CPUs where it may run; empty if it may run anywhere.
    """

    name: str
    uuid: UUID
    pins: tuple[tuple[int, ...], ...] = ()
    memory: tuple[ForeignMemory, ...] = ()
    functions: tuple[str, ...] = ()
    mediated: tuple[UUID, ...] = ()
    macs: tuple[str, ...] = ()


def by_provider(share: Share) -> Mapping[ProviderId, Mapping[str, int]]:
    amounts: dict[ProviderId, dict[str, int]] = {}
    for each in share.amounts:
        of_provider = amounts.setdefault(each.provider, {})
        of_provider[each.resource] = of_provider.get(each.resource, 0) + each.amount
    return amounts
