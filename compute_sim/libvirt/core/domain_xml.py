"""Writes the domain of a guest: what its plan says, and nothing that libvirt would have to choose."""

from collections import Counter
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from compute_sim.libvirt.core.cpu_ranges import cpus_in_words
from compute_sim.libvirt.core.domain_metadata import GuestMetadata, add_metadata
from compute_sim.libvirt.core.image_asks import X86
from compute_sim.libvirt.core.plans import GuestDisk, GuestPlan, PlannedFunction

_TARGETS = {"virtio": "vd", "scsi": "sd", "sata": "sd", "usb": "sd", "ide": "hd"}


def domain_xml(plan: GuestPlan) -> str:
    """The domain as libvirt defines it; `held.py` reads the plan back from it."""
    domain = Element("domain", type=plan.domain_type)
    _text(domain, "name", plan.domain)
    _text(domain, "uuid", str(plan.instance))
    add_metadata(domain, _metadata(plan))
    _text(domain, "memory", str(plan.memory_mb), unit="MiB")
    _add_memory_backing(domain, plan)
    _add_cpus(domain, plan)
    _add_numatune(domain, plan)
    _add_os(domain, plan)
    if plan.arch in X86:
        features = SubElement(domain, "features")
        SubElement(features, "acpi")
        SubElement(features, "apic")
    _add_guest_cpu(domain, plan)
    SubElement(domain, "clock", offset="utc")
    for event, action in (("poweroff", "destroy"), ("reboot", "restart"), ("crash", "destroy")):
        _text(domain, f"on_{event}", action)
    _add_devices(domain, plan)
    indent(domain)
    return tostring(domain, encoding="unicode")


def _metadata(plan: GuestPlan) -> GuestMetadata:
    return GuestMetadata(
        instance=plan.instance,
        attempt=plan.attempt,
        cell=plan.cell,
        name=plan.name,
        project=plan.project,
        share=plan.share,
        dedicated=plan.dedicated,
        mediated={each.uuid: each for each in plan.mediated},
    )


def _text(parent: Element, tag: str, text: str, **attributes: str) -> Element:
    element = SubElement(parent, tag, attributes)
    element.text = text
    return element


def _add_memory_backing(domain: Element, plan: GuestPlan) -> None:
    if not plan.page_kib:
        return
    backing = SubElement(domain, "memoryBacking")
    page = SubElement(SubElement(backing, "hugepages"), "page", size=str(plan.page_kib), unit="KiB")
    if plan.cells:
        page.set("nodeset", cpus_in_words(range(len(plan.cells))))


def _add_cpus(domain: Element, plan: GuestPlan) -> None:
    _text(domain, "vcpu", str(len(plan.pins)), placement="static")
    tune = SubElement(domain, "cputune")
    for number, pins in enumerate(plan.pins):
        SubElement(tune, "vcpupin", vcpu=str(number), cpuset=cpus_in_words(pins))
    if plan.emulator:
        SubElement(tune, "emulatorpin", cpuset=cpus_in_words(plan.emulator))


def _add_numatune(domain: Element, plan: GuestPlan) -> None:
    nodes = [cell.host_cell for cell in plan.cells if cell.host_cell is not None]
    allowed = sorted({*nodes, *plan.memory_cells})
    if not allowed:
        return
    tune = SubElement(domain, "numatune")
    SubElement(tune, "memory", mode="strict", nodeset=cpus_in_words(allowed))
    for number, node in enumerate(nodes):
        SubElement(tune, "memnode", cellid=str(number), mode="strict", nodeset=str(node))


def _add_os(domain: Element, plan: GuestPlan) -> None:
    os = SubElement(domain, "os")
    if plan.firmware:
        os.set("firmware", plan.firmware)
    type_ = _text(os, "type", "hvm", arch=plan.arch)
    if plan.machine_type:
        type_.set("machine", plan.machine_type)
    for tag, text in (("kernel", plan.kernel), ("initrd", plan.ramdisk), ("cmdline", plan.cmdline)):
        if text:
            _text(os, tag, text)
    if not plan.kernel:
        SubElement(os, "boot", dev="hd")


def _add_guest_cpu(domain: Element, plan: GuestPlan) -> None:
    if not plan.cpu_mode and plan.topology is None and not plan.cells:
        return
    cpu = SubElement(domain, "cpu")
    if plan.cpu_mode:
        cpu.set("mode", plan.cpu_mode)
    if (shape := plan.topology) is not None:
        sizes = {"sockets": shape.sockets, "cores": shape.cores, "threads": shape.threads}
        SubElement(cpu, "topology", {name: str(size) for name, size in sizes.items()})
    if plan.cells:
        numa = SubElement(cpu, "numa")
        for number, cell in enumerate(plan.cells):
            SubElement(
                numa,
                "cell",
                id=str(number),
                cpus=cpus_in_words(cell.cpus),
                memory=str(cell.memory_mb),
                unit="MiB",
            )


def _add_devices(domain: Element, plan: GuestPlan) -> None:
    devices = SubElement(domain, "devices")
    names: Counter[str] = Counter()
    for disk in plan.disks:
        prefix = _TARGETS.get(disk.bus, "vd")
        _add_disk(devices, disk, prefix + _letters(names[prefix]))
        names[prefix] += 1
    if any(disk.bus == "scsi" for disk in plan.disks):
        SubElement(devices, "controller", type="scsi", index="0", model="virtio-scsi")
    for nic in plan.nics:
        interface = SubElement(devices, "interface", type=nic.kind)
        SubElement(interface, "mac", address=nic.mac)
        SubElement(interface, "source", {nic.kind: nic.source})
        SubElement(interface, "model", type=nic.model or "virtio")
    for function in plan.functions:
        _add_function(devices, function)
    for mediated in plan.mediated:
        hostdev = SubElement(devices, "hostdev", mode="subsystem", type="mdev", model="vfio-pci")
        SubElement(SubElement(hostdev, "source"), "address", uuid=str(mediated.uuid))
    if plan.video:
        SubElement(SubElement(devices, "video"), "model", type=plan.video)
    if plan.console_log:
        serial = SubElement(devices, "serial", type="file")
        SubElement(serial, "source", path=plan.console_log, append="on")
        SubElement(serial, "target", port="0")


def _letters(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    text = ""
    while number >= 0:
        text = chr(ord("a") + number % 26) + text
        number = number // 26 - 1
    return text


def _add_disk(devices: Element, disk: GuestDisk, target: str) -> None:
    element = SubElement(devices, "disk", type="file", device=disk.device)
    SubElement(element, "driver", name="qemu", type=disk.format)
    SubElement(element, "source", file=disk.path)
    SubElement(element, "target", dev=target, bus=disk.bus or "virtio")
    if disk.device == "cdrom":
        SubElement(element, "readonly")


def _add_function(devices: Element, function: PlannedFunction) -> None:
    """A function with a MAC is an interface: libvirt sets MAC and VLAN on its physical function before the guest starts."""
    address = _address(function.address)
    if function.mac:
        interface = SubElement(devices, "interface", type="hostdev", managed="yes")
        SubElement(interface, "mac", address=function.mac)
        SubElement(SubElement(interface, "source"), "address", {"type": "pci", **address})
        if function.vlan:
            SubElement(SubElement(interface, "vlan"), "tag", id=str(function.vlan))
        return
    hostdev = SubElement(devices, "hostdev", mode="subsystem", type="pci", managed="yes")
    SubElement(SubElement(hostdev, "source"), "address", address)


def _address(text: str) -> dict[str, str]:
    """0000:81:00.1 as libvirt's attributes."""
    domain, bus, rest = text.split(":")
    slot, function = rest.split(".")
    return {"domain": f"0x{domain}", "bus": f"0x{bus}", "slot": f"0x{slot}", "function": f"0x{function}"}
