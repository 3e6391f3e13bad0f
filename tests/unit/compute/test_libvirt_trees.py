"""What a host under libvirt reports, from libvirt's own descriptions of machines."""

from uuid import UUID

import os_traits
import pytest

from compute_sim.core.hosts import read_networks
from compute_sim.core.trees import ProviderTree, ReportState, flaw_of, report_of_changes
from compute_sim.libvirt.core.domains import held_by
from compute_sim.libvirt.core.layout import (
    DeviceOffer,
    HostOffer,
    MediatedOffer,
    PagesKept,
    layout_of,
    read_devices,
    read_mediated,
    read_pages,
)
from compute_sim.libvirt.core.machine import (
    BadXmlError,
    HugePages,
    NodeDevices,
    read_machine,
    read_node_devices,
)
from compute_sim.libvirt.core.plans import ForeignGuest, ForeignMemory
from compute_sim.libvirt.core.trees import host_of, tree_of
from compute_sim.libvirt.settings import LibvirtHost, LibvirtRules
from engine.inventories import ProviderId, ReportedInventory
from tests.unit.compute.libvirt_machines import (
    DATA,
    DOMAIN_CAPABILITIES,
    ROOT,
    TWO_CELLS,
    UPSTREAM,
    a_layout,
    an_offer,
    devices_of_two_cells,
    named,
    two_cells,
)

# The mediated devices that exist on the machine.
MADE = (UUID("0f6c5b1e-3c0b-4a57-9a5e-7f5a5f0b7a01"), UUID("0f6c5b1e-3c0b-4a57-9a5e-7f5a5f0b7a02"))


def foreign(*memory: ForeignMemory, **what: object) -> ForeignGuest:
    return ForeignGuest(name="other", uuid=UUID(int=0xF0), memory=memory, **what)  # type: ignore[arg-type]


def words(tree: ProviderTree) -> dict[str, str]:
    """What each provider has: total, what is reserved of it, its ratio and its step; and below which provider it is."""
    found = named(tree)
    names = {each.id: name for name, each in found.items()}
    return {
        name: ", ".join(
            [
                *(_stock(resource, each) for resource, each in provider.inventories.items()),
                *sorted(provider.traits if name else ()),
                *([f"below {names[provider.parent] or 'the root'}"] if provider.parent else []),
            ]
        )
        for name, provider in found.items()
    }


def _stock(resource: str, each: ReportedInventory) -> str:
    ratio = f" x{each.allocation_ratio:g}" if each.allocation_ratio != 1 else ""
    step = f" by {each.step_size}" if each.step_size != 1 else ""
    return f"{resource} {each.total}{f'-{each.reserved}' if each.reserved else ''}{ratio}{step}"


PARTLY = an_offer(memory_mb=20_480, memory_reserved_mb=0, pages_kept=(PagesKept(0, 2_048, 512),))
WHOLE = an_offer(devices=read_devices(["8086:1572"]))

CASES: dict[str, tuple[HostOffer, tuple[ForeignGuest, ...], dict[str, str]]] = {
    "cells": (
        an_offer(),
        (),
        {
            "": "DISK_GB 500",
            "NUMA0": "VCPU 2 x4, PCPU 6, MEMORY_MB 20480-512, CUSTOM_MEMORY_MB_PAGES_2048 4096 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 8192 by 1024, HW_NUMA_ROOT, below the root",
            "NUMA1": "VCPU 2 x4, PCPU 6, MEMORY_MB 20480-512, CUSTOM_MEMORY_MB_PAGES_2048 8192 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 4096 by 1024, HW_NUMA_ROOT, below the root",
            "0000:03:00.0": "CUSTOM_PCI_144D_A808 1, below the root",
            "0000:3b:00.0": "VGPU 4, CUSTOM_NVIDIA_230, below NUMA0",
            "0000:5e:00.0": "VGPU 16, CUSTOM_NVIDIA_222, below NUMA0",
            "0000:81:00.0": "SRIOV_NET_VF 4, CUSTOM_PHYSNET_PHYSNET1, CUSTOM_VNIC_TYPE_DIRECT, HW_NIC_SRIOV, below NUMA1",
            "0000:d8:00.0": "VGPU 16, CUSTOM_NVIDIA_222, below NUMA1",
        },
    ),
    "a card that is passed through whole": (
        an_offer(devices=read_devices(["8086:1572=physnet1"])),
        (),
        {
            "0000:81:00.0": "CUSTOM_PCI_8086_1572 1, CUSTOM_PHYSNET_PHYSNET1, CUSTOM_VNIC_TYPE_DIRECT_PHYSICAL, HW_NIC_SRIOV, below NUMA1",
        },
    ),
    "virtual functions without their physical one": (
        an_offer(devices=read_devices(["8086:154c@0000:81:10.[02]"])),
        (),
        {
            "0000:81:00.0": "SRIOV_NET_VF 2, HW_NIC_SRIOV, below NUMA1",
        },
    ),
    "GPUs of one type": (
        an_offer(mediated=read_mediated(["nvidia-230"])),
        (),
        {
            "0000:d8:00.0": "VGPU 4, CUSTOM_NVIDIA_230, below NUMA1",
        },
    ),
    "a pool of GPUs in one cell": (
        an_offer(mediated=read_mediated(["nvidia-222@0000:3b:*=t4", "nvidia-222@0000:5e:*=t4"])),
        (),
        {
            "t4": "VGPU 32, CUSTOM_NVIDIA_222, below NUMA0",
        },
    ),
    "a pool of GPUs in two cells": (
        an_offer(mediated=read_mediated(["nvidia-222=t4"])),
        (),
        {
            "t4": "VGPU 48, CUSTOM_NVIDIA_222, below the root",
        },
    ),
    "a flat host": (
        an_offer(flat=True),
        (),
        {
            "": "DISK_GB 500, VCPU 4 x4, PCPU 12, MEMORY_MB 40960-1024, CUSTOM_MEMORY_MB_PAGES_2048 12288 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 12288 by 1024",
            "0000:03:00.0": "CUSTOM_PCI_144D_A808 1, below the root",
            "0000:3b:00.0": "VGPU 4, CUSTOM_NVIDIA_230, below the root",
            "0000:5e:00.0": "VGPU 16, CUSTOM_NVIDIA_222, below the root",
            "0000:81:00.0": "SRIOV_NET_VF 4, CUSTOM_PHYSNET_PHYSNET1, CUSTOM_VNIC_TYPE_DIRECT, HW_NIC_SRIOV, below the root",
            "0000:d8:00.0": "VGPU 16, CUSTOM_NVIDIA_222, below the root",
        },
    ),
    "a part of the machine": (
        an_offer(cpus_dedicated=frozenset(), cpus_shared=frozenset({4, 2}), memory_mb=1_001),
        (),
        {
            "NUMA0": "VCPU 1 x4, MEMORY_MB 500-500, CUSTOM_MEMORY_MB_PAGES_2048 4096 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 8192 by 1024, HW_NUMA_ROOT, below the root",
            "NUMA1": "VCPU 1 x4, MEMORY_MB 501-501, CUSTOM_MEMORY_MB_PAGES_2048 8192 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 4096 by 1024, HW_NUMA_ROOT, below the root",
        },
    ),
    "a network": (
        an_offer(networks=read_networks(["physnet0=10000000"])),
        (),
        {
            ":physnet0": "NET_BW_EGR_KILOBIT_PER_SEC 10000000, NET_BW_IGR_KILOBIT_PER_SEC 10000000, CUSTOM_PHYSNET_PHYSNET0, CUSTOM_VNIC_TYPE_NORMAL, below the root",
        },
    ),
    "foreign guests": (
        an_offer(),
        (
            foreign(
                ForeignMemory(1_024, 2_048, (0,)),
                ForeignMemory(1_024, 1_048_576, (1,)),
                pins=((1,), (9,), (4, 12)),
                functions=("0000:03:00.0", "0000:81:10.0"),
                mediated=MADE,
            ),
            foreign(ForeignMemory(2_000), pins=((), (), ())),
        ),
        {
            "NUMA0": "VCPU 2-1 x4, PCPU 6-2, MEMORY_MB 20480-1512, CUSTOM_MEMORY_MB_PAGES_2048 4096-1024 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 8192 by 1024, HW_NUMA_ROOT, below the root",
            "NUMA1": "VCPU 2-1 x4, PCPU 6, MEMORY_MB 20480-1512, CUSTOM_MEMORY_MB_PAGES_2048 8192 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 4096-1024 by 1024, HW_NUMA_ROOT, below the root",
            "0000:03:00.0": "CUSTOM_PCI_144D_A808 1-1, below the root",
            "0000:5e:00.0": "VGPU 16-2, CUSTOM_NVIDIA_222, below NUMA0",
            "0000:81:00.0": "SRIOV_NET_VF 4-1, CUSTOM_PHYSNET_PHYSNET1, CUSTOM_VNIC_TYPE_DIRECT, HW_NIC_SRIOV, below NUMA1",
        },
    ),
    "a virtual function in use keeps the physical one": (
        WHOLE,
        (foreign(functions=("0000:81:10.0",)),),
        {
            "0000:81:00.0": "CUSTOM_PCI_8086_1572 1-1, HW_NIC_SRIOV, below NUMA1",
        },
    ),
    "a physical function in use keeps all virtual ones": (
        an_offer(),
        (foreign(functions=("0000:81:00.0",)),),
        {
            "0000:81:00.0": "SRIOV_NET_VF 4-4, CUSTOM_PHYSNET_PHYSNET1, CUSTOM_VNIC_TYPE_DIRECT, HW_NIC_SRIOV, below NUMA1",
        },
    ),
    "a physical function in use": (
        WHOLE,
        (foreign(functions=("0000:81:00.0",)),),
        {
            "0000:81:00.0": "CUSTOM_PCI_8086_1572 1-1, HW_NIC_SRIOV, below NUMA1",
        },
    ),
    "10240 MB of a foreign guest where half is not offered": (
        PARTLY,
        (foreign(ForeignMemory(10_240, 0, (0,))),),
        {
            "NUMA0": "VCPU 2 x4, PCPU 6, MEMORY_MB 10240, CUSTOM_MEMORY_MB_PAGES_2048 4096-1024 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 8192 by 1024, HW_NUMA_ROOT, below the root",
        },
    ),
    "10241 MB of a foreign guest where half is not offered": (
        PARTLY,
        (foreign(ForeignMemory(10_241, 0, (0,))),),
        {
            "NUMA0": "VCPU 2 x4, PCPU 6, MEMORY_MB 10240-1, CUSTOM_MEMORY_MB_PAGES_2048 4096-1024 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 8192 by 1024, HW_NUMA_ROOT, below the root",
        },
    ),
    "99999 MB of a foreign guest where half is not offered": (
        PARTLY,
        (foreign(ForeignMemory(99_999, 0, (0,))),),
        {
            "NUMA0": "VCPU 2 x4, PCPU 6, MEMORY_MB 10240-10240, CUSTOM_MEMORY_MB_PAGES_2048 4096-1024 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 8192 by 1024, HW_NUMA_ROOT, below the root",
        },
    ),
    "1024 MB of a foreign guest where half is not offered in pages": (
        PARTLY,
        (foreign(ForeignMemory(1_024, 2_048, (0,))),),
        {
            "NUMA0": "VCPU 2 x4, PCPU 6, MEMORY_MB 10240, CUSTOM_MEMORY_MB_PAGES_2048 4096-1024 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 8192 by 1024, HW_NUMA_ROOT, below the root",
        },
    ),
    "1026 MB of a foreign guest where half is not offered in pages": (
        PARTLY,
        (foreign(ForeignMemory(1_026, 2_048, (0,))),),
        {
            "NUMA0": "VCPU 2 x4, PCPU 6, MEMORY_MB 10240, CUSTOM_MEMORY_MB_PAGES_2048 4096-1026 by 2, CUSTOM_MEMORY_MB_PAGES_1048576 8192 by 1024, HW_NUMA_ROOT, below the root",
        },
    ),
}


@pytest.mark.parametrize(("offer", "guests", "has"), CASES.values(), ids=CASES)
def test_a_host_has_this(offer: HostOffer, guests: tuple[ForeignGuest, ...], has: dict[str, str]) -> None:
    tree = tree_of(a_layout(offer), guests)
    assert flaw_of(tree, tree) is None
    assert words(tree).items() >= has.items()


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        (
            {"devices": ["8086:1572", "8086:154c@0000:81:10.[02]"]},
            r"devices offers 0000:81:00\.0 and its virtual function 0000:81:10\.0: .* whole, or",
        ),
        (
            {"devices": ["8086:154c@0000:81:10.0=physnet1", "8086:154c=physnet2"]},
            r"0000:81:00\.0 the networks CUSTOM_PHYSNET_PHYSNET1 and CUSTOM_PHYSNET_PHYSNET2",
        ),
        (
            {"mediated": ["nvidia-222", "nvidia-230"]},
            r"offers nvidia-222 and nvidia-230 of 0000:3b:00\.0: .* one type",
        ),
        (
            {"devices": ["10de:1eb8@0000:d8:*"], "mediated": ["nvidia-230"]},
            r"devices offers 0000:d8:00\.0, and mediated_types offers its nvidia-230",
        ),
        ({"cpus_dedicated": {3, 99}}, "cpus_dedicated has 99, which this machine does not have: it has 0-15"),
        ({"cpus_shared": {0, 1, 2}}, "cpus_shared and cpus_dedicated both have 1-2"),
        ({"cpus_shared": set(), "cpus_dedicated": set()}, "cpus_shared and cpus_dedicated are empty"),
    ],
)
def test_an_offer_that_cannot_be_is_refused(offer: dict[str, list[str]], words: str) -> None:
    read = {"devices": read_devices, "mediated": read_mediated}
    with pytest.raises(ValueError, match=words):
        a_layout(an_offer(**{name: read.get(name, frozenset)(value) for name, value in offer.items()}))


def test_ids_survive_a_restart_and_belong_to_the_root() -> None:
    first, again = tree_of(a_layout()), tree_of(a_layout())
    other = tree_of(
        layout_of(ProviderId(UUID(int=9)), two_cells(), an_offer(), devices=devices_of_two_cells())
    )

    assert first == again
    assert not set(first.providers) & set(other.providers)
    # Nothing is reported again, so an operator's own traits stay.
    assert report_of_changes(ReportState(first, 1), again, "cell1", 2) is None


def test_traits_are_those_of_os_traits_or_our_own() -> None:
    traits = named(tree_of(a_layout(an_offer(traits=frozenset({"CUSTOM_RACK_7"})))))[""].traits

    unknown = {each for each in traits if not each.startswith("CUSTOM_")} - set(os_traits.get_traits())
    assert not unknown
    assert {
        "COMPUTE_NODE",
        "COMPUTE_ARCH_X86_64",
        "HW_CPU_HYPERTHREADING",
        "HW_CPU_X86_AVX512F",
        "HW_CPU_X86_AVX512VNNI",
        "HW_CPU_X86_VMX",
        "CUSTOM_CPU_MODEL_SKYLAKE_SERVER_IBRS",
        "CUSTOM_CPU_X86_UMIP",
        "COMPUTE_STORAGE_BUS_VIRTIO",
        "COMPUTE_FIRMWARE_UEFI",
        "CUSTOM_RACK_7",
    } <= traits
    assert "COMPUTE_STORAGE_BUS_FDC" not in traits, "no domain of ours has a floppy disk"


def test_an_emulated_cpu_has_nothing_of_the_hosts_own() -> None:
    machine = read_machine(
        (TWO_CELLS / "capabilities.xml").read_text(), (UPSTREAM / "qemu_7.2.0-tcg.x86_64.xml").read_text()
    )

    def traits(offer: HostOffer) -> frozenset[str]:
        return tree_of(layout_of(ROOT, machine, offer)).providers[ROOT].traits

    model = traits(HostOffer(name="h1", domain_type="qemu", cpu_mode="host-model"))
    assert "HW_CPU_X86_AVX512F" not in model
    assert "HW_CPU_X86_MPX" in model, "QEMU emulates it"
    plain = traits(HostOffer(name="h1", domain_type="qemu"))
    assert not {each for each in plain if each.startswith(("HW_CPU_X86_", "CUSTOM_CPU_X86_"))}


def test_facts_name_the_hypervisor_and_the_kinds_of_guests() -> None:
    host = host_of(two_cells(), an_offer(availability_zone="az1"), "QEMU", 7_002_000)

    assert (host.name, host.availability_zone) == ("h1", "az1")
    assert (host.hypervisor_type, host.hypervisor_version) == ("QEMU", 7_002_000)
    assert [(each.architecture, each.hypervisor_type, each.vm_mode) for each in host.supports] == [
        ("x86_64", "kvm", "hvm")
    ]
    assert host.capabilities["cpu_info:model"] == "Skylake-Server-IBRS"
    assert host.capabilities["cpu_info:topology:threads"] == "2"
    assert "avx512f" in host.capabilities["cpu_info:features"].split()
    assert all(len(value) <= 1024 for value in host.capabilities.values())


def test_libvirts_own_machines_are_read() -> None:
    haswell = read_machine((UPSTREAM / "caps-qemu-kvm.xml").read_text(), DOMAIN_CAPABILITIES)
    assert [(cell.number, cell.memory_mb, len(cell.cpus)) for cell in haswell.cells] == [
        (0, 15_796, 8),
        (1, 16_123, 8),
    ]
    assert haswell.cells[0].huge_pages == ()
    assert haswell.cells[0].cpus == (0, 2, 4, 6, 8, 10, 12, 14)
    assert haswell.guest_kind("x86_64", "kvm") is not None
    assert haswell.guest_kind("armv6l", "kvm") is None

    arm = read_machine((UPSTREAM / "vircaps-aarch64-basic.xml").read_text())
    assert (arm.arch, len(arm.cells)) == ("aarch64", 4)
    paged = read_machine((UPSTREAM / "vircaps-x86_64-resctrl.xml").read_text())
    assert paged.cells[1].huge_pages == (HugePages(2_048, 6_144), HugePages(1_048_576, 8_192))
    assert paged.cells[1].small_pages_mb == 0, "this made-up machine has more in pages than it has memory"


def test_libvirts_own_devices_are_read() -> None:
    def one(name: str) -> NodeDevices:
        return read_node_devices([(UPSTREAM / f"{name}.xml").read_text()])

    physical = one("pci_0000_02_10_7_sriov_vfs").functions[0]
    assert physical.virtual == ("0000:02:00.2", "0000:02:00.3", "0000:02:00.4", "0000:02:00.5")
    virtual = one("pci_0000_02_10_7_sriov").functions[0]
    assert (virtual.address, virtual.physical, virtual.numa_node) == ("0000:02:10.7", "0000:02:00.1", 0)
    assert virtual.resource == "CUSTOM_PCI_8086_10CA"
    gpu = one("pci_0000_02_10_7_mdev_types").functions[0]
    assert [(each.name, each.available) for each in gpu.mediated_types] == [("foo1", 1), ("foo2", 2)]
    assert one("pci_82579LM_network_adapter").functions[0].numa_node == -1
    assert one("computer") == NodeDevices()
    assert one("mdev_3627463d_b7f0_4fea_b468_f1da537d301b") == NodeDevices(), "its parent is no PCI function"


def test_a_function_with_a_network_interface_is_a_network_card() -> None:
    card = (UPSTREAM / "pci_82579LM_network_adapter.xml").read_text()
    interface = (
        "<device><name>net_eth0</name><parent>pci_0000_00_19_0</parent>"
        "<capability type='net'><interface>eth0</interface></capability></device>"
    )

    assert not read_node_devices([card]).functions[0].is_network
    assert read_node_devices([card, interface]).functions[0].is_network


def test_a_machine_without_cells_is_one() -> None:
    text = "<capabilities><host><cpu><arch>x86_64</arch><topology sockets='1' cores='2' threads='2'/></cpu></host></capabilities>"
    offer = LibvirtRules(disk_gb=100, images_gb=7).offer(LibvirtHost("h1", ""), "kvm")
    layout = layout_of(ROOT, read_machine(text, memory_mb=4_096), offer)
    root = named(tree_of(layout))[""]

    assert layout.is_flat
    assert root.inventories["VCPU"].total == 4
    assert root.inventories["MEMORY_MB"] == ReportedInventory(total=4_096, reserved=512)
    # The room of the cache of images is not for guests.
    assert root.inventories["DISK_GB"] == ReportedInventory(total=100, reserved=7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "<capabilities> is no XML"),
        ("<capabilities/>", "<capabilities> has no <host>"),
        ("<domain/>", "libvirt's XML is a <domain>, must be a <capabilities>"),
        (
            "<capabilities><host><cpu/><topology><cells><cell id='x'/></cells></topology></host></capabilities>",
            "<cell> has the id 'x', must be a number",
        ),
        (
            "<capabilities><host><cpu/><topology><cells><cell id='0'><memory unit='XB'>1</memory></cell></cells></topology></host></capabilities>",
            "<memory> has the unit 'XB'",
        ),
    ],
)
def test_broken_capabilities_are_named(text: str, words: str) -> None:
    with pytest.raises(BadXmlError, match=words):
        read_machine(text)


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (read_devices, "8086", "devices has '8086', must be VENDOR:PRODUCT"),
        (read_devices, "8086:zzzz", "devices has '8086:zzzz'"),
        (read_mediated, "@0000:3b:00.0", "mediated_types has '@0000:3b:00.0', must be TYPE"),
        (read_pages, "0:2048", "pages_reserved has '0:2048', must be CELL:KIB=COUNT"),
    ],
)
def test_wrong_settings_are_named(read: object, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read([text])  # type: ignore[operator]


def test_settings_are_read() -> None:
    assert read_devices(["8086:154C@0000:81:*=PhysNet1", "*:*"]) == (
        DeviceOffer("8086", "154c", "0000:81:*", "PhysNet1"),
        DeviceOffer("*", "*"),
    )
    assert read_mediated(["nvidia-35", "nvidia-36@0000:3b:00.0=big"]) == (
        MediatedOffer("nvidia-35"),
        MediatedOffer("nvidia-36", "0000:3b:00.0", "big"),
    )
    assert read_pages(["1:2048=512"]) == (PagesKept(1, 2_048, 512),)
    with pytest.raises(ValueError, match="the pool 'big' with a and b: a pool has one type"):
        read_mediated(["a=big", "b=big"])


def test_a_domain_that_is_not_ours_is_read_as_what_it_takes() -> None:
    text = (DATA / "foreign_domain.xml").read_text()

    assert held_by(text) == ForeignGuest(
        name="database",
        uuid=UUID("c7a5fdbd-edaf-9455-926a-d65c16db1809"),
        pins=((1,), (9,), (4, 5)),
        memory=(ForeignMemory(1_024, 2_048, (0,)), ForeignMemory(512, 2_048, (1,))),
        functions=("0000:81:10.0", "0000:03:00.0"),
        mediated=(MADE[0],),
        macs=("52:54:00:6d:90:02",),
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("cpuset='9'", "cpuset='x'", "<vcpupin> cpuset has 'x'"),
        ("nodeset='1'", "nodeset='1-0'", "<memnode> nodeset has '1-0'"),
        ("c7a5fdbd-edaf-9455-926a-d65c16db1809", "7", "<domain> has the uuid '7', must be a uuid"),
        ("0f6c5b1e-3c0b-4a57-9a5e-7f5a5f0b7a01", "", "<hostdev> has the uuid '', must be a uuid"),
        ("vcpu='1'", "", "<vcpupin> has no vcpu"),
        ("bus='0x03'", "bus='zz'", "<address> has bus 'zz', must be a number"),
        ("size='2048'", "size='2 MB'", "<page> has the amount '2 MB', must be a number"),
        ("</domain>", "", "<domain> is no XML"),
    ],
)
def test_a_broken_domain_is_named(old: str, new: str, words: str) -> None:
    text = (DATA / "foreign_domain.xml").read_text()
    assert old in text

    with pytest.raises(BadXmlError, match=words):
        held_by(text.replace(old, new))
