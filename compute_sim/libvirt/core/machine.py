"""A machine as libvirt's capabilities describe it: its cells with their CPUs and memory, its CPU, and what guests may have."""

from collections.abc import Iterable, Mapping
from xml.etree.ElementTree import Element

from msgspec import Struct

from compute_sim.libvirt.core.xml_reading import (
    BadXmlError,
    attribute,
    child,
    cpus_in,
    kib_in,
    number_in,
    read_xml,
    text_at,
)

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
    # In KiB, the smallest first.
    page_sizes: tuple[int, ...] = ()

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
        page_sizes=tuple(sorted(map(_page_kib, cpu.findall("pages")))),
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
    threads = {number_in(cpu.get("id"), cpu, "the id"): _threads_of(cpu) for cpu in cpus}
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


def _threads_of(cpu: Element) -> tuple[int, ...]:
    own = number_in(cpu.get("id"), cpu, "the id")
    return tuple(sorted({*cpus_in(cpu, "siblings"), own}))


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
