"""The devices of a machine, as libvirt's node devices describe them: PCI functions, and mediated devices that exist."""

import re
from collections.abc import Iterable
from uuid import UUID
from xml.etree.ElementTree import Element

from msgspec import Struct, structs

from compute_sim.libvirt.core.xml_reading import (
    attribute,
    child,
    number_in,
    pci_address,
    read_xml,
    text_at,
    uuid_in,
)

# The base class of network controllers in PCI.
_NETWORK = 0x02
_UUID_IN_NAME = re.compile(r"mdev_([0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})(?:_.*)?", re.ASCII)


class MediatedType(Struct, frozen=True):
    """A type of mediated devices that a function can make, and how many more of them it can make now."""

    name: str
    available: int
    title: str = ""


class PciFunction(Struct, frozen=True, kw_only=True):
    """A PCI function. `numa_node` is -1 if it is near no cell. `physical` is the address of the physical function if this is a
    virtual one, and `virtual` are the addresses of its virtual functions if it is a physical one.
    """

    address: str
    vendor: str
    product: str
    numa_node: int = -1
    is_network: bool = False
    physical: str = ""
    virtual: tuple[str, ...] = ()
    mediated_types: tuple[MediatedType, ...] = ()
    # Its name among node devices, such as pci_0000_81_00_0.
    node_device: str = ""

    @property
    def resource(self) -> str:
        """The resource class of such functions, named as Nova names them."""
        return f"CUSTOM_PCI_{self.vendor.upper()}_{self.product.upper()}"


class MediatedDevice(Struct, frozen=True):
    """A mediated device that exists on the machine; `parent` is the address of the function that it was made from."""

    uuid: UUID
    type: str
    parent: str


class NodeDevices(Struct, frozen=True):
    functions: tuple[PciFunction, ...] = ()
    mediated: tuple[MediatedDevice, ...] = ()


def read_node_devices(texts: Iterable[str]) -> NodeDevices:
    """What these descriptions of node devices say of PCI functions and mediated devices; others are left out."""
    functions: dict[str, PciFunction] = {}
    mediated: list[tuple[UUID, str, str]] = []
    networks: set[str] = set()
    for text in texts:
        device = read_xml(text, "device")
        for capability in device.findall("capability"):
            match capability.get("type"):
                case "pci":
                    function = _read_function(device, capability)
                    functions[function.node_device] = function
                case "mdev":
                    mediated.append(_read_mediated(device, capability))
                case "net":
                    networks.add(text_at(device, "parent"))
    return NodeDevices(
        functions=tuple(
            sorted(
                (_as_network(each, networks) for each in functions.values()), key=lambda each: each.address
            )
        ),
        mediated=tuple(
            sorted(
                (
                    MediatedDevice(uuid, type_, functions[parent].address)
                    for uuid, type_, parent in mediated
                    if parent in functions
                ),
                key=lambda each: each.uuid,
            )
        ),
    )


def _as_network(function: PciFunction, networks: set[str]) -> PciFunction:
    """A function whose child is a network interface is a network card, whatever its class says."""
    return structs.replace(function, is_network=True) if function.node_device in networks else function


def _read_function(device: Element, capability: Element) -> PciFunction:
    numa = capability.find("numa")
    inner = {each.get("type"): each for each in capability.findall("capability")}
    physical = inner.get("phys_function")
    virtual = inner.get("virt_functions")
    types = inner.get("mdev_types")
    return PciFunction(
        address=_own_address(capability),
        vendor=_id_of(capability, "vendor"),
        product=_id_of(capability, "product"),
        numa_node=-1 if numa is None else number_in(numa.get("node"), numa, "the node"),
        is_network=_pci_class(capability) >> 16 == _NETWORK,
        physical="" if physical is None else pci_address(child(physical, "address")),
        virtual=() if virtual is None else tuple(map(pci_address, virtual.findall("address"))),
        mediated_types=() if types is None else tuple(map(_read_type, types.findall("type"))),
        node_device=text_at(device, "name"),
    )


def _own_address(capability: Element) -> str:
    domain, bus, slot, function = (
        number_in(child(capability, name).text, capability, f"the {name}")
        for name in ("domain", "bus", "slot", "function")
    )
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


def _id_of(capability: Element, name: str) -> str:
    """The id of a vendor or product, as four hexadecimal digits."""
    element = child(capability, name)
    return f"{number_in(attribute(element, 'id'), element, 'the id'):04x}"


def _pci_class(capability: Element) -> int:
    text = text_at(capability, "class")
    return number_in(text, capability, "the class") if text else 0


def _read_type(element: Element) -> MediatedType:
    available = child(element, "availableInstances")
    return MediatedType(
        name=attribute(element, "id"),
        available=number_in(available.text, available, "the count"),
        title=text_at(element, "name"),
    )


def _read_mediated(device: Element, capability: Element) -> tuple[UUID, str, str]:
    """The uuid, the type and the parent's name. Before libvirt 7.3 only the device's name has the uuid."""
    name = text_at(device, "name")
    written = text_at(capability, "uuid")
    if not written and (found := _UUID_IN_NAME.fullmatch(name)):
        written = found[1].replace("_", "-")
    uuid = uuid_in(written, device)
    return uuid, attribute(child(capability, "type"), "id"), text_at(device, "parent")
