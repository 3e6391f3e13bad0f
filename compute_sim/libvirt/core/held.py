"""Reads a domain back: the plan of a guest of ours, or what a foreign guest takes of the machine.

libvirt adds much to a domain (addresses, aliases, defaults). Only those of its elements are read that a plan has written.
"""

from collections.abc import Mapping
from typing import Literal, cast
from uuid import UUID
from xml.etree.ElementTree import Element

from compute_sim.libvirt.core.domain_metadata import GuestMetadata, read_metadata
from compute_sim.libvirt.core.plans import (
    CpuTopology,
    DomainCell,
    ForeignGuest,
    ForeignMemory,
    GuestDisk,
    GuestNic,
    GuestPlan,
    PlannedFunction,
    PlannedMediated,
)
from compute_sim.libvirt.core.xml_reading import (
    attribute,
    child,
    cpus_in,
    kib_in,
    number_in,
    pci_address,
    read_xml,
    text_at,
    uuid_in,
)


def held_by(text: str) -> GuestPlan | ForeignGuest:
    """The plan that this domain was made from, or what it takes if it is none of ours.

    The plan of a running domain is in its inactive description: the live one has another CPU mode, for example.
    """
    domain = read_xml(text, "domain")
    metadata = read_metadata(domain)
    return _foreign(domain) if metadata is None else _plan(domain, metadata)


def as_foreign(text: str) -> ForeignGuest:
    """What a domain takes of the machine, if it is a guest of another compute there."""
    return _foreign(read_xml(text, "domain"))


def emulator_of(text: str) -> tuple[int, ...]:
    """The CPUs that the emulator's threads are pinned to; empty if they may run anywhere."""
    return _cpus(read_xml(text, "domain").find("cputune/emulatorpin"))


def _plan(domain: Element, ours: GuestMetadata) -> GuestPlan:
    cells = _cells(domain)
    type_ = child(domain, "os/type")
    return GuestPlan(
        instance=ours.instance,
        attempt=ours.attempt,
        cell=ours.cell,
        share=ours.share,
        name=ours.name,
        project=ours.project,
        domain=domain.findtext("name") or "",
        domain_type=attribute(domain, "type"),
        arch=attribute(type_, "arch"),
        machine_type=type_.get("machine", ""),
        cpu_mode=_cpu_mode(domain),
        memory_mb=kib_in(child(domain, "memory")) // 1024,
        page_kib=_page_kib(domain),
        pins=_pins(domain),
        dedicated=ours.dedicated,
        emulator=_cpus(domain.find("cputune/emulatorpin")),
        memory_cells=() if cells else _cpus(domain.find("numatune/memory"), "nodeset"),
        cells=cells,
        topology=_topology(domain.find("cpu/topology")),
        functions=_functions(domain),
        mediated=tuple(ours.mediated.get(uuid) or _unknown(uuid) for uuid in _mediated(domain)),
        disks=tuple(map(_disk, domain.findall("devices/disk"))),
        nics=_nics(domain),
        kernel=domain.findtext("os/kernel") or "",
        ramdisk=domain.findtext("os/initrd") or "",
        cmdline=domain.findtext("os/cmdline") or "",
        firmware=_firmware(domain),
        video=_video(domain),
        console_log=_console_log(domain),
    )


def _foreign(domain: Element) -> ForeignGuest:
    return ForeignGuest(
        name=text_at(domain, "name"),
        uuid=uuid_in(text_at(domain, "uuid"), domain),
        pins=_pins(domain),
        memory=_memory(domain),
        functions=tuple(each.address for each in _functions(domain)),
        mediated=tuple(_mediated(domain)),
        macs=tuple(attribute(each, "address") for each in domain.findall("devices/interface/mac")),
    )


def _unknown(uuid: UUID) -> PlannedMediated:
    """A device that was added to the domain by hand."""
    return PlannedMediated(uuid, "", "")


def _pins(domain: Element) -> tuple[tuple[int, ...], ...]:
    vcpu = domain.find("vcpu")
    count = 1 if vcpu is None else number_in(vcpu.text, vcpu, "the count")
    anywhere = _cpus(vcpu)
    pinned = {
        number_in(attribute(each, "vcpu"), each, "the vcpu"): _cpus(each)
        for each in domain.findall("cputune/vcpupin")
    }
    return tuple(pinned.get(number, anywhere) for number in range(count))


def _cpus(element: Element | None, name: str = "cpuset") -> tuple[int, ...]:
    return () if element is None else cpus_in(element, name)


def _cells(domain: Element) -> tuple[DomainCell, ...]:
    nodes = _host_cells(domain)
    return tuple(
        DomainCell(_cpus(cell, "cpus"), _cell_mb(cell), nodes.get(number))
        for number, cell in enumerate(domain.findall("cpu/numa/cell"))
    )


def _host_cells(domain: Element) -> Mapping[int, int]:
    """The host's cell of each of the guest's, where it has exactly one."""
    found = {
        number_in(attribute(each, "cellid"), each, "the cellid"): _cpus(each, "nodeset")
        for each in domain.findall("numatune/memnode")
    }
    return {number: nodes[0] for number, nodes in found.items() if len(nodes) == 1}


def _cell_mb(cell: Element) -> int:
    amount = Element("memory", unit=cell.get("unit", "KiB"))
    amount.text = attribute(cell, "memory")
    return kib_in(amount) // 1024


def _page_kib(domain: Element) -> int:
    page = domain.find("memoryBacking/hugepages/page")
    if page is None:
        return 0
    size = Element("page", unit=page.get("unit", "KiB"))
    size.text = attribute(page, "size")
    return kib_in(size)


def _memory(domain: Element) -> tuple[ForeignMemory, ...]:
    kib = _page_kib(domain)
    cells = _cells(domain)
    if cells and all(cell.host_cell is not None for cell in cells):
        return tuple(
            ForeignMemory(cell.memory_mb, kib, (cell.host_cell,))
            for cell in cells
            if cell.host_cell is not None
        )
    memory = domain.find("memory")
    where = _cpus(domain.find("numatune/memory"), "nodeset")
    return () if memory is None else (ForeignMemory(-(-kib_in(memory) // 1024), kib, where),)


def _topology(element: Element | None) -> CpuTopology | None:
    if element is None:
        return None
    sockets, cores, threads = (
        number_in(attribute(element, name), element, name) for name in ("sockets", "cores", "threads")
    )
    return CpuTopology(sockets, cores, threads)


def _cpu_mode(domain: Element) -> Literal["", "host-model", "host-passthrough"]:
    cpu = domain.find("cpu")
    mode = "" if cpu is None else cpu.get("mode", "")
    # A running domain has the model that host-model stood for.
    return cast("Literal['host-model', 'host-passthrough']", mode) if mode.startswith("host-") else ""


def _firmware(domain: Element) -> Literal["", "efi"]:
    return "efi" if child(domain, "os").get("firmware") == "efi" else ""


def _functions(domain: Element) -> tuple[PlannedFunction, ...]:
    found = []
    for device in domain.findall("devices/*"):
        address = device.find("source/address")
        if address is None or address.get("domain") is None:
            continue
        if device.tag == "hostdev":
            found.append(PlannedFunction(pci_address(address)))
        elif device.tag == "interface" and device.get("type") == "hostdev":
            tag = device.find("vlan/tag")
            vlan = 0 if tag is None else number_in(attribute(tag, "id"), tag, "the id")
            found.append(
                PlannedFunction(pci_address(address), attribute(child(device, "mac"), "address"), vlan)
            )
    return tuple(found)


def _mediated(domain: Element) -> list[UUID]:
    return [
        uuid_in(attribute(child(device, "source/address"), "uuid"), device)
        for device in domain.findall("devices/hostdev")
        if device.get("type") == "mdev"
    ]


def _disk(disk: Element) -> GuestDisk:
    source, driver, target = disk.find("source"), disk.find("driver"), disk.find("target")
    format_ = "raw" if driver is not None and driver.get("type") == "raw" else "qcow2"
    return GuestDisk(
        path="" if source is None else source.get("file", ""),
        format=cast("Literal['qcow2', 'raw']", format_),
        device="cdrom" if disk.get("device") == "cdrom" else "disk",
        bus="" if target is None else target.get("bus", ""),
    )


def _nics(domain: Element) -> tuple[GuestNic, ...]:
    found = []
    for each in domain.findall("devices/interface"):
        kind = each.get("type")
        if kind not in ("network", "bridge"):
            continue
        model = each.find("model")
        found.append(
            GuestNic(
                mac=attribute(child(each, "mac"), "address"),
                source=attribute(child(each, "source"), kind),
                kind=cast("Literal['network', 'bridge']", kind),
                model="" if model is None else model.get("type", ""),
            )
        )
    return tuple(found)


def _video(domain: Element) -> str:
    model = domain.find("devices/video/model")
    return "" if model is None else model.get("type", "")


def _console_log(domain: Element) -> str:
    serial = domain.find("devices/serial[@type='file']/source")
    return "" if serial is None else serial.get("path", "")
