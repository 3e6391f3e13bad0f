"""The settings of a compute whose hosts are machines with libvirt."""

import re
import shutil
import socket
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal, Self
from uuid import UUID, uuid5

from msgspec import Meta, Struct, structs

from compute_sim.core.hosts import check_once, parts_of, read_networks
from compute_sim.libvirt.core.layout import (
    HostOffer,
    read_devices,
    read_mediated,
    read_pages,
    read_sharing,
)
from compute_sim.libvirt.core.machine import read_cpus
from engine.inventories import INTEGER_MAX, ProviderId, Ratio
from engine.places import why_no_place
from kit.settings import CountOr0, Seconds, Section
from kit.urls import PORT_MAX

_HOST = re.compile(r"(?:(?P<name>[\w.-]{1,100})=)?(?P<uri>[\w+]+://\S*)", re.ASCII)
_TRAIT = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}", re.ASCII)
# The root provider's id is derived from the host's name.
_HOSTS = UUID("4f2b7f57-64a0-4c0e-9d5b-6e6c3b0a7d11")
GIB = 1024**3


# Which servers a compute downloads from: those that the operator names, at public addresses or in networks that the operator names. Pure.
#
# The name in a URL says little of where a connection leads. So the URL is checked against the servers, and each address that the
# name has against the networks; a redirect is checked like the first URL.


Network = IPv4Network | IPv6Network
_PORTS = {"http": 80, "https": 443}
_SERVER = re.compile(
    r"(https?)://(\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.ASCII
)
_UNICAST = ip_network("2000::/3")
# Python counts these as public. Behind 2002::/16 are IPv4 addresses of any kind, and the first is Azure's service for its guests.
_NOT_PUBLIC = tuple(
    [
        ip_network(each)
        for each in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2002::/16", "3fff::/20")
    ]
)


class ImageServer(Struct, frozen=True):
    """Servers that a setting names. `host` is a name or an address, `*.NAME` for all names below one, or `*` for all."""

    scheme: str
    host: str
    port: int

    def has(self, scheme: str, host: str, port: int | None) -> bool:
        """Is this host, as a URL names it, one of these servers?"""
        if (scheme, port or _PORTS.get(scheme)) != (self.scheme, self.port):
            return False
        if self.host.startswith("*"):
            return host.endswith(self.host[1:])
        return _plain(host) == self.host


def read_servers(texts: Sequence[str]) -> tuple[ImageServer, ...]:
    """The servers of `image_servers`. Raises ValueError, which names the wrong one."""
    found = []
    for text in texts:
        match = _SERVER.fullmatch(text.lower())
        port = int(match[3] or _PORTS[match[1]]) if match else 0
        if match is None or not 1 <= port <= PORT_MAX:
            raise ValueError(
                f"image_servers has {text!r}, must be SCHEME://HOST[:PORT] with http or https, a name, *.NAME, * or an address, and a port of at most {PORT_MAX}"
            )
        found.append(ImageServer(match[1], _plain(match[2].strip("[]")), port))
    return tuple(found)


def read_server_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """The networks of `image_networks`. Raises ValueError, which names the wrong one."""
    found = []
    for text in texts:
        try:
            found.append(ip_network(text))
        except ValueError as wrong:
            raise ValueError(
                f"image_networks has {text!r}, must be a network such as 10.3.0.0/16: {wrong}"
            ) from None
    return tuple(found)


def may_connect(server: ImageServer, address: str, networks: Sequence[Network]) -> bool:
    """May this address of the server be connected to? It is named itself, public, or in one of these networks."""
    found = ip_address(address)
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    if str(found) == server.host or any(found in each for each in networks):
        return True
    if isinstance(found, IPv6Address) and found not in _UNICAST:
        return False
    return found.is_global and not (found.is_multicast or any(found in each for each in _NOT_PUBLIC))


def _plain(host: str) -> str:
    """The host without a last dot; an address as it is written shortest."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.rstrip(".")


class LibvirtHost(Struct, frozen=True):
    """A host, and the URI of its libvirt."""

    name: str
    uri: str

    @property
    def root(self) -> ProviderId:
        return ProviderId(uuid5(_HOSTS, self.name))


class LibvirtSettings(Struct, frozen=True):
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="The hosts, each as NAME=URI with the URI of its libvirt, as virsh takes it; or a URI alone, whose host has the name of this "
            "machine. Several must reach the folder at the same path, and each offers the same share of its machine.",
            extra={"flag": "--uri", "metavar": "[NAME=]URI,..."},
        ),
    ] = ("qemu:///system",)
    folder: Annotated[
        str,
        Meta(
            description="The folder of images, and of the instances' disks and consoles. The hypervisor must be able to come there. In `images` are the images that requests name by an id: public ones, and below it those of projects (projects/PROJECT), where an offload saves its image."
        ),
    ] = "/var/lib/moorage/libvirt"
    image_servers: Annotated[
        tuple[str, ...],
        Meta(
            description="The servers that URLs of images, kernels and config drives may lead to, redirects too: each as SCHEME://HOST[:PORT] with http or https, "
            "and a name, *.NAME, * for all, or an address. Empty: nothing is downloaded."
        ),
    ] = ()
    image_networks: Annotated[
        tuple[str, ...],
        Meta(
            description="The networks in which these servers may be, such as 10.3.0.0/16, beside public addresses and those that image_servers names."
        ),
    ] = ()
    domain_type: Annotated[
        Literal["auto", "kvm", "qemu", "test"],
        Meta(
            description="The type of the domains. auto: kvm if the machine has it, else qemu (slow). test: for libvirt's test driver."
        ),
    ] = "auto"
    cpu_mode: Annotated[
        Literal["default", "host-model", "host-passthrough"],
        Meta(
            description="The CPU of the guests, as libvirt names the modes. The more of the host's CPU they see, the faster they are, and the fewer hosts "
            "can take them live."
        ),
    ] = "default"
    network: Annotated[
        str,
        Meta(
            description="The network of libvirt on which each guest has a network card. Empty: none, and guests have only the devices of their claims."
        ),
    ] = ""
    flat: Annotated[
        bool,
        Meta(
            description="Report all CPUs and memory on the host itself, and no NUMA cells. Simpler trees, but no pinning and no huge pages."
        ),
    ] = False
    cpus_shared: Annotated[
        str,
        Meta(
            description="The CPUs whose time guests share, such as 2-15,^8; the share of the machine that this host offers. Empty: all that are not dedicated."
        ),
    ] = ""
    cpus_dedicated: Annotated[
        str,
        Meta(description="The CPUs that are each given to one guest alone. Empty: none."),
    ] = ""
    memory_mb: Annotated[
        CountOr0,
        Meta(
            description="How much memory in small pages this host offers; 0: all of the machine. Two computes on one machine offer a part each."
        ),
    ] = 0
    memory_reserved_mb: Annotated[
        CountOr0,
        Meta(description="So much of the offered memory is reserved for the machine itself."),
    ] = 512
    disk_gb: Annotated[
        CountOr0,
        Meta(
            description="How much disk this host offers; 0: the size of the file system of folder. Two computes on one disk offer a part each."
        ),
    ] = 0
    images_gb: Annotated[
        CountOr0,
        Meta(
            description="How much disk the cached images may take; each host keeps so much of its disk_gb from guests. 0: a tenth of disk_gb, at least 1. "
            "A project may have half of what the others leave of it."
        ),
    ] = 0
    cpu_ratio: Annotated[
        Ratio,
        Meta(
            description="How often the shared CPUs are given out. Higher has more guests, which wait longer for the CPU."
        ),
    ] = 4.0
    memory_ratio: Annotated[
        Ratio, Meta(description="How often the memory is given out. More than 1 needs swap.")
    ] = 1.0
    disk_ratio: Annotated[
        Ratio,
        Meta(
            description="How often the disk is given out. More than 1: disks that fill up stop their guests."
        ),
    ] = 1.0
    pages_reserved: Annotated[
        tuple[str, ...],
        Meta(description="Huge pages that are kept from guests, each as CELL:KIB=COUNT."),
    ] = ()
    devices: Annotated[
        tuple[str, ...],
        Meta(
            description="PCI functions for guests, each as VENDOR:PRODUCT, VENDOR:PRODUCT@ADDRESS with a pattern, and =NETWORK behind for ports of a network. "
            "A card is named whole, or by its virtual functions."
        ),
    ] = ()
    mediated_types: Annotated[
        tuple[str, ...],
        Meta(
            description="Types of mediated devices (vGPUs), each as TYPE, TYPE@ADDRESS, and =POOL behind; one type for each GPU."
        ),
    ] = ()
    storage_pools: Annotated[
        tuple[str, ...],
        Meta(
            description="Storage pools of libvirt that hosts share, each as NAME[=AGGREGATE][@HOSTS]. Guests have their disks there, and such a host has no "
            "DISK_GB itself."
        ),
    ] = ()
    shared_networks: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks of libvirt whose addresses hosts share, each as NAME[=AGGREGATE][@HOSTS]. A guest that claims IPV4_ADDRESS of one has a "
            "network card there."
        ),
    ] = ()
    traits: Annotated[
        tuple[str, ...],
        Meta(description="More traits of the host, CUSTOM_..."),
    ] = ()
    availability_zone: Annotated[str, Meta(description="The availability zone of the hosts.")] = ""
    places: Annotated[
        tuple[str, ...],
        Meta(
            description="Where hosts are: their domains, the largest first, each as HOST=PLACE such as a=dc1/hall2/row7/rack3, or a PLACE alone for all others."
        ),
    ] = ()
    stop_s: Annotated[
        Seconds,
        Meta(
            description="How long a guest may take to shut down when it is stopped, before it is switched off. Longer loses less in guests that are slow."
        ),
    ] = 60.0

    def __post_init__(self) -> None:
        self.all_hosts()
        # Settings are read on the event loop, too: the folder's file system may hang.
        self._offer(LibvirtHost("check", ""), "kvm", self.disk_gb)
        self._place_of("")
        read_sharing(self.storage_pools, "storage_pools")
        read_sharing(self.shared_networks, "shared_networks")
        read_servers(self.image_servers)
        read_server_networks(self.image_networks)
        for trait in self.traits:
            if not _TRAIT.fullmatch(trait):
                raise ValueError(f"traits has {trait!r}, must be CUSTOM_ and capital letters, digits and _")
        if not Path(self.folder).is_absolute():
            raise ValueError(f"folder is {self.folder!r}, must be an absolute path")

    def all_hosts(self) -> tuple[LibvirtHost, ...]:
        found = []
        for text in self.hosts:
            match = parts_of(text, "hosts", _HOST, "NAME=URI such as a=qemu:///system, or a URI alone")
            found.append(LibvirtHost(match["name"] or socket.gethostname(), match["uri"]))
        check_once([each.name for each in found], "hosts")
        return tuple(found)

    @property
    def images_folder(self) -> Path:
        return Path(self.folder) / "images"

    def _offer(self, host: LibvirtHost, domain_type: str, disk_gb: int) -> HostOffer:
        return HostOffer(
            name=host.name,
            flat=self.flat,
            cpus_shared=read_cpus(self.cpus_shared, "cpus_shared") if self.cpus_shared else None,
            cpus_dedicated=read_cpus(self.cpus_dedicated, "cpus_dedicated")
            if self.cpus_dedicated
            else frozenset(),
            memory_mb=self.memory_mb or None,
            memory_reserved_mb=self.memory_reserved_mb,
            disk_gb=disk_gb,
            disk_reserved_gb=min(self.images_gb or max(1, disk_gb // 10), disk_gb),
            cpu_ratio=self.cpu_ratio,
            memory_ratio=self.memory_ratio,
            disk_ratio=self.disk_ratio,
            pages_kept=read_pages(self.pages_reserved),
            devices=read_devices(self.devices),
            mediated=read_mediated(self.mediated_types),
            traits=frozenset(self.traits),
            domain_type=domain_type,
            cpu_mode="" if self.cpu_mode == "default" else self.cpu_mode,
            availability_zone=self.availability_zone,
            place=self._place_of(host.name),
        )

    def _place_of(self, host: str) -> str:
        found: dict[str, str] = {}
        hosts = [each.name for each in self.all_hosts()]
        for text in self.places:
            name, _, place = text.rpartition("=")
            if name and name not in hosts:
                raise ValueError(f"places has {text!r}, and hosts names no {name!r}")
            if why := why_no_place(place):
                raise ValueError(f"places has {text!r}: {why}")
            if found.setdefault(name, place) != place:
                raise ValueError(f"places has two places for {name or 'all other hosts'}")
        return found.get(host, found.get("", ""))


class LibvirtRules(LibvirtSettings, frozen=True):
    """How the parts of a compute work: what the operator may set, and what only tests shorten."""

    # Those of [compute].
    networks: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    # How many instances of a host are built at once, and how many are worked on beside them.
    work_at_once_max: int = 4
    # How often the domains are looked at, since an event of libvirt may be lost.
    look_every_s: float = 10.0
    # How long libvirt or the folder may be away before the host counts as silent: libvirt may be restarted.
    away_s: float = 15.0
    # How long a download may take to begin, and then for each MiB; and in all.
    image_s: float = 30.0
    download_s: float = 1_800.0
    image_bytes_max: int = 100 * GIB
    # How much all cached images may have; 0: as images_gb says.
    images_bytes_max: int = 0
    # How long a cached image is kept that no disk needs.
    images_kept_s: float = 86_400.0

    @classmethod
    def of(cls, settings: LibvirtSettings) -> Self:
        return cls(**structs.asdict(settings))

    def cache_bytes(self) -> int:
        """How much all cached images may have. It may wait for the folder's file system."""
        gb = self.images_gb or max(1, (self.disk_gb or _disk_gb(Path(self.folder))) // 10)
        return self.images_bytes_max or gb * GIB

    def offer(self, host: LibvirtHost, domain_type: str) -> HostOffer:
        """What a host offers of its machine. Raises ValueError, which names the setting, and OSError if the folder cannot be read."""
        offer = self._offer(host, domain_type, self.disk_gb or _disk_gb(Path(self.folder)))
        return structs.replace(offer, networks=read_networks(self.networks))


def _disk_gb(folder: Path) -> int:
    """The size of the file system that has this folder, or will have it."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return min(shutil.disk_usage(there).total // GIB, INTEGER_MAX)


LIBVIRT = Section("libvirt", LibvirtSettings, "computes with libvirt")
