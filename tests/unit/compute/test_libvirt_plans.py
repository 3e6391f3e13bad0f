"""Which part of its host a guest gets, as its claim says; and what its domain says of it."""

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import pytest
from msgspec import Struct, structs

from compute_sim.libvirt.core.domains import as_foreign, domain_xml
from compute_sim.libvirt.core.layout import HostLayout, read_devices, read_mediated
from compute_sim.libvirt.core.machine import MediatedDevice, cpus_in_words
from compute_sim.libvirt.core.planning import NoPlan, plan_guest
from compute_sim.libvirt.core.plans import ForeignGuest, ForeignMemory, GuestDisk, GuestNic, GuestPlan
from compute_sim.libvirt.core.trees import tree_of
from engine.flavors import Flavor
from tests.unit.compute.libvirt_machines import (
    a_layout,
    an_offer,
    an_order,
    devices_of_two_cells,
    read_back,
    specs,
)

MADE = (UUID("0f6c5b1e-3c0b-4a57-9a5e-7f5a5f0b7a01"), UUID("0f6c5b1e-3c0b-4a57-9a5e-7f5a5f0b7a02"))
SMALL = {"VCPU": 2, "MEMORY_MB": 2048}


class Guest(Struct):
    """A further guest on the host."""

    claim: dict[str, dict[str, int]]
    flavor: Flavor | None = None
    terms: dict[str, object] = {}


# The host is another one from now on; a guest that is not the compute's; or a further guest beside words for its plan, or why there is none.
Step = HostLayout | ForeignGuest | tuple[Guest, str]


def words(plan: GuestPlan) -> str:
    told = {
        "cpus": " ".join(cpus_in_words(each) for each in plan.pins),
        "emulator": cpus_in_words(plan.emulator),
        "dedicated": cpus_in_words(plan.dedicated),
        "memory": cpus_in_words(plan.memory_cells),
        "cells": " ".join(
            f"{cpus_in_words(each.cpus)}={each.memory_mb}@{each.host_cell}" for each in plan.cells
        ),
        "pages": plan.page_kib,
        "functions": " ".join(each.address for each in plan.functions),
        "mediated": ", ".join(
            f"{count} of {name}"
            for name, count in Counter(
                f"{each.type}@{each.parent}{'=made' * (each.uuid in MADE)}" for each in plan.mediated
            ).items()
        ),
        "disks": " ".join(f"{each.path}:{each.bus}" for each in plan.disks),
        "nics": " ".join(each.model for each in plan.nics),
        "machine": plan.machine_type,
        "firmware": plan.firmware,
        "video": plan.video,
        "kernel": plan.kernel,
        "cmdline": plan.cmdline,
        "cpu": "" if plan.cpu_mode == "host-model" else plan.cpu_mode or "plain",
        "topology": plan.topology and "/".join(map(str, structs.astuple(plan.topology))),
    }
    return "; ".join(f"{name} {value}" for name, value in told.items() if value)


class Host:
    def __init__(self) -> None:
        self.layout = a_layout()
        self.guests: list[GuestPlan | ForeignGuest] = []

    def play(self, step: HostLayout | ForeignGuest | Guest) -> str:
        """The words for the plan of a guest, or why it cannot be built."""
        if isinstance(step, HostLayout):
            self.layout = step
            return ""
        if isinstance(step, ForeignGuest):
            self.guests.append(step)
            return ""
        flavor = step.flavor or Flavor(vcpus=2, ram_mb=2048)
        order = an_order(self.layout, step.claim, flavor, len(self.guests) + 1, **step.terms)
        plan = plan_guest(order, self.layout, self.guests)
        if isinstance(plan, NoPlan):
            return f"no: {plan.reason}"
        claimed = Counter[str]()
        for amounts in step.claim.values():
            claimed.update(amounts)
        assert plan.memory_mb == sum(claimed[each] for each in claimed if "MEMORY_MB" in each)
        assert len(plan.pins) <= claimed["VCPU"] + claimed["PCPU"]
        assert read_back(domain_xml(plan)) == plan
        assert plan_guest(order, self.layout, self.guests) == plan, "a build that is repeated makes the same"
        self.guests.append(plan)
        return words(plan)


def foreign(**what: object) -> ForeignGuest:
    return ForeignGuest(name="database", uuid=UUID(int=0xF0), **what)  # type: ignore[arg-type]


def dedicated(vcpus: int = 2, **extra: str) -> Flavor:
    return specs(vcpus, 2048, cpu_policy="dedicated", **extra)


def pinned(count: int, cell: str = "NUMA0") -> dict[str, dict[str, int]]:
    return {cell: {"PCPU": count, "MEMORY_MB": 2048}}


def with_machines(*names: str) -> HostLayout:
    """A host that knows these types of machines."""
    layout = a_layout()
    kind = structs.replace(layout.machine.guests[0], machines=names)
    return structs.replace(layout, machine=structs.replace(layout.machine, guests=(kind,)))


def without(*addresses: str) -> HostLayout:
    """A host that has lost these devices."""
    devices = devices_of_two_cells()
    left = tuple(
        structs.replace(each, virtual=tuple(one for one in each.virtual if one not in addresses))
        for each in devices.functions
        if each.address not in addresses
    )
    return a_layout(devices=structs.replace(devices, functions=left))


IN_PARTS, IN_ONE = a_layout(), a_layout(an_offer(devices=read_devices(["8086:1572"])))
WHOLE_CARD = Guest({"NUMA1": SMALL, "0000:81:00.0": {"CUSTOM_PCI_8086_1572": 1}})
PART_OF_CARD = Guest({"NUMA1": SMALL, "0000:81:00.0": {"SRIOV_NET_VF": 1}})
WHOLE_GPU = Guest({"NUMA1": SMALL, "0000:d8:00.0": {"CUSTOM_PCI_10DE_1EB8": 1}})
PART_OF_GPU = Guest({"NUMA1": SMALL, "0000:d8:00.0": {"VGPU": 1}})
GPU_IN_ONE = a_layout(an_offer(devices=read_devices(["10de:1eb8@0000:d8:*"]), mediated=()))
DRIVE = (GuestDisk("/disks/config", "raw", "cdrom"),)
TWO_GUEST_CELLS = specs(
    3, 3072, numa_nodes="2", numa_cpus__0="0", numa_mem__0="1024", numa_cpus__1="1,2", numa_mem__1="2048"
)

CASES: dict[str, Sequence[Step]] = {
    "shared CPUs of the claimed cell": [
        (Guest({"NUMA1": SMALL}), "cpus 4,12 4,12; emulator 4,12; memory 1"),
    ],
    "CPUs and memory of two cells": [
        (Guest({"NUMA0": {"VCPU": 2}, "NUMA1": {"MEMORY_MB": 2048}}), "cpus 0,8 0,8; emulator 0,8; memory 1"),
    ],
    "dedicated CPUs are no other guest's": [
        (
            Guest(pinned(2, "NUMA1"), dedicated()),
            "cpus 5 13; emulator 5,13; dedicated 5,13; cells 0-1=2048@1",
        ),
        (
            Guest(pinned(2, "NUMA1"), dedicated()),
            "cpus 6 14; emulator 6,14; dedicated 6,14; cells 0-1=2048@1",
        ),
    ],
    "prefer fills a core that is half free last": [
        foreign(pins=((1,),)),
        (
            Guest(pinned(3), dedicated(3, cpu_thread_policy="prefer")),
            "cpus 2 10 9; emulator 2,9-10; dedicated 2,9-10; cells 0-2=2048@0",
        ),
    ],
    "require takes two threads of each core": [
        (
            Guest(pinned(3), dedicated(3, cpu_thread_policy="require")),
            (
                "no: NUMA cell 0 cannot give 3 dedicated CPUs with hw:cpu_thread_policy=require: "
                "1-3,9-11 of 1-3,9-11 are free"
            ),
        ),
        (
            Guest(pinned(4), dedicated(4, cpu_thread_policy="require")),
            "cpus 1 9 2 10; emulator 1-2,9-10; dedicated 1-2,9-10; cells 0-3=2048@0",
        ),
    ],
    "isolate keeps the other threads idle": [
        (
            Guest(pinned(2), dedicated(cpu_thread_policy="isolate")),
            "cpus 1 2; emulator 1-2; dedicated 1-2,9-10; cells 0-1=2048@0",
        ),
        (
            Guest(pinned(2), dedicated(cpu_thread_policy="isolate")),
            (
                "no: NUMA cell 0 cannot give 2 dedicated CPUs with hw:cpu_thread_policy=isolate: "
                "3,11 of 1-3,9-11 are free; 1 is guest-1's, 2 is guest-1's, 9 is guest-1's, 10 is guest-1's"
            ),
        ),
    ],
    "isolate takes no core with a shared thread": [
        a_layout(an_offer(cpus_dedicated=frozenset({1, 2, 10}))),
        (
            Guest(pinned(1), dedicated(1, cpu_thread_policy="isolate")),
            "cpus 2; emulator 2; dedicated 2,10; cells 0=2048@0",
        ),
    ],
    "mixed CPUs by their mask": [
        (
            Guest(
                {"NUMA0": {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 2048}},
                specs(4, 2048, cpu_policy="mixed", cpu_dedicated_mask="2-3"),
            ),
            "cpus 0,8 0,8 1 9; emulator 0-1,8-9; dedicated 1,9; cells 0-3=2048@0",
        ),
    ],
    "an emulator with a CPU of its own": [
        (
            Guest(pinned(3), dedicated(emulator_threads_policy="isolate")),
            "cpus 1 9; emulator 2; dedicated 1-2,9; cells 0-1=2048@0",
        ),
    ],
    "an emulator on the shared CPUs": [
        (
            Guest(pinned(2), dedicated(emulator_threads_policy="share")),
            "cpus 1 9; emulator 0,8; dedicated 1,9; cells 0-1=2048@0",
        ),
        a_layout(an_offer(cpus_shared=frozenset())),
        (
            Guest(pinned(2), dedicated(emulator_threads_policy="share")),
            "cpus 2 10; emulator 2,10; dedicated 2,10; cells 0-1=2048@0",
        ),
    ],
    "a CPU of a foreign domain": [
        foreign(pins=((2,),)),
        (
            Guest(pinned(6), dedicated(6)),
            ("no: NUMA cell 0 cannot give 6 dedicated CPUs: 1,3,9-11 of 1-3,9-11 are free; 2 is database's"),
        ),
    ],
    "a flat host": [
        a_layout(an_offer(flat=True)),
        (Guest({"": SMALL}), "cpus 0,4,8,12 0,4,8,12; emulator 0,4,8,12"),
        (Guest(pinned(2, ""), dedicated()), "cpus 1 9; emulator 1,9; dedicated 1,9; cells 0-1=2048@None"),
    ],
    "dedicated CPUs as amounts": [
        (
            Guest(
                {"NUMA0": {"VCPU": 2, "PCPU": 1, "MEMORY_MB": 2048}},
                Flavor(vcpus=3, ram_mb=2048, extra_specs={"resources:PCPU": "1", "resources:VCPU": "2"}),
            ),
            "cpus 0,8 0,8 1; emulator 0-1,8; dedicated 1; memory 0",
        ),
    ],
    "each guest cell on the cell that it is claimed from": [
        (
            Guest(
                {"NUMA0": {"VCPU": 2, "MEMORY_MB": 2048}, "NUMA1": {"VCPU": 1, "MEMORY_MB": 1024}},
                TWO_GUEST_CELLS,
            ),
            "cpus 4,12 0,8 0,8; emulator 0,4,8,12; cells 0=1024@1 1-2=2048@0",
        ),
        (
            Guest({"NUMA0": {"VCPU": 2, "MEMORY_MB": 2048}}, TWO_GUEST_CELLS),
            "no: guest cell 0 takes MEMORY_MB 1024, VCPU 1, and the share has MEMORY_MB 2048, VCPU 2",
        ),
    ],
    "pages of the claimed size are counted": [
        (
            Guest(
                {"NUMA1": {"VCPU": 2, "CUSTOM_MEMORY_MB_PAGES_1048576": 4096}},
                specs(2, 4096, mem_page_size="1GB"),
            ),
            "cpus 4,12 4,12; emulator 4,12; cells 0-1=4096@1; pages 1048576",
        ),
        (
            Guest(
                {"NUMA1": {"VCPU": 2, "CUSTOM_MEMORY_MB_PAGES_1048576": 4096}},
                specs(2, 4096, mem_page_size="1GB"),
            ),
            "no: NUMA cell 1 has 0 MB of 4096 MB in pages of 1048576 KiB free, and 4096 MB are claimed",
        ),
    ],
    "pages of a foreign domain": [
        foreign(memory=(ForeignMemory(1024, 1_048_576, (1,)),)),
        (
            Guest(
                {"NUMA1": {"VCPU": 2, "CUSTOM_MEMORY_MB_PAGES_1048576": 4096}},
                specs(2, 4096, mem_page_size="1GB"),
            ),
            ("no: NUMA cell 1 has 3072 MB of 4096 MB in pages of 1048576 KiB free, and 4096 MB are claimed"),
        ),
    ],
    "pages of a guest from before the host had cells": [
        a_layout(an_offer(flat=True)),
        (
            Guest(
                {"": {"VCPU": 2, "CUSTOM_MEMORY_MB_PAGES_1048576": 10_240}},
                specs(2, 10_240, mem_page_size="1GB"),
            ),
            "cpus 0,4,8,12 0,4,8,12; emulator 0,4,8,12; cells 0-1=10240@None; pages 1048576",
        ),
        a_layout(),
        (
            Guest(
                {"NUMA1": {"VCPU": 2, "CUSTOM_MEMORY_MB_PAGES_1048576": 1024}},
                specs(2, 1024, mem_page_size="1GB"),
            ),
            ("no: NUMA cell 1 has 682 MB of 4096 MB in pages of 1048576 KiB free, and 1024 MB are claimed"),
        ),
    ],
    "no memory": [
        (
            Guest({"NUMA0": {"VCPU": 1}}, Flavor(vcpus=1)),
            "no: flavor.ram_mb is 0, and no memory is claimed: a virtual machine needs some",
        ),
    ],
    "a claim decides, whatever the flavor says beside it": [
        (
            Guest({"NUMA0": {"VCPU": 1, "MEMORY_MB": 512}}, Flavor(vcpus=8, ram_mb=65_536)),
            "cpus 0,8; emulator 0,8; memory 0",
        ),
        (
            Guest({"NUMA0": {"PCPU": 1, "MEMORY_MB": 512}}, Flavor(vcpus=8, ram_mb=65_536)),
            "cpus 1; emulator 1; dedicated 1; memory 0",
        ),
        (
            Guest({"NUMA0": {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 512}}, Flavor(vcpus=1)),
            "cpus 0,8 0,8 2 10; emulator 0,2,8,10; dedicated 2,10; memory 0",
        ),
        (
            Guest({"NUMA0": {"VCPU": 1, "CUSTOM_MEMORY_MB_PAGES_2048": 512}}, Flavor(vcpus=1, ram_mb=4096)),
            "cpus 0,8; emulator 0,8; memory 0; pages 2048",
        ),
    ],
    "a claim without a processor": [
        (
            Guest({"NUMA0": {"MEMORY_MB": 512}}, Flavor(vcpus=8, ram_mb=512)),
            "no: flavor.vcpus is 8, and neither VCPU nor PCPU are claimed: a virtual machine needs some",
        ),
    ],
    "a claim without memory": [
        (
            Guest({"NUMA0": {"VCPU": 1}}, Flavor(vcpus=1, ram_mb=65_536)),
            "no: flavor.ram_mb is 65536, and no memory is claimed: a virtual machine needs some",
        ),
    ],
    "memory in pages of one size": [
        (
            Guest({"NUMA0": {"VCPU": 1, "MEMORY_MB": 2048, "CUSTOM_MEMORY_MB_PAGES_2048": 512}}),
            (
                "no: MEMORY_MB and CUSTOM_MEMORY_MB_PAGES_2048 are claimed, and a guest's memory is of one of them: "
                "set resources:MEMORY_MB=0"
            ),
        ),
    ],
    "no function is given twice": [
        (
            Guest({"NUMA1": SMALL, "0000:81:00.0": {"SRIOV_NET_VF": 2}}),
            "cpus 4,12 4,12; emulator 4,12; memory 1; functions 0000:81:10.0 0000:81:10.2",
        ),
        (
            Guest({"NUMA1": SMALL, "0000:81:00.0": {"SRIOV_NET_VF": 2}}),
            "cpus 4,12 4,12; emulator 4,12; memory 1; functions 0000:81:10.4 0000:81:10.6",
        ),
        (
            Guest({"NUMA1": SMALL, "0000:81:00.0": {"SRIOV_NET_VF": 2}}),
            (
                "no: h1_0000:81:00.0 has 0 free SRIOV_NET_VF, and 2 are claimed: "
                "0000:81:10.0 is guest-1's; 0000:81:10.2 is guest-1's; 0000:81:10.4 is guest-2's; "
                "0000:81:10.6 is guest-2's"
            ),
        ),
    ],
    "a card that was given whole": [
        IN_ONE,
        (WHOLE_CARD, "cpus 4,12 4,12; emulator 4,12; memory 1; functions 0000:81:00.0"),
        IN_PARTS,
        (
            PART_OF_CARD,
            "no: h1_0000:81:00.0 has 0 free SRIOV_NET_VF, and 1 are claimed: 0000:81:00.0 is guest-1's",
        ),
    ],
    "a card that was given in parts": [
        (PART_OF_CARD, "cpus 4,12 4,12; emulator 4,12; memory 1; functions 0000:81:10.0"),
        IN_ONE,
        (
            WHOLE_CARD,
            (
                "no: h1_0000:81:00.0 has 0 free CUSTOM_PCI_8086_1572, and 1 are claimed: "
                "0000:81:10.0 is guest-1's"
            ),
        ),
    ],
    "a card that is given whole now": [
        IN_ONE,
        (PART_OF_CARD, "no: h1_0000:81:00.0 gives no SRIOV_NET_VF any more, and 1 are claimed"),
    ],
    "mediated devices of the claimed GPU": [
        (
            Guest({"NUMA0": SMALL, "0000:3b:00.0": {"VGPU": 3}}),
            "cpus 0,8 0,8; emulator 0,8; memory 0; mediated 3 of nvidia-230@0000:3b:00.0",
        ),
        (
            Guest({"NUMA0": SMALL, "0000:3b:00.0": {"VGPU": 3}}),
            "no: h1_0000:3b:00.0 can make 1 devices of nvidia-230, and 3 VGPU are claimed",
        ),
        a_layout(an_offer(mediated=read_mediated(["nvidia-222"]))),
        (
            Guest({"NUMA0": SMALL, "0000:3b:00.0": {"VGPU": 1}}),
            "no: h1_0000:3b:00.0 can make 0 devices of nvidia-222, and 1 VGPU are claimed",
        ),
    ],
    "a mediated device that nobody has comes last": [
        a_layout(an_offer(mediated=read_mediated(["nvidia-222@0000:5e:*"]))),
        foreign(mediated=(MADE[0],)),
        (
            Guest({"NUMA0": SMALL, "0000:5e:00.0": {"VGPU": 16}}),
            "no: h1_0000:5e:00.0 can make 15 devices of nvidia-222, and 16 VGPU are claimed",
        ),
        (
            Guest({"NUMA0": SMALL, "0000:5e:00.0": {"VGPU": 15}}),
            (
                "cpus 0,8 0,8; emulator 0,8; memory 0; mediated 14 of nvidia-222@0000:5e:00.0, "
                "1 of nvidia-222@0000:5e:00.0=made"
            ),
        ),
    ],
    "a pool of GPUs": [
        a_layout(an_offer(mediated=read_mediated(["nvidia-230@0000:3b:*=t4", "nvidia-230@0000:d8:*=t4"]))),
        (
            Guest({"NUMA0": SMALL, "t4": {"VGPU": 6}}),
            (
                "cpus 0,8 0,8; emulator 0,8; memory 0; mediated 4 of nvidia-230@0000:3b:00.0, "
                "2 of nvidia-230@0000:d8:00.0"
            ),
        ),
    ],
    "a GPU that makes devices is not given whole": [
        (PART_OF_GPU, "cpus 4,12 4,12; emulator 4,12; memory 1; mediated 1 of nvidia-222@0000:d8:00.0"),
        GPU_IN_ONE,
        (
            WHOLE_GPU,
            (
                "no: h1_0000:d8:00.0 has 0 free CUSTOM_PCI_10DE_1EB8, and 1 are claimed: "
                "0000:d8:00.0 makes a mediated device of guest-1"
            ),
        ),
    ],
    "a GPU that was given whole makes no devices": [
        GPU_IN_ONE,
        (WHOLE_GPU, "cpus 4,12 4,12; emulator 4,12; memory 1; functions 0000:d8:00.0"),
        IN_PARTS,
        (PART_OF_GPU, "no: h1_0000:d8:00.0 can make 0 devices of nvidia-222, and 1 VGPU are claimed"),
    ],
    "hardware that images choose": [
        (
            Guest(
                {"NUMA0": SMALL},
                None,
                {
                    "image_properties": {
                        "hw_machine_type": "q35",
                        "hw_disk_bus": "scsi",
                        "hw_vif_model": "e1000e",
                        "hw_video_model": "virtio",
                        "hw_firmware_type": "uefi",
                    },
                    "disks": (GuestDisk("/disks/1"), GuestDisk("/disks/2", "raw", "cdrom")),
                    "nics": (
                        GuestNic("52:54:00:00:00:01", "default"),
                        GuestNic("52:54:00:00:00:02", "br0", "bridge", "virtio"),
                    ),
                },
            ),
            (
                "cpus 0,8 0,8; emulator 0,8; memory 0; disks /disks/1:scsi /disks/2:sata; "
                "nics e1000e virtio; machine q35; firmware efi; video virtio"
            ),
        ),
    ],
    "a bios is what guests have anyway": [
        (
            Guest({"NUMA0": SMALL}, None, {"image_properties": {"hw_firmware_type": "bios"}}),
            "cpus 0,8 0,8; emulator 0,8; memory 0",
        ),
    ],
    "a kernel and its words": [
        (
            Guest(
                {"NUMA0": SMALL},
                None,
                {
                    "kernel": "/images/vmlinuz <1>",
                    "ramdisk": "/images/initrd&",
                    "cmdline": ' console=ttyS0 a="b" ',
                    "console_log": "/logs/1.log",
                    "name": 'my "first" \x00 <guest>\n\\',
                },
            ),
            (
                "cpus 0,8 0,8; emulator 0,8; memory 0; kernel /images/vmlinuz <1>; "
                'cmdline  console=ttyS0 a="b" '
            ),
        ),
    ],
    "an unknown machine type": [
        (
            Guest({"NUMA0": SMALL}, None, {"image_properties": {"hw_machine_type": "pc-99"}}),
            (
                "no: image_properties.hw_machine_type is 'pc-99', which libvirt does not know for x86_64; "
                "it knows pc-i440fx-7.2, pc, pc-q35-7.2, q35"
            ),
        ),
    ],
    "an unknown architecture": [
        (
            Guest({"NUMA0": SMALL}, None, {"image_properties": {"hw_architecture": "sparc"}}),
            "no: this libvirt runs no sparc guests of the type kvm",
        ),
    ],
    "an unknown disk bus": [
        (
            Guest({"NUMA0": SMALL}, None, {"image_properties": {"hw_disk_bus": "fdc"}}),
            "no: image_properties.hw_disk_bus is 'fdc', must be one of virtio, scsi, sata, ide, usb",
        ),
    ],
    "an unknown firmware": [
        (
            Guest({"NUMA0": SMALL}, None, {"image_properties": {"hw_firmware_type": "coreboot"}}),
            "no: image_properties.hw_firmware_type is 'coreboot', must be one of bios, uefi",
        ),
    ],
    "wrong threads": [
        (
            Guest({"NUMA0": SMALL}, specs(2, 2048, cpu_threads="0")),
            "no: hw:cpu_threads is '0', must be a number from 1 to 2, the guest's CPUs",
        ),
    ],
    "sockets that are not the CPUs": [
        (
            Guest({"NUMA0": {"VCPU": 3, "MEMORY_MB": 2048}}, specs(3, 2048, cpu_sockets="2")),
            "no: 2 sockets of 1 cores of 1 threads are not the 3 CPUs of the guest",
        ),
    ],
    "wrong cells": [
        (
            Guest({"NUMA0": SMALL}, specs(2, 2048, numa_nodes="x")),
            "no: flavor.extra_specs.hw:numa_nodes is 'x': a guest has 1 to 16 NUMA cells",
        ),
    ],
    "words that cannot be written": [
        (
            Guest({"NUMA0": SMALL}, None, {"cmdline": "a\x01"}),
            "no: cmdline is 'a\\x01': '\\x01' cannot be written into a domain",
        ),
    ],
    "sockets and cores that are asked for": [
        (
            Guest({"NUMA0": {"VCPU": 4, "MEMORY_MB": 2048}}, specs(4, 2048, cpu_threads="2")),
            "cpus 0,8 0,8 0,8 0,8; emulator 0,8; memory 0; topology 2/1/2",
        ),
        (
            Guest({"NUMA0": {"VCPU": 4, "MEMORY_MB": 2048}}, specs(4, 2048, cpu_cores="2", cpu_threads="2")),
            "cpus 0,8 0,8 0,8 0,8; emulator 0,8; memory 0; topology 1/2/2",
        ),
        (
            Guest({"NUMA0": {"VCPU": 4, "MEMORY_MB": 2048}}, specs(4, 2048, cpu_sockets="2")),
            "cpus 0,8 0,8 0,8 0,8; emulator 0,8; memory 0; topology 2/2/1",
        ),
    ],
    "the CPU that guests see": [
        a_layout(an_offer(domain_type="kvm", cpu_mode="")),
        (Guest({"NUMA0": SMALL}), "cpus 0,8 0,8; emulator 0,8; memory 0"),
        a_layout(an_offer(domain_type="qemu", cpu_mode="")),
        (Guest({"NUMA0": SMALL}), "cpus 0,8 0,8; emulator 0,8; memory 0; cpu plain"),
        a_layout(an_offer(domain_type="qemu", cpu_mode="host-model")),
        (Guest({"NUMA0": SMALL}), "cpus 0,8 0,8; emulator 0,8; memory 0"),
        a_layout(an_offer(domain_type="kvm", cpu_mode="host-passthrough")),
        (Guest({"NUMA0": SMALL}), "cpus 0,8 0,8; emulator 0,8; memory 0; cpu host-passthrough"),
    ],
    "the bus of a config drive": [
        with_machines("pc", "q35"),
        (
            Guest({"NUMA0": SMALL}, None, {"disks": DRIVE}),
            "cpus 0,8 0,8; emulator 0,8; memory 0; disks /disks/config:ide",
        ),
        with_machines("q35"),
        (
            Guest({"NUMA0": SMALL}, None, {"disks": DRIVE}),
            "cpus 0,8 0,8; emulator 0,8; memory 0; disks /disks/config:sata",
        ),
        with_machines("pc-q35-7.2"),
        (
            Guest(
                {"NUMA0": SMALL},
                None,
                {"disks": DRIVE, "image_properties": {"hw_machine_type": "pc-q35-7.2"}},
            ),
            "cpus 0,8 0,8; emulator 0,8; memory 0; disks /disks/config:sata; machine pc-q35-7.2",
        ),
        with_machines(),
        (
            Guest({"NUMA0": SMALL}, None, {"disks": DRIVE}),
            "cpus 0,8 0,8; emulator 0,8; memory 0; disks /disks/config:ide",
        ),
    ],
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_guest_gets_this_or_is_refused_for_this_reason(case: Sequence[Step]) -> None:
    host = Host()
    for step in case:
        if isinstance(step, tuple):
            assert host.play(step[0]) == step[1]
        else:
            host.play(step)


def test_a_device_that_vanished_is_named() -> None:
    layout, gone = a_layout(), without("0000:03:00.0")
    order = an_order(layout, {"NUMA0": SMALL, "0000:03:00.0": {"CUSTOM_PCI_144D_A808": 1}})

    assert plan_guest(order, gone, known=tree_of(layout)) == NoPlan(
        "h1_0000:03:00.0 is not on this host any more; 1 CUSTOM_PCI_144D_A808 of it are claimed"
    )
    port = an_order(layout, PART_OF_CARD.claim)
    bare = without("0000:81:10.0", "0000:81:10.2", "0000:81:10.4", "0000:81:10.6")
    refused = plan_guest(port, bare)
    assert isinstance(refused, NoPlan)
    assert refused.reason.endswith("is not on this host any more; 1 SRIOV_NET_VF of it are claimed")


def test_a_gpu_whose_devices_are_made_is_not_given_whole() -> None:
    plan = plan_guest(an_order(IN_PARTS, PART_OF_GPU.claim), IN_PARTS)
    assert isinstance(plan, GuestPlan)
    made = structs.replace(
        GPU_IN_ONE,
        mediated=(*GPU_IN_ONE.mediated, MediatedDevice(plan.mediated[0].uuid, "nvidia-222", "0000:d8:00.0")),
    )
    refused = plan_guest(an_order(made, WHOLE_GPU.claim, number=2), made, (plan,))
    assert isinstance(refused, NoPlan)
    assert "0000:d8:00.0 makes a mediated device of guest-1" in refused.reason


def test_a_guest_of_another_compute_is_foreign() -> None:
    plan = plan_guest(an_order(IN_PARTS, pinned(2), dedicated()), IN_PARTS)
    assert isinstance(plan, GuestPlan)
    assert as_foreign(domain_xml(plan)) == ForeignGuest(
        name="guest-1", uuid=plan.instance, pins=((1,), (9,)), memory=(ForeignMemory(2048, 0, (0,)),)
    )
