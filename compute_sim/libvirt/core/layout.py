"""Which part of a machine each provider of its host stands for. Trees are reported and guests are planned by the same layout.

Ids are derived from the root's id, so that they survive restarts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from ipaddress import AddressValueError, IPv4Address
from typing import Literal, NamedTuple
from uuid import UUID, uuid5
from xml.etree.ElementTree import Element

from msgspec import Struct, structs

from compute_sim.core.hosts import Network, Pool, aggregate_of, check_once, parts_of, tree_of_pool
from compute_sim.libvirt.core.machine import (
    BadXmlError,
    HugePages,
    Machine,
    MediatedDevice,
    NodeDevices,
    PciFunction,
    attribute,
    child,
    cpus_in_words,
    kib_in,
    read_xml,
    text_at,
)
from engine.inventories import AggregateId, ProviderId, Ratio, Share

# The share of a machine that a host offers. Two computes on one machine offer different shares of it.


_DEVICE = re.compile(
    r"(?P<vendor>[0-9a-f]{4}|\*):(?P<product>[0-9a-f]{4}|\*)(@(?P<address>[0-9a-f:.*?\[\]-]{1,40}))?(=(?P<network>[\w-]{1,100}))?",
    re.ASCII | re.IGNORECASE,
)
_TYPE = re.compile(
    r"(?P<type>[\w.-]{1,100})(@(?P<address>[0-9a-f:.*?\[\]-]{1,40}))?(=(?P<pool>[\w-]{1,60}))?", re.ASCII
)
_PAGES = re.compile(r"(?P<cell>[0-9]{1,4}):(?P<kib>[0-9]{1,8})=(?P<count>[0-9]{1,9})", re.ASCII)


class DeviceOffer(Struct, frozen=True):
    """PCI functions that the host offers: all of this vendor and product whose address matches the pattern."""

    vendor: str
    product: str
    address: str = "*"
    network: str = ""

    def has(self, function: PciFunction) -> bool:
        return (
            fnmatchcase(function.vendor, self.vendor)
            and fnmatchcase(function.product, self.product)
            and fnmatchcase(function.address, self.address)
        )


class MediatedOffer(Struct, frozen=True):
    """A type of mediated devices that the host offers, made from GPUs whose address matches. With a `pool`, all these GPUs are
    one provider.
    """

    type: str
    address: str = "*"
    pool: str = ""


class PagesKept(Struct, frozen=True):
    """Pages of a cell that are kept for what runs on the machine and is none of the host's own guests."""

    cell: int
    kib: int
    count: int


class HostOffer(Struct, frozen=True, kw_only=True):
    """The share of the machine, and the terms. `name` is the host's.

    Without `cpus_shared`, all CPUs that are not dedicated are shared. `memory_mb` limits the memory in small pages, over all
    cells in proportion to what they have.
    """

    name: str
    flat: bool = False
    cpus_shared: frozenset[int] | None = None
    cpus_dedicated: frozenset[int] = frozenset()
    memory_mb: int | None = None
    memory_reserved_mb: int = 512
    disk_gb: int = 0
    # So much of it is not for guests.
    disk_reserved_gb: int = 0
    cpu_ratio: Ratio = 4.0
    memory_ratio: Ratio = 1.0
    disk_ratio: Ratio = 1.0
    pages_kept: tuple[PagesKept, ...] = ()
    devices: tuple[DeviceOffer, ...] = ()
    mediated: tuple[MediatedOffer, ...] = ()
    networks: tuple[Network, ...] = ()
    # Traits of the root beside those that libvirt's description gives: what the driver supports, and an operator's own.
    traits: frozenset[str] = frozenset()
    # The type of the domains: kvm, qemu, or test.
    domain_type: str = "kvm"
    # Empty: host-model where guests run by KVM, else the hypervisor's plain one.
    cpu_mode: Literal["", "host-model", "host-passthrough"] = ""
    availability_zone: str = ""
    place: str = ""

    def kept_mb(self, cell: int | None, kib: int) -> int:
        """How much memory in pages of this size is kept from guests in a cell; None is the whole host."""
        return sum(
            each.count * each.kib // 1024
            for each in self.pages_kept
            if each.kib == kib and cell in (None, each.cell)
        )

    @property
    def guest_cpu_mode(self) -> Literal["", "host-model", "host-passthrough"]:
        return self.cpu_mode or ("host-model" if self.domain_type == "kvm" else "")


def read_devices(texts: Iterable[str]) -> tuple[DeviceOffer, ...]:
    form = (
        "VENDOR:PRODUCT such as 8086:10ed, VENDOR:PRODUCT@ADDRESS with a pattern of addresses such as 8086:10ed@0000:81:*, "
        "and =NETWORK after it for ports of this physical network"
    )
    found = [parts_of(text, "devices", _DEVICE, form) for text in texts]
    # Ids and addresses are compared in small letters; a network's name stays as it is.
    return tuple(
        [
            DeviceOffer(
                vendor=(each["vendor"] or "*").lower(),
                product=(each["product"] or "*").lower(),
                address=(each["address"] or "*").lower(),
                network=each["network"] or "",
            )
            for each in found
        ]
    )


def read_mediated(texts: Iterable[str]) -> tuple[MediatedOffer, ...]:
    form = "TYPE such as nvidia-35, TYPE@ADDRESS with a pattern of the GPUs' addresses, and =POOL after it for one pool of several GPUs"
    found = [parts_of(text, "mediated_types", _TYPE, form) for text in texts]
    offers = tuple(
        [MediatedOffer(each["type"], each["address"] or "*", each["pool"] or "") for each in found]
    )
    for pool in sorted({each.pool for each in offers if each.pool}):
        types = dict.fromkeys(each.type for each in offers if each.pool == pool)
        if len(types) > 1:
            raise ValueError(
                f"mediated_types has the pool {pool!r} with {' and '.join(types)}: a pool has one type"
            )
    return offers


def read_pages(texts: Iterable[str]) -> tuple[PagesKept, ...]:
    form = "CELL:KIB=COUNT such as 0:2048=512"
    found = [parts_of(text, "pages_reserved", _PAGES, form) for text in texts]
    return tuple([PagesKept(*map(int, each.group("cell", "kib", "count"))) for each in found])


# Which providers a host's devices are, and what each of them gives.
#
# A PCI function that guests get whole is a provider. The virtual functions of a card are one together. A GPU with mediated devices is
# one, too, and several GPUs may be one pool. The operator's settings say which of these a device is, as in Nova: settings that make
# one device two of these are refused.


VIRTUAL_PORT = "SRIOV_NET_VF"
VGPU = "VGPU"
_NOT_IN_NAMES = re.compile("[^A-Z0-9_]")
# How Neutron calls ports that are a virtual function, and ports that are a whole card.
DIRECT, DIRECT_PHYSICAL = "CUSTOM_VNIC_TYPE_DIRECT", "CUSTOM_VNIC_TYPE_DIRECT_PHYSICAL"


class OfferedDevices(Struct, frozen=True):
    """A provider of devices. It gives a resource class: one for each of these functions, or mediated devices of this type, which these
    parents make.
    """

    provider: ProviderId
    name: str
    parent: ProviderId
    resource: str
    functions: tuple[str, ...] = ()
    mediated_type: str = ""
    parents: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()


def device_layout(
    root: ProviderId, offer: HostOffer, found: NodeDevices, cells: Mapping[int, ProviderId]
) -> tuple[OfferedDevices, ...]:
    """The providers of devices. `cells` are the providers of the host's cells, by number."""
    draft = _Draft(root, offer.name, {each.address: each for each in found.functions}, cells)
    offered: set[str] = set()
    for function in found.functions:
        chosen = next((each for each in offer.devices if each.has(function)), None)
        if chosen is not None:
            offered.add(function.address)
            draft.add_function(function, chosen)
        if kind := _type_of(function, offer.mediated):
            if chosen is not None:
                raise ValueError(
                    f"devices offers {function.address}, and mediated_types offers its {kind.type}: "
                    "a GPU is passed through whole, or makes mediated devices"
                )
            draft.add_mediated(function, kind)
    for function in found.functions:
        if offered.issuperset((function.address, function.physical)):
            raise ValueError(
                f"devices offers {function.physical} and its virtual function {function.address}: a card is passed through "
                "whole, or by its virtual functions; name the addresses of each kind, as in 8086:10ed@0000:81:*"
            )
    return draft.finished()


def _type_of(function: PciFunction, offers: Iterable[MediatedOffer]) -> MediatedOffer | None:
    makes = {each.name for each in function.mediated_types}
    chosen = {
        each.type: each
        for each in offers
        if each.type in makes and fnmatchcase(function.address, each.address)
    }
    if len(chosen) > 1:
        raise ValueError(
            f"mediated_types offers {' and '.join(chosen)} of {function.address}: a GPU makes devices of one type; name the "
            "GPUs of each type, as in nvidia-35@0000:3b:*"
        )
    return next(iter(chosen.values()), None)


class _Draft:
    """The providers as far as they are known, by the address or the pool that names them."""

    def __init__(
        self,
        root: ProviderId,
        host: str,
        functions: Mapping[str, PciFunction],
        cells: Mapping[int, ProviderId],
    ) -> None:
        self._root = root
        self._host = host
        self._functions = functions
        self._cells = cells
        self._drafts: dict[str, OfferedDevices] = {}

    def add_function(self, function: PciFunction, chosen: DeviceOffer) -> None:
        # A virtual function belongs to the provider of its physical one, whether that is offered itself or not.
        owner = self._functions.get(function.physical, function)
        resource = VIRTUAL_PORT if function.is_network and function.physical else function.resource
        traits = {Network(chosen.network, 0).trait} if chosen.network else set()
        if function.is_network and chosen.network:
            traits.add(DIRECT if function.physical else DIRECT_PHYSICAL)
        if function.is_network and (function.physical or function.virtual):
            traits.add("HW_NIC_SRIOV")
        known = self._drafts.get(owner.address)
        physnets = {
            each for each in traits.union(known.traits if known else ()) if each.startswith("CUSTOM_PHYSNET_")
        }
        if len(physnets) > 1:
            raise ValueError(
                f"devices gives the functions of {owner.address} the networks {' and '.join(sorted(physnets))}: a card is on one"
            )
        new = OfferedDevices(
            provider=ProviderId(uuid5(self._root, f"pci-{owner.address}")),
            name=f"{self._host}_{owner.address}",
            parent=self._cell_of(owner),
            resource=resource,
            functions=(function.address,),
            traits=frozenset(traits),
        )
        self._give(owner.address, new)

    def add_mediated(self, function: PciFunction, kind: MediatedOffer) -> None:
        key = kind.pool or function.address
        of_id = f"gpus-{kind.pool}" if kind.pool else f"pci-{function.address}"
        new = OfferedDevices(
            provider=ProviderId(uuid5(self._root, of_id)),
            name=f"{self._host}_{key}",
            parent=self._cell_of(function),
            resource=VGPU,
            mediated_type=kind.type,
            parents=(function.address,),
            traits=frozenset({f"CUSTOM_{_NOT_IN_NAMES.sub('_', kind.type.upper())}"}),
        )
        self._give(key, new)

    def finished(self) -> tuple[OfferedDevices, ...]:
        return tuple(self._drafts.values())

    def _give(self, key: str, new: OfferedDevices) -> None:
        """Add it, or what it gives to what is there by this key."""
        old = self._drafts.get(key)
        self._drafts[key] = (
            new
            if old is None
            else structs.replace(
                old,
                # A pool of GPUs near several cells is near none.
                parent=old.parent if old.parent == new.parent else self._root,
                functions=(*old.functions, *new.functions),
                parents=(*old.parents, *new.parents),
                traits=old.traits | new.traits,
            )
        )

    def _cell_of(self, function: PciFunction) -> ProviderId:
        return self._cells.get(function.numa_node, self._root)


# Storage pools and networks of libvirt as pools that the host shares with others: gigabytes of disk, and addresses.
#
# Usually the compute reports such a pool, for the hosts of its cell. One that several cells share belongs to none of them: an operator
# makes its provider in placement, and the hosts only join the aggregate with it.


DISK, ADDRESS = "DISK_GB", "IPV4_ADDRESS"
_KIB_PER_GB = 1024**2
# Pools whose volumes are files in a folder.
_OF_FILES = ("dir", "fs", "netfs")
_WRITTEN = re.compile(
    r"(?P<name>[\w.-]{1,100})(?:=(?P<aggregate>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}))?(?:@(?P<hosts>[^\s,=@]+))?",
    re.ASCII,
)


class SharingOffer(NamedTuple):
    """A storage pool or a network, by libvirt's name, that the hosts share whose names match `hosts`."""

    name: str
    aggregate: AggregateId | None = None
    hosts: str = "*"


class SharedPool(Struct, frozen=True):
    """A storage pool or a network as a host sees it. `pool` is None if this compute does not report it.

    `path` is the folder of the storage pool.
    """

    name: str
    resource: str
    aggregate: AggregateId
    pool: Pool | None = None
    path: str = ""

    @property
    def provider(self) -> ProviderId | None:
        return None if self.pool is None else tree_of_pool(self.pool).root


def read_sharing(texts: Iterable[str], field: str) -> tuple[SharingOffer, ...]:
    form = (
        "NAME, as libvirt calls it; behind it =AGGREGATE, the id of an aggregate whose provider another one reports, and @HOSTS, a "
        "pattern of the hosts that share it"
    )
    found = [parts_of(text, field, _WRITTEN, form) for text in texts]
    check_once([each["name"] for each in found], field)
    return tuple(
        [
            SharingOffer(
                each["name"],
                AggregateId(UUID(each["aggregate"])) if each["aggregate"] else None,
                each["hosts"] or "*",
            )
            for each in found
        ]
    )


def shared_with(offers: Iterable[SharingOffer], host: str) -> list[SharingOffer]:
    return [each for each in offers if fnmatchcase(host, each.hosts)]


def shared_storage(text: str, offer: SharingOffer, cell: str) -> SharedPool:
    """The whole capacity of an offered storage pool, in whole gigabytes. Raises BadXmlError if its disks are no files, or its size is
    not known.
    """
    found = read_xml(text, "pool")
    name, kind = text_at(found, "name"), found.get("type", "")
    if kind not in _OF_FILES:
        raise BadXmlError(f"the storage pool {name!r} has the type {kind!r}, must be {', '.join(_OF_FILES)}")
    total = kib_in(child(found, "capacity"), "bytes") // _KIB_PER_GB
    if not total:
        raise BadXmlError(f"the storage pool {name!r} has less than 1 GiB: is it started?")
    return _shared(offer, Pool(f"{cell}-{name}", DISK, total, offer.hosts), text_at(found, "target/path"))


def shared_network(text: str, offer: SharingOffer, cell: str) -> SharedPool:
    """The addresses that an offered network gives its guests by DHCP."""
    found = read_xml(text, "network")
    name, total = text_at(found, "name"), sum(map(_addresses, found.findall("ip/dhcp/range")))
    if not total:
        raise BadXmlError(f"the network {name!r} has no range of IPv4 addresses for DHCP")
    return _shared(offer, Pool(f"{cell}-{name}", ADDRESS, total, offer.hosts))


def _shared(offer: SharingOffer, pool: Pool, path: str = "") -> SharedPool:
    if offer.aggregate is not None:
        return SharedPool(offer.name, pool.resource, offer.aggregate, None, path)
    return SharedPool(offer.name, pool.resource, aggregate_of(pool), pool, path)


def claimed_of(shared: Sequence[SharedPool], share: Share, resource: str) -> list[SharedPool]:
    """The pools that give something of this class to a share. A provider that is none of the known ones is that of an aggregate."""
    known = {each.provider: each for each in shared if each.resource == resource}
    providers = [
        each.provider for each in share.amounts if each.resource == resource and each.provider != share.host
    ]
    found = [known.get(each, known.get(None)) for each in providers]
    return [each for each in found if each is not None]


def _addresses(range_: Element) -> int:
    """How many addresses are in a range; a range of IPv6 has none."""
    start, end = attribute(range_, "start"), attribute(range_, "end")
    if ":" in start:
        return 0
    try:
        return int(IPv4Address(end)) - int(IPv4Address(start)) + 1
    except AddressValueError:
        raise BadXmlError(f"<range> is from {start!r} to {end!r}, must be IPv4 addresses") from None


class OfferedCell(Struct, frozen=True, kw_only=True):
    """A cell of the host, and what is offered of it. `number` is None if it is the whole host, which is flat then.

    `memory_mb` is in small pages. `outside_mb` is the memory in small pages that the machine has and the host does not offer.
    """

    provider: ProviderId
    number: int | None
    shared: tuple[int, ...] = ()
    dedicated: tuple[int, ...] = ()
    memory_mb: int = 0
    outside_mb: int = 0
    huge_pages: tuple[HugePages, ...] = ()


class HostLayout(Struct, frozen=True, kw_only=True):
    root: ProviderId
    machine: Machine
    offer: HostOffer
    cells: tuple[OfferedCell, ...]
    devices: tuple[OfferedDevices, ...] = ()
    functions: tuple[PciFunction, ...] = ()
    # Mediated devices that exist now.
    mediated: tuple[MediatedDevice, ...] = ()
    # Storage pools and networks that others share with this host.
    shared: tuple[SharedPool, ...] = ()

    @property
    def pooled(self) -> frozenset[str]:
        """The resource classes that pools share with this host."""
        return frozenset([each.resource for each in self.shared])

    @property
    def joins(self) -> frozenset[AggregateId]:
        return frozenset([each.aggregate for each in self.shared])

    @property
    def is_flat(self) -> bool:
        return self.cells[0].number is None


def layout_of(
    root: ProviderId,
    machine: Machine,
    offer: HostOffer,
    *,
    devices: NodeDevices | None = None,
    shared: Iterable[SharedPool] = (),
) -> HostLayout:
    """The layout of a host. Raises ValueError if the offer names what the machine does not have."""
    found = devices or NodeDevices()
    cells = _offered_cells(root, machine, offer)
    parents = {cell.number: cell.provider for cell in cells if cell.number is not None}
    return HostLayout(
        root=root,
        machine=machine,
        offer=offer,
        cells=cells,
        devices=device_layout(root, offer, found, parents),
        functions=found.functions,
        mediated=found.mediated,
        shared=tuple(shared),
    )


def _offered_cells(root: ProviderId, machine: Machine, offer: HostOffer) -> tuple[OfferedCell, ...]:
    shared = _shared_cpus(machine, offer)
    if offer.flat or not machine.has_cells:
        return (_whole_host(root, machine, offer, shared),)
    # A cell none of whose CPUs is offered belongs to somebody else: its memory is not offered either.
    chosen = [cell for cell in machine.cells if (shared | offer.cpus_dedicated).intersection(cell.cpus)]
    memory = _limited([cell.small_pages_mb for cell in chosen], offer.memory_mb)
    return tuple(
        OfferedCell(
            provider=ProviderId(uuid5(root, f"numa-{cell.number}")),
            number=cell.number,
            shared=tuple(sorted(shared.intersection(cell.cpus))),
            dedicated=tuple(sorted(offer.cpus_dedicated.intersection(cell.cpus))),
            memory_mb=memory_mb,
            outside_mb=cell.small_pages_mb - memory_mb,
            huge_pages=cell.huge_pages,
        )
        for cell, memory_mb in zip(chosen, memory, strict=True)
    )


def _whole_host(root: ProviderId, machine: Machine, offer: HostOffer, shared: frozenset[int]) -> OfferedCell:
    total = sum(cell.small_pages_mb for cell in machine.cells)
    sizes = sorted({pages.kib for cell in machine.cells for pages in cell.huge_pages})
    counts = {
        kib: sum(pages.count for cell in machine.cells for pages in cell.huge_pages if pages.kib == kib)
        for kib in sizes
    }
    memory_mb = _limited([total], offer.memory_mb)[0]
    return OfferedCell(
        provider=root,
        number=None,
        shared=tuple(sorted(shared)),
        dedicated=tuple(sorted(offer.cpus_dedicated)),
        memory_mb=memory_mb,
        outside_mb=total - memory_mb,
        huge_pages=tuple(HugePages(kib, count) for kib, count in counts.items()),
    )


def _shared_cpus(machine: Machine, offer: HostOffer) -> frozenset[int]:
    """The shared CPUs that are offered, after a check of all that the offer names."""
    for field, cpus in (("cpus_dedicated", offer.cpus_dedicated), ("cpus_shared", offer.cpus_shared)):
        if missing := (cpus or frozenset()) - machine.cpus:
            raise ValueError(
                f"{field} has {cpus_in_words(missing)}, which this machine does not have: it has {cpus_in_words(machine.cpus)}"
            )
    if offer.cpus_shared is None:
        return machine.cpus - offer.cpus_dedicated
    if both := offer.cpus_shared & offer.cpus_dedicated:
        raise ValueError(f"cpus_shared and cpus_dedicated both have {cpus_in_words(both)}")
    if not offer.cpus_shared | offer.cpus_dedicated:
        raise ValueError("cpus_shared and cpus_dedicated are empty: the host would offer no CPU")
    return offer.cpus_shared


def _limited(parts: Sequence[int], limit: int | None) -> list[int]:
    """These amounts, reduced in proportion so that their sum is the limit at most."""
    total = sum(parts)
    if limit is None or limit >= total:
        return list(parts)
    return in_proportion(limit, parts)


def in_proportion(amount: int, sizes: Sequence[int]) -> list[int]:
    """This amount divided over parts of these sizes. The sum is exact, and no part gets more than its size if all have room."""
    total = sum(sizes)
    given, so_far, done = [], 0, 0
    for size in sizes:
        so_far += size
        upto = amount * so_far // total if total else 0
        given.append(upto - done)
        done = upto
    return given
