"""What a driver says of a guest that it is to build."""

from collections.abc import Mapping

from msgspec import Struct

from bus.messages.build import Flavor, InstanceId
from bus.messages.placement import Share
from compute_sim.libvirt.core.plans import GuestDisk, GuestNic


class DirectPort(Struct, frozen=True):
    """A port that is a virtual function of a network card (SRIOV_NET_VF). Ports get the functions of the share in their order."""

    mac: str
    vlan: int = 0
    # The trait of the port's physical network, if it matters which card it gets; and its card as placement chose it.
    network: str = ""


class GuestOrder(Struct, frozen=True, kw_only=True):
    """A guest to build: what its order says, and the files that the driver has made for it.

    The domain is called `domain`, which must be free on the machine.
    """

    instance: InstanceId
    attempt: int
    cell: str
    flavor: Flavor
    share: Share
    domain: str
    name: str = ""
    project: str = ""
    image_properties: Mapping[str, str] = {}
    disks: tuple[GuestDisk, ...] = ()
    nics: tuple[GuestNic, ...] = ()
    direct_ports: tuple[DirectPort, ...] = ()
    kernel: str = ""
    ramdisk: str = ""
    cmdline: str = ""
    console_log: str = ""
    # Used if the image's properties name none; empty: libvirt's default.
    machine_type: str = ""
