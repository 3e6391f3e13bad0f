"""The settings of a compute whose hosts are machines with libvirt."""

import re
import shutil
import socket
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID, uuid5

from msgspec import Meta, Struct

from compute_sim.core.hosts import read_networks
from compute_sim.libvirt.core.guest_hardware import read_server_networks, read_servers
from compute_sim.libvirt.core.layout import read_sharing
from compute_sim.libvirt.core.machine import read_cpus
from compute_sim.libvirt.core.offer import HostOffer, read_devices, read_mediated, read_pages
from engine.inventories import INTEGER_MAX, ProviderId, Ratio
from kit.settings import Bytes, Count, CountOr0, Seconds, Section

_HOST = re.compile(r"(?P<name>[\w.-]{1,100})=(?P<uri>[\w+]+://\S*)", re.ASCII)
_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)
_TRAIT = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}", re.ASCII)
# The root provider's id is derived from the host's name.
_HOSTS = UUID("4f2b7f57-64a0-4c0e-9d5b-6e6c3b0a7d11")
GIB = 1024**3


class LibvirtHost(Struct, frozen=True):
    """A host, and the URI of its libvirt."""

    name: str
    uri: str

    @property
    def root(self) -> ProviderId:
        return ProviderId(uuid5(_HOSTS, self.name))


class LibvirtSettings(Struct, frozen=True):
    uri: Annotated[
        str,
        Meta(
            description="The URI of the machine's libvirt, as virsh takes it.",
            extra={"flag": "--uri", "metavar": "URI"},
        ),
    ] = "qemu:///system"
    name: Annotated[
        str,
        Meta(description="The name of the host. Empty: the machine's host name."),
    ] = ""
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Several hosts, each as NAME=URI, in place of uri and name. The folder must then be reached by all of them at the "
            "same path, and each offers the same share of its machine."
        ),
    ] = ()
    folder: Annotated[
        str,
        Meta(
            description="The folder of cached images and of the instances' disks and consoles. The hypervisor must be able to read and write there."
        ),
    ] = "/var/lib/moorage/libvirt"
    images: Annotated[
        str,
        Meta(
            description="The folder of the images that requests name by an id: public ones, and below it those of projects (projects/PROJECT), where an offload saves its image. Empty: `images` in folder. "
            "Requests may also name URLs of image_servers."
        ),
    ] = ""
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
    cpus_reserved: Annotated[
        CountOr0,
        Meta(description="So many shared CPUs are reserved for the machine itself."),
    ] = 0
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
    disk_reserved_gb: Annotated[
        CountOr0,
        Meta(description="So much of the offered disk is reserved: cached images need it."),
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
    networks: Annotated[
        tuple[str, ...],
        Meta(
            description="Physical networks that the host reaches, as NAME=KILOBITS, for ports with bandwidth."
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
    work_at_once_max: Annotated[
        Count,
        Meta(
            description="How many instances of a host are worked on at once. More builds faster; fewer loads disk and libvirt less."
        ),
    ] = 4
    look_every_s: Annotated[
        Seconds,
        Meta(
            description="How often the domains are looked at, since an event of libvirt may be lost. Shorter finds a lost one sooner, for more CPU."
        ),
    ] = 10.0
    away_s: Annotated[
        Seconds,
        Meta(
            description="How long libvirt or the folder may be away before the host counts as silent. Longer survives a restart of libvirt; shorter chooses other hosts sooner."
        ),
    ] = 15.0
    stop_s: Annotated[
        Seconds,
        Meta(
            description="How long a guest may take to shut down when it is stopped, before it is switched off. Longer loses less in guests that are slow."
        ),
    ] = 60.0
    image_s: Annotated[
        Seconds,
        Meta(
            description="How long a download may take to begin, and then for each MiB. Longer waits for a slow server; shorter takes an alternate sooner."
        ),
    ] = 30.0
    download_s: Annotated[
        Seconds,
        Meta(
            description="How long a download may take in all. Longer has large images come from slow servers; shorter takes an alternate sooner."
        ),
    ] = 1_800.0
    image_bytes_max: Annotated[
        Bytes,
        Meta(description="The largest image that is downloaded. Larger needs more disk."),
    ] = 100 * GIB
    images_kept_s: Annotated[
        Seconds,
        Meta(
            description="How long a cached image is kept that no disk needs. Longer builds sooner; shorter needs less disk."
        ),
    ] = 86_400.0

    def __post_init__(self) -> None:
        self.all_hosts()
        # Settings are read on the event loop, too: the folder's file system may hang.
        self._offer(LibvirtHost("check", ""), "kvm", self.disk_gb)
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
        if not self.hosts:
            name = self.name or socket.gethostname()
            if not _NAME.fullmatch(name):
                raise ValueError(f"name is {name!r}, must be letters, digits, _, . and -, at most 100")
            return (LibvirtHost(name, self.uri),)
        found = []
        for text in self.hosts:
            match = _HOST.fullmatch(text)
            if match is None:
                raise ValueError(f"hosts has {text!r}, must be NAME=URI such as a=qemu:///system")
            found.append(LibvirtHost(match["name"], match["uri"]))
        names = [each.name for each in found]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"hosts has the name {twice!r} twice, each name may be there once")
        return tuple(found)

    @property
    def images_folder(self) -> Path:
        return Path(self.images) if self.images else Path(self.folder) / "images"

    def offer(self, host: LibvirtHost, domain_type: str) -> HostOffer:
        """What a host offers of its machine. Raises ValueError, which names the setting, and OSError if the folder cannot be read."""
        return self._offer(host, domain_type, self.disk_gb or _disk_gb(Path(self.folder)))

    def _offer(self, host: LibvirtHost, domain_type: str, disk_gb: int) -> HostOffer:
        return HostOffer(
            name=host.name,
            flat=self.flat,
            cpus_shared=read_cpus(self.cpus_shared, "cpus_shared") if self.cpus_shared else None,
            cpus_dedicated=read_cpus(self.cpus_dedicated, "cpus_dedicated")
            if self.cpus_dedicated
            else frozenset(),
            cpus_reserved=self.cpus_reserved,
            memory_mb=self.memory_mb or None,
            memory_reserved_mb=self.memory_reserved_mb,
            disk_gb=disk_gb,
            disk_reserved_gb=self.disk_reserved_gb,
            cpu_ratio=self.cpu_ratio,
            memory_ratio=self.memory_ratio,
            disk_ratio=self.disk_ratio,
            pages_kept=read_pages(self.pages_reserved),
            devices=read_devices(self.devices),
            mediated=read_mediated(self.mediated_types),
            networks=read_networks(self.networks),
            traits=frozenset(self.traits),
            domain_type=domain_type,
            cpu_mode="" if self.cpu_mode == "default" else self.cpu_mode,
            availability_zone=self.availability_zone,
        )


def _disk_gb(folder: Path) -> int:
    """The size of the file system that has this folder, or will have it."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return min(shutil.disk_usage(there).total // GIB, INTEGER_MAX)


LIBVIRT = Section("libvirt", LibvirtSettings, "computes with libvirt")
