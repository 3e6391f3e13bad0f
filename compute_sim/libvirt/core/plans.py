"""What a guest gets of its host, as it is written into its domain and read back from there."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Literal
from uuid import UUID
from xml.etree.ElementTree import Element, SubElement, register_namespace, tostring

from msgspec import Struct

from compute_sim.libvirt.core.layout import HostLayout, OfferedCell, OfferedDevices, in_proportion
from compute_sim.libvirt.core.machine import attribute, child, cpus_in, cpus_in_words, number_in, uuid_in
from engine.flavors import Flavor, InstanceId
from engine.guests import memory_class
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, ShapeSeen, Share


class DomainCell(Struct, frozen=True):
    """A NUMA cell of the guest. `host_cell` is None on a flat host."""

    cpus: tuple[int, ...]
    memory_mb: int
    host_cell: int | None = None


class PlannedFunction(Struct, frozen=True):
    """A PCI function that the guest gets. One with a `mac` is a network port of a guest that another cloud has built."""

    address: str
    mac: str = ""


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


class OwnGuest(Struct, frozen=True, kw_only=True):
    """A guest of this host: whose attempt it is, and what it holds."""

    instance: InstanceId
    attempt: int
    cell: str
    share: Share
    name: str = ""


class BuiltGuest(OwnGuest, frozen=True, kw_only=True):
    """A guest with how its domain is called, and its files."""

    domain: str
    disks: tuple[GuestDisk, ...] = ()
    nics: tuple[GuestNic, ...] = ()
    kernel: str = ""
    ramdisk: str = ""
    cmdline: str = ""
    console_log: str = ""


class GuestPlan(BuiltGuest, frozen=True, kw_only=True):
    """A guest as it is built.

    `pins` are the host CPUs on which each of the guest's CPUs may run. `dedicated` are the host CPUs that only this guest uses:
    those of its dedicated CPUs, of its emulator, and the idle threads beside these if the thread policy is isolate.
    """

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
    firmware: Literal["", "efi"] = ""
    video: str = ""


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


# What a driver says of a guest that it is to build.


class GuestOrder(BuiltGuest, frozen=True, kw_only=True):
    """A guest to build: what its order says, and the files that the driver has made for it.

    The name of its domain must be free on the machine.
    """

    flavor: Flavor
    image_properties: Mapping[str, str] = {}


# What a domain says of its guest in an element of our own: whose it is, and what libvirt's elements do not tell.
#
# By this element a compute that has restarted knows its own guests. libvirt keeps it, and reads nothing in it.


NAMESPACE = "urn:moorage:guest:1"
register_namespace("moorage", NAMESPACE)
# What XML cannot have, or changes in an attribute; and the mark that it is written with.
_SPECIAL = re.compile("[\\\\\x00-\x1f\x7f-\x9f\u2028\ud800-\udfff\ufffe\uffff]")
_ESCAPED = re.compile(r"\\([0-9a-f]{4})")


class GuestMetadata(OwnGuest, frozen=True, kw_only=True):
    dedicated: tuple[int, ...]
    mediated: tuple[PlannedMediated, ...]


def add_metadata(domain: Element, ours: GuestPlan) -> None:
    SubElement(domain, "metadata").append(_element(ours))


def metadata_xml(ours: GuestMetadata) -> str:
    """The element alone, for a domain that exists: libvirt sets it while the guest runs, and puts the namespace into it itself."""
    element = _element(ours)
    for each in element.iter():
        each.tag = each.tag.removeprefix(_tag(""))
    return tostring(element, encoding="unicode")


def _element(ours: GuestMetadata | GuestPlan) -> Element:
    guest = Element(
        _tag("guest"),
        instance=str(ours.instance),
        attempt=str(ours.attempt),
        cell=_escape(ours.cell),
        name=_escape(ours.name),
    )
    share = SubElement(
        guest, _tag("share"), host=str(ours.share.host), instances_max=str(ours.share.instances_max)
    )
    for each in ours.share.amounts:
        SubElement(
            share,
            _tag("amount"),
            {"provider": str(each.provider), "class": _escape(each.resource), "amount": str(each.amount)},
        )
    for shape in ours.share.shapes:
        SubElement(share, _tag("shape"), root=str(shape.root), shape=str(shape.shape))
    if ours.dedicated:
        SubElement(guest, _tag("dedicated"), cpus=cpus_in_words(ours.dedicated))
    for device in ours.mediated:
        attributes = {"uuid": str(device.uuid), "type": _escape(device.type), "parent": device.parent}
        SubElement(guest, _tag("mediated"), attributes)
    return guest


def read_metadata(domain: Element) -> GuestMetadata | None:
    """What our element says; None if the domain has none."""
    guest = domain.find(f"metadata/{_tag('guest')}")
    if guest is None:
        return None
    share = child(guest, _tag("share"))
    dedicated = guest.find(_tag("dedicated"))
    devices = (
        PlannedMediated(_uuid(each, "uuid"), _unescape(attribute(each, "type")), attribute(each, "parent"))
        for each in guest.findall(_tag("mediated"))
    )
    return GuestMetadata(
        instance=ConsumerId(_uuid(guest, "instance")),
        attempt=_number(guest, "attempt"),
        cell=_unescape(attribute(guest, "cell")),
        name=_unescape(attribute(guest, "name")),
        share=Share(
            host=ProviderId(_uuid(share, "host")),
            amounts=tuple(
                ResourceAmount(
                    provider=ProviderId(_uuid(each, "provider")),
                    resource=_unescape(attribute(each, "class")),
                    amount=_number(each, "amount"),
                )
                for each in share.findall(_tag("amount"))
            ),
            shapes=tuple(
                ShapeSeen(root=ProviderId(_uuid(each, "root")), shape=_number(each, "shape"))
                for each in share.findall(_tag("shape"))
            ),
            instances_max=_number(share, "instances_max"),
        ),
        dedicated=() if dedicated is None else cpus_in(dedicated, "cpus"),
        mediated=tuple(devices),
    )


def _tag(name: str) -> str:
    return f"{{{NAMESPACE}}}{name}"


def _number(element: Element, name: str) -> int:
    return number_in(attribute(element, name), element, name)


def _uuid(element: Element, name: str) -> UUID:
    return uuid_in(attribute(element, name), element, name)


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"\\{ord(found[0]):04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def foreign_dedicated(layout: HostLayout, foreign: Iterable[ForeignGuest]) -> frozenset[int]:
    """The dedicated CPUs of the host on which foreign guests are pinned."""
    offered = {cpu for cell in layout.cells for cpu in cell.dedicated}
    return frozenset(
        cpu
        for guest in foreign
        for pins in guest.pins
        if _is_pinned(layout, pins)
        for cpu in pins
        if cpu in offered
    )


def foreign_shared(layout: HostLayout, foreign: Iterable[ForeignGuest]) -> dict[ProviderId, int]:
    """How many shared CPUs of each cell foreign guests take.

    One of their CPUs takes as much as one of the host's own guests: with a ratio of 4, a fourth of a shared CPU.
    """
    weights: dict[ProviderId, float] = {cell.provider: 0.0 for cell in layout.cells}
    for guest in foreign:
        for pins in guest.pins:
            where = [
                (
                    cell.provider,
                    len(cell.shared if not _is_pinned(layout, pins) else set(pins) & set(cell.shared)),
                )
                for cell in layout.cells
            ]
            parts = sum(count for _, count in where)
            for provider, count in where:
                weights[provider] += count / parts if parts else 0.0
    # Thirds do not add up to one in floating point.
    return {provider: ceil(round(cpus / layout.offer.cpu_ratio, 6)) for provider, cpus in weights.items()}


def foreign_memory(
    layout: HostLayout, foreign: Sequence[ForeignGuest], kib: int = 0
) -> dict[ProviderId, int]:
    """How many MB foreign guests have of each cell, in pages of this size (0: small ones)."""
    taken = dict.fromkeys((cell.provider for cell in layout.cells), 0)
    for memory in (each for guest in foreign for each in guest.memory if each.kib == kib):
        cells = [cell for cell in layout.cells if not memory.cells or cell.number in (None, *memory.cells)]
        sizes = [_size(cell, kib) for cell in cells]
        for cell, mb in zip(cells, in_proportion(memory.mb, sizes), strict=True):
            taken[cell.provider] += mb
    return taken


def foreign_devices(layout: HostLayout, devices: OfferedDevices, foreign: Sequence[ForeignGuest]) -> int:
    """How many of these devices foreign guests keep from the host: also by a part of the card, or by the card of a part."""
    uuids = {uuid for guest in foreign for uuid in guest.mediated}
    used = [each for each in layout.mediated if each.uuid in uuids]
    if devices.mediated_type:
        return sum(1 for one in used if one.parent in devices.parents and one.type == devices.mediated_type)
    taken = {address for guest in foreign for address in guest.functions} | {each.parent for each in used}
    return sum(
        1
        for each in layout.functions
        if each.address in devices.functions
        and not taken.isdisjoint((each.address, each.physical, *each.virtual))
    )


def _is_pinned(layout: HostLayout, pins: Sequence[int]) -> bool:
    """Does this set of CPUs say more than "anywhere"?"""
    return bool(pins) and not layout.machine.cpus.issubset(pins)


def _size(cell: OfferedCell, kib: int) -> int:
    if not kib:
        return cell.memory_mb + cell.outside_mb
    return sum(pages.mb for pages in cell.huge_pages if pages.kib == kib)


# What the other guests on a machine have, so that no further guest gets it.


class Taken:
    """By each CPU, function and mediated device that a guest has, the name of its domain, for refusals."""

    def __init__(self, layout: HostLayout, others: Sequence[GuestPlan | ForeignGuest]) -> None:
        self.layout = layout
        self._plans = [each for each in others if isinstance(each, GuestPlan)]
        self._foreign = [each for each in others if isinstance(each, ForeignGuest)]
        self.cpus: dict[int, str] = {cpu: plan.domain for plan in self._plans for cpu in plan.dedicated}
        for guest in self._foreign:
            self.cpus.update(dict.fromkeys(foreign_dedicated(layout, (guest,)), guest.name))
        self.functions: dict[str, str] = {
            function.address: plan.domain for plan in self._plans for function in plan.functions
        } | {address: guest.name for guest in self._foreign for address in guest.functions}
        self.mediated = {device.uuid: plan.domain for plan in self._plans for device in plan.mediated} | {
            uuid: guest.name for guest in self._foreign for uuid in guest.mediated
        }
        exist = {each.uuid for each in layout.mediated}
        # Of other guests, and not made yet.
        self.to_be_made: tuple[PlannedMediated, ...] = tuple(
            device for plan in self._plans for device in plan.mediated if device.uuid not in exist
        )

    def pages_mb(self, cell: OfferedCell, kib: int) -> int:
        """How much of a cell's memory in pages of this size other guests have, or may have."""
        own = sum(self._own_pages(plan, cell, kib) for plan in self._plans)
        foreign = foreign_memory(self.layout, self._foreign, kib)[cell.provider]
        return own + max(self.layout.offer.kept_mb(cell.number, kib), foreign)

    def _own_pages(self, plan: GuestPlan, cell: OfferedCell, kib: int) -> int:
        if plan.page_kib != kib:
            return 0
        # The share, since a guest without cells of its own may have pages in several cells of the host.
        claimed = Counter[ProviderId]()
        for each in plan.share.amounts:
            if each.resource == memory_class(kib):
                claimed[each.provider] += each.amount
        cells = self.layout.cells
        if claimed.keys() & {each.provider for each in cells}:
            return claimed[cell.provider]
        # It was built before the host had these cells, or when it had some: its pages may be anywhere.
        sizes = [sum(pages.mb for pages in each.huge_pages if pages.kib == kib) for each in cells]
        return in_proportion(plan.memory_mb, sizes)[cells.index(cell)]
