"""Which share of a machine a host offers. Two computes on one machine offer different shares of it."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, NoReturn

from msgspec import Struct

from compute_sim.core.hosts import Network
from compute_sim.libvirt.core.machine import PciFunction
from engine.inventories import Ratio

_DEVICE_FORM = (
    "VENDOR:PRODUCT such as 8086:10ed, VENDOR:PRODUCT@ADDRESS with a pattern of addresses such as "
    "8086:10ed@0000:81:*, and =NETWORK after it for ports of this physical network"
)
_DEVICE = re.compile(
    r"(?P<vendor>[0-9a-f]{4}|\*):(?P<product>[0-9a-f]{4}|\*)(@(?P<address>[0-9a-f:.*?\[\]-]{1,40}))?(=(?P<network>[\w-]{1,100}))?",
    re.ASCII,
)
_TYPE_FORM = (
    "TYPE such as nvidia-35, TYPE@ADDRESS with a pattern of the GPUs' addresses, and =POOL after it for one pool of "
    "several GPUs"
)
_TYPE = re.compile(
    r"(?P<type>[\w.-]{1,100})(@(?P<address>[0-9a-f:.*?\[\]-]{1,40}))?(=(?P<pool>[\w-]{1,60}))?", re.ASCII
)
_PAGES_FORM = "CELL:KIB=COUNT such as 0:2048=512"
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
    cpus_reserved: int = 0
    memory_mb: int | None = None
    memory_reserved_mb: int = 512
    disk_gb: int = 0
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

    @property
    def guest_cpu_mode(self) -> Literal["", "host-model", "host-passthrough"]:
        return self.cpu_mode or ("host-model" if self.domain_type == "kvm" else "")


def read_devices(texts: Iterable[str]) -> tuple[DeviceOffer, ...]:
    return tuple(map(_read_device, texts))


def read_mediated(texts: Iterable[str]) -> tuple[MediatedOffer, ...]:
    offers = tuple(map(_read_mediated, texts))
    for pool in sorted({each.pool for each in offers if each.pool}):
        types = dict.fromkeys(each.type for each in offers if each.pool == pool)
        if len(types) > 1:
            raise ValueError(
                f"mediated_types has the pool {pool!r} with {' and '.join(types)}: a pool has one type"
            )
    return offers


def read_pages(texts: Iterable[str]) -> tuple[PagesKept, ...]:
    return tuple(map(_read_pages, texts))


def _read_device(text: str) -> DeviceOffer:
    # Ids and addresses are compared in small letters; a network's name stays as it is.
    device, equals, network = text.partition("=")
    found = _DEVICE.fullmatch(device.lower() + equals + network)
    if found is None:
        _refuse("devices", text, _DEVICE_FORM)
    return DeviceOffer(found["vendor"], found["product"], found["address"] or "*", found["network"] or "")


def _read_mediated(text: str) -> MediatedOffer:
    found = _TYPE.fullmatch(text)
    if found is None:
        _refuse("mediated_types", text, _TYPE_FORM)
    return MediatedOffer(found["type"], found["address"] or "*", found["pool"] or "")


def _read_pages(text: str) -> PagesKept:
    found = _PAGES.fullmatch(text)
    if found is None:
        _refuse("pages_reserved", text, _PAGES_FORM)
    return PagesKept(int(found["cell"]), int(found["kib"]), int(found["count"]))


def _refuse(field: str, text: str, form: str) -> NoReturn:
    raise ValueError(f"{field} has {text!r}, must be {form}")
