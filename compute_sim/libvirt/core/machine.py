"""A machine as libvirt's capabilities describe it: its cells with their CPUs and memory, its CPU, and what guests may have."""

import re
from collections.abc import Iterable, Mapping
from uuid import UUID
from xml.etree.ElementTree import Element, ParseError, fromstring

from msgspec import Struct, structs

# Sets of CPUs as libvirt, the kernel and settings write them: `0-3,8`.


# The kernel's own limit is 8192.
CPU_MAX = 16_383
_PART = re.compile(r"(?P<out>\^?)(?P<first>[0-9]{1,5})(-(?P<last>[0-9]{1,5}))?", re.ASCII)


def read_cpus(text: str, field: str = "cpus") -> frozenset[int]:
    """The CPUs that this text names. Raises ValueError with the field and the part that is wrong."""
    chosen: set[int] = set()
    out: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise ValueError(
                f"{field} has {part.strip()!r}, must be numbers and ranges such as 0-3,8; ^2 takes one out"
            )
        first = int(found["first"])
        last = int(found["last"] or first)
        if last < first or last > CPU_MAX:
            raise ValueError(f"{field} has {part.strip()!r}: a range rises, and ends at {CPU_MAX} or before")
        (out if found["out"] else chosen).update(range(first, last + 1))
    return frozenset(chosen - out)


def cpus_in_words(cpus: Iterable[int]) -> str:
    """The same set as text, with as few ranges as possible; empty for no CPUs."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


# Reads what libvirt writes: each function says what is missing, and in what.


# libvirt's units of memory, in KiB. Without a unit it means KiB in most places.
_KIB = {
    "b": 1 / 1024,
    "bytes": 1 / 1024,
    "KB": 1000 / 1024,
    "k": 1,
    "KiB": 1,
    "MB": 1_000_000 / 1024,
    "M": 1024,
    "MiB": 1024,
    "GB": 1_000_000_000 / 1024,
    "G": 1024**2,
    "GiB": 1024**2,
    "TB": 1_000_000_000_000 / 1024,
    "T": 1024**3,
    "TiB": 1024**3,
}


class BadXmlError(ValueError):
    """libvirt's description is no XML, or has not what it must have."""


def read_xml(text: str, root: str) -> Element:
    """The element at the top of this text, which must be called `root`."""
    try:
        element = fromstring(text)  # noqa: S314 - libvirt wrote it, on this machine
    except ParseError as problem:
        raise BadXmlError(f"libvirt's <{root}> is no XML: {problem}; it begins {text[:60]!r}") from None
    if element.tag != root:
        raise BadXmlError(f"libvirt's XML is a <{element.tag}>, must be a <{root}>")
    return element


def number_in(text: str | None, of: Element, what: str) -> int:
    """An integer, written in decimal or as 0x..."""
    try:
        written = (text or "").strip()
        return int(written, 16 if written.startswith("0x") else 10)
    except ValueError:
        raise BadXmlError(f"<{of.tag}> has {what} {text!r}, must be a number") from None


def uuid_in(text: str, of: Element, what: str = "the uuid") -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise BadXmlError(f"<{of.tag}> has {what} {text!r}, must be a uuid") from None


def cpus_in(element: Element, name: str) -> tuple[int, ...]:
    """The CPUs, or the cells, that an attribute names; none without the attribute."""
    try:
        return tuple(sorted(read_cpus(element.get(name, ""), name)))
    except ValueError as problem:
        raise BadXmlError(f"<{element.tag}> {problem}") from None


def attribute(element: Element, name: str) -> str:
    value = element.get(name)
    if value is None:
        raise BadXmlError(f"<{element.tag}> has no {name}")
    return value


def child(element: Element, path: str) -> Element:
    found = element.find(path)
    if found is None:
        raise BadXmlError(f"<{element.tag}> has no <{path}>")
    return found


def text_at(element: Element, path: str, default: str = "") -> str:
    return (element.findtext(path) or default).strip()


def kib_in(element: Element, default_unit: str = "KiB") -> int:
    """The amount of memory that an element such as <memory unit='KiB'> has."""
    unit = element.get("unit", default_unit)
    if unit not in _KIB:
        raise BadXmlError(f"<{element.tag}> has the unit {unit!r}, must be one of {', '.join(_KIB)}")
    return int(number_in(element.text, element, "the amount") * _KIB[unit])


def pci_address(element: Element) -> str:
    """The address of an element with domain, bus, slot and function, as the kernel writes it: 0000:81:00.1."""
    domain, bus, slot, function = (
        number_in(attribute(element, name), element, name) for name in ("domain", "bus", "slot", "function")
    )
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


# Pages of this size and smaller ones are no huge pages, on any architecture (64 KiB: some kernels of ARM and POWER).
SMALL_PAGE_KIB_MAX = 64


class HugePages(Struct, frozen=True):
    """How many pages of one size a cell has."""

    kib: int
    count: int

    @property
    def mb(self) -> int:
        return self.kib * self.count // 1024


class MachineCell(Struct, frozen=True):
    """A NUMA cell. `threads` are the CPUs that share a core, for each CPU, itself included."""

    number: int
    memory_mb: int
    cpus: tuple[int, ...]
    threads: Mapping[int, tuple[int, ...]]
    huge_pages: tuple[HugePages, ...] = ()

    @property
    def small_pages_mb(self) -> int:
        return max(0, self.memory_mb - sum(pages.mb for pages in self.huge_pages))


class GuestKind(Struct, frozen=True):
    """A kind of guests that the machine can run. `machines` are the machine types, with their short names."""

    arch: str
    os_type: str
    domain_types: tuple[str, ...]
    machines: tuple[str, ...] = ()
    emulator: str = ""


class Machine(Struct, frozen=True, kw_only=True):
    arch: str
    cells: tuple[MachineCell, ...]
    has_cells: bool = True
    cpu_model: str = ""
    cpu_vendor: str = ""
    # What the CPU can do, by libvirt's names.
    cpu_features: tuple[str, ...] = ()
    sockets: int = 1
    cores: int = 1
    threads: int = 1
    guests: tuple[GuestKind, ...] = ()
    # What a guest's CPU has in the mode host-model; the names of devices that guests may have, by kind (`disk.bus`).
    guest_cpu_features: tuple[str, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = {}

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset(cpu for cell in self.cells for cpu in cell.cpus)

    def guest_kind(self, arch: str, domain_type: str) -> GuestKind | None:
        return next(
            (kind for kind in self.guests if kind.arch == arch and domain_type in kind.domain_types), None
        )


def read_machine(
    capabilities: str, domain_capabilities: str = "", expanded_cpu: str = "", memory_mb: int = 0
) -> Machine:
    """The machine that libvirt describes so. If it names no cells, all is in one, with `memory_mb`.

    `expanded_cpu` is the <cpu> that libvirt's baseline of the host's CPU gives with all features of its model written out:
    without it only those count that the capabilities name beside the model.
    """
    top = read_xml(capabilities, "capabilities")
    host = child(top, "host")
    cpu = child(host, "cpu")
    topology = cpu.find("topology")
    expanded = read_xml(expanded_cpu, "cpu") if expanded_cpu else None
    cells = tuple(map(_read_cell, host.findall("topology/cells/cell")))
    guest_cpu, devices = _read_domain_capabilities(domain_capabilities)
    return Machine(
        arch=text_at(cpu, "arch"),
        cells=cells or (_whole(topology, memory_mb),),
        has_cells=bool(cells),
        cpu_model=text_at(cpu, "model"),
        cpu_vendor=text_at(cpu, "vendor"),
        cpu_features=_feature_names((cpu,) if expanded is None else (cpu, expanded)),
        sockets=_topology(topology, "sockets"),
        cores=_topology(topology, "cores"),
        threads=_topology(topology, "threads"),
        guests=tuple(map(_read_guest_kind, top.findall("guest"))),
        guest_cpu_features=guest_cpu,
        devices=devices,
    )


def _whole(topology: Element | None, memory_mb: int) -> MachineCell:
    """A machine without cells. libvirt does not say then which CPUs are threads of one core."""
    count = _topology(topology, "sockets") * _topology(topology, "cores") * _topology(topology, "threads")
    return MachineCell(0, memory_mb, tuple(range(count)), {cpu: (cpu,) for cpu in range(count)})


def _topology(topology: Element | None, name: str) -> int:
    return 1 if topology is None else number_in(topology.get(name, "1"), topology, name)


def _feature_names(cpus: Iterable[Element]) -> tuple[str, ...]:
    """The features that these descriptions of a CPU have; one of them may say of a feature that it is off."""
    found = {
        attribute(feature, "name")
        for cpu in cpus
        for feature in cpu.findall("feature")
        if feature.get("policy", "require") not in {"disable", "forbid"}
    }
    return tuple(sorted(found))


def _read_cell(cell: Element) -> MachineCell:
    number = number_in(cell.get("id"), cell, "the id")
    cpus = cell.findall("cpus/cpu")
    threads = {
        number_in(cpu.get("id"), cpu, "the id"): tuple(
            sorted({*cpus_in(cpu, "siblings"), number_in(cpu.get("id"), cpu, "the id")})
        )
        for cpu in cpus
    }
    memory = cell.find("memory")
    pages = [
        HugePages(size, number_in(each.text, each, "the count"))
        for each in cell.findall("pages")
        if (size := _page_kib(each)) > SMALL_PAGE_KIB_MAX
    ]
    return MachineCell(
        number=number,
        memory_mb=0 if memory is None else kib_in(memory) // 1024,
        cpus=tuple(sorted(threads)),
        threads=threads,
        huge_pages=tuple(sorted((each for each in pages if each.count), key=lambda each: each.kib)),
    )


def _page_kib(pages: Element) -> int:
    if (unit := pages.get("unit", "KiB")) != "KiB":
        raise BadXmlError(f"<pages> has the unit {unit!r}, must be KiB")
    return number_in(pages.get("size"), pages, "the size")


def _read_guest_kind(guest: Element) -> GuestKind:
    arch = child(guest, "arch")
    names = [
        name for machine in arch.iter("machine") for name in (machine.text, machine.get("canonical")) if name
    ]
    return GuestKind(
        arch=attribute(arch, "name"),
        os_type=text_at(guest, "os_type"),
        domain_types=tuple(dict.fromkeys(attribute(each, "type") for each in arch.findall("domain"))),
        machines=tuple(dict.fromkeys(name.strip() for name in names)),
        emulator=text_at(arch, "emulator"),
    )


def _read_domain_capabilities(text: str) -> tuple[tuple[str, ...], Mapping[str, tuple[str, ...]]]:
    if not text:
        return (), {}
    top = read_xml(text, "domainCapabilities")
    models = [mode for mode in top.findall("cpu/mode") if mode.get("name") == "host-model"]
    devices = {
        f"{device.tag}.{attribute(enum, 'name')}": tuple(value.text or "" for value in enum.findall("value"))
        for section in (*top.findall("devices/*"), *top.findall("os"))
        if section.get("supported") == "yes"
        for device in (section, *section.findall("loader"))
        for enum in device.findall("enum")
    }
    return _feature_names(models), devices


# The devices of a machine, as libvirt's node devices describe them: PCI functions, and mediated devices that exist.


# The base class of network controllers in PCI.
_NETWORK = 0x02
_UUID_IN_NAME = re.compile(r"mdev_([0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})(?:_.*)?", re.ASCII)


class MediatedType(Struct, frozen=True):
    """A type of mediated devices that a function can make, and how many more of them it can make now."""

    name: str
    available: int


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
                [
                    # A function whose child is a network interface is a network card, whatever its class says.
                    structs.replace(each, is_network=each.is_network or each.node_device in networks)
                    for each in functions.values()
                ],
                key=lambda each: each.address,
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


def _read_function(device: Element, capability: Element) -> PciFunction:
    numa = capability.find("numa")
    inner = {each.get("type"): each for each in capability.findall("capability")}
    physical = inner.get("phys_function")
    virtual = inner.get("virt_functions")
    types = inner.get("mdev_types")
    return PciFunction(
        address="{:04x}:{:02x}:{:02x}.{:x}".format(
            *(
                number_in(child(capability, name).text, capability, f"the {name}")
                for name in ("domain", "bus", "slot", "function")
            )
        ),
        vendor=_id_of(capability, "vendor"),
        product=_id_of(capability, "product"),
        numa_node=-1 if numa is None else number_in(numa.get("node"), numa, "the node"),
        is_network=number_in(text_at(capability, "class", "0"), capability, "the class") >> 16 == _NETWORK,
        physical="" if physical is None else pci_address(child(physical, "address")),
        virtual=() if virtual is None else tuple(map(pci_address, virtual.findall("address"))),
        mediated_types=() if types is None else tuple(map(_read_type, types.findall("type"))),
        node_device=text_at(device, "name"),
    )


def _id_of(capability: Element, name: str) -> str:
    """The id of a vendor or product, as four hexadecimal digits."""
    element = child(capability, name)
    return f"{number_in(attribute(element, 'id'), element, 'the id'):04x}"


def _read_type(element: Element) -> MediatedType:
    available = child(element, "availableInstances")
    return MediatedType(
        name=attribute(element, "id"),
        available=number_in(available.text, available, "the count"),
    )


def _read_mediated(device: Element, capability: Element) -> tuple[UUID, str, str]:
    """The uuid, the type and the parent's name. Before libvirt 7.3 only the device's name has the uuid."""
    name = text_at(device, "name")
    written = text_at(capability, "uuid")
    if not written and (found := _UUID_IN_NAME.fullmatch(name)):
        written = found[1].replace("_", "-")
    uuid = uuid_in(written, device)
    return uuid, attribute(child(capability, "type"), "id"), text_at(device, "parent")
