"""Machines under libvirt for tests: those in tests/data/libvirt, and orders for guests on them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec import structs

from compute_sim.core.trees import ProviderTree, TreeProvider
from compute_sim.libvirt.core.domains import held_by
from compute_sim.libvirt.core.layout import HostLayout, HostOffer, layout_of, read_devices, read_mediated
from compute_sim.libvirt.core.machine import (
    Machine,
    NodeDevices,
    cpus_in,
    read_cpus,
    read_machine,
    read_node_devices,
    read_xml,
)
from compute_sim.libvirt.core.planning import plan_guest
from compute_sim.libvirt.core.plans import (
    CpuTopology,
    ForeignGuest,
    GuestDisk,
    GuestNic,
    GuestOrder,
    GuestPlan,
)
from engine.flavors import Flavor
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, Share

DATA = Path(__file__).parent.parent.parent / "data" / "libvirt"
UPSTREAM, TWO_CELLS = DATA / "upstream", DATA / "two_cells"
ROOT = ProviderId(UUID("7b1c2d3e-0000-4000-8000-000000000001"))
DOMAIN_CAPABILITIES = (UPSTREAM / "qemu_7.2.0.x86_64.xml").read_text()
# CPUs 0 to 3 and 8 to 11 are in cell 0; CPU 8 is a thread of CPU 0's core, and so on.
DEDICATED = read_cpus("1-3,9-11,5-7,13-15")


def two_cells() -> Machine:
    return read_machine((TWO_CELLS / "capabilities.xml").read_text(), DOMAIN_CAPABILITIES)


def devices_of_two_cells() -> NodeDevices:
    return read_node_devices(path.read_text() for path in sorted(TWO_CELLS.glob("*_*.xml")))


def an_offer(**terms: object) -> HostOffer:
    chosen: dict[str, object] = {
        "name": "h1",
        "cpus_dedicated": DEDICATED,
        "memory_reserved_mb": 1024,
        "disk_gb": 500,
        "devices": read_devices(["8086:154c=physnet1", "144d:a808"]),
        "mediated": read_mediated(["nvidia-230@0000:3b:*", "nvidia-222@0000:5e:*", "nvidia-222@0000:d8:*"]),
    }
    return HostOffer(**(chosen | terms))  # type: ignore[arg-type]


def a_layout(offer: HostOffer | None = None, devices: NodeDevices | None = None) -> HostLayout:
    return layout_of(
        ROOT, two_cells(), offer or an_offer(), devices=devices_of_two_cells() if devices is None else devices
    )


def named(tree: ProviderTree) -> dict[str, TreeProvider]:
    """The providers by what follows the host's name in theirs."""
    name = tree.providers[tree.root].name
    return {each.name.removeprefix(name).lstrip("_"): each for each in tree.providers.values()}


def instance(number: int = 1) -> ConsumerId:
    return ConsumerId(UUID(int=0x5EED << 112 | number))


def an_order(
    layout: HostLayout,
    claim: Mapping[str, Mapping[str, int]],
    flavor: Flavor | None = None,
    number: int = 1,
    **terms: object,
) -> GuestOrder:
    """An order whose claim is given by the names of the providers without the host's: NUMA0, 0000:81:00.0, or nothing for the root."""
    name = layout.offer.name
    ids = {"": layout.root}
    ids |= {f"NUMA{cell.number}": cell.provider for cell in layout.cells if cell.number is not None}
    ids |= {devices.name.removeprefix(f"{name}_"): devices.provider for devices in layout.devices}
    amounts = tuple(
        ResourceAmount(provider=ids[provider], resource=resource, amount=amount)
        for provider, of_provider in claim.items()
        for resource, amount in of_provider.items()
    )
    chosen: dict[str, object] = {
        "instance": instance(number),
        "attempt": 1,
        "cell": "cell1",
        "flavor": flavor or Flavor(vcpus=2, ram_mb=2048),
        "share": Share(host=layout.root, amounts=amounts),
        "domain": f"guest-{number}",
    }
    return GuestOrder(**(chosen | terms))  # type: ignore[arg-type]


def specs(vcpus: int, ram_mb: int, **extra: str) -> Flavor:
    return Flavor(
        vcpus=vcpus,
        ram_mb=ram_mb,
        extra_specs={f"hw:{name.replace('__', '.')}": value for name, value in extra.items()},
    )


def samples() -> list[GuestPlan]:
    """Plans that have everything that a plan may have between them."""
    layout, flat = a_layout(), a_layout(an_offer(flat=True, cpu_mode="host-passthrough"))
    small = {"VCPU": 2, "MEMORY_MB": 512}
    two = Flavor(vcpus=2, ram_mb=512)
    orders = [
        (layout, an_order(layout, {"NUMA0": small}, two)),
        (flat, an_order(flat, {"": small}, specs(2, 512, cpu_cores="2"), name='a <b> & "c" \x01\\')),
        (
            layout,
            an_order(
                layout,
                {
                    "NUMA0": {"PCPU": 3, "VCPU": 1, "CUSTOM_MEMORY_MB_PAGES_2048": 1024},
                    "NUMA1": {"PCPU": 2, "CUSTOM_MEMORY_MB_PAGES_2048": 1024},
                    "0000:81:00.0": {"SRIOV_NET_VF": 2},
                    "0000:3b:00.0": {"VGPU": 1},
                    "0000:03:00.0": {"CUSTOM_PCI_144D_A808": 1},
                },
                specs(
                    5,
                    2048,
                    cpu_policy="mixed",
                    cpu_dedicated_mask="1-4",
                    numa_nodes="2",
                    numa_cpus__0="0-2",
                    numa_mem__0="1024",
                    numa_cpus__1="3-4",
                    numa_mem__1="1024",
                    mem_page_size="2MB",
                    emulator_threads_policy="isolate",
                ),
                disks=(
                    GuestDisk("/d/1.qcow2"),
                    GuestDisk("/d/cd.iso", "raw", "cdrom"),
                    GuestDisk("/d/2", "raw"),
                ),
                nics=(
                    GuestNic("52:54:00:00:00:09", "default"),
                    GuestNic("52:54:00:00:00:0a", "br0", "bridge"),
                ),
                console_log="/log/1",
                image_properties={
                    "hw_video_model": "virtio",
                    "hw_machine_type": "pc-q35-7.2",
                    "hw_firmware_type": "uefi",
                },
            ),
        ),
        (
            layout,
            an_order(
                layout,
                {"NUMA1": {"VCPU": 2, "CUSTOM_MEMORY_MB_PAGES_1048576": 1024}},
                specs(2, 1024, mem_page_size="1GB"),
                disks=(GuestDisk("/d/1"), GuestDisk("/d/cd.iso", "raw", "cdrom")),
                kernel="/boot/vmlinuz",
                ramdisk="/boot/initrd",
                cmdline="console=ttyS0 root=/dev/vda",
                image_properties={"hw_disk_bus": "scsi", "hw_vif_model": "e1000"},
            ),
        ),
    ]
    plans = []
    for number, (where, order) in enumerate(orders, 1):
        own = structs.replace(order, domain=f"sample-{number}", instance=instance(number))
        plan = plan_guest(own, where)
        assert isinstance(plan, GuestPlan), plan
        plans.append(plan)
    return plans


def read_back(text: str) -> GuestPlan | ForeignGuest:
    """What `held_by` reads, and the rest of a plan that its domain says: what the product only writes."""
    held = held_by(text)
    if isinstance(held, ForeignGuest):
        return held
    domain = read_xml(text, "domain")

    def value(path: str, name: str) -> Any:
        found = domain.find(path)
        return "" if found is None else found.get(name, "")

    shape, mode, where = domain.find("cpu/topology"), value("cpu", "mode"), domain.find("numatune/memory")
    return structs.replace(
        held,
        machine_type=value("os/type", "machine"),
        # A running domain has the model that host-model stood for.
        cpu_mode=mode if mode.startswith("host-") else "",
        memory_cells=() if held.cells or where is None else cpus_in(where, "nodeset"),
        topology=None
        if shape is None
        else CpuTopology(*(int(shape.get(part, "")) for part in ("sockets", "cores", "threads"))),
        cmdline=domain.findtext("os/cmdline") or "",
        firmware=value("os", "firmware"),
        video=value("devices/video/model", "type"),
        console_log=value("devices/serial[@type='file']/source[@append='on']", "path"),
    )
