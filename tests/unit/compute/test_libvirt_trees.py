"""What a host under libvirt reports, from libvirt's own descriptions of machines."""

from uuid import UUID

import os_traits
import pytest

from compute_sim.core.hosts import read_networks
from compute_sim.core.trees import ReportState, flaw_of, report_of_changes
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

FOREIGN = UUID(int=0xF0)
# The mediated devices that exist on the machine.
MADE = (UUID("0f6c5b1e-3c0b-4a57-9a5e-7f5a5f0b7a01"), UUID("0f6c5b1e-3c0b-4a57-9a5e-7f5a5f0b7a02"))


def pages(total: int, page: int, reserved: int = 0) -> ReportedInventory:
    return ReportedInventory(total=total, reserved=reserved, min_unit=page, step_size=page)


def test_cells_have_shared_and_dedicated_cpus_and_memory_by_page_size() -> None:
    tree = tree_of(a_layout())
    found = named(tree)

    assert flaw_of(tree, tree) is None
    assert found[""].inventories == {"DISK_GB": ReportedInventory(total=500)}
    assert found["NUMA0"].inventories == {
        "VCPU": ReportedInventory(total=2, allocation_ratio=4.0),
        "PCPU": ReportedInventory(total=6),
        # 32 GiB less 4 and 8 GiB in huge pages.
        "MEMORY_MB": ReportedInventory(total=20_480, reserved=512),
        "CUSTOM_MEMORY_MB_PAGES_2048": pages(4_096, 2),
        "CUSTOM_MEMORY_MB_PAGES_1048576": pages(8_192, 1_024),
    }
    assert found["NUMA1"].inventories["CUSTOM_MEMORY_MB_PAGES_2048"] == pages(8_192, 2)
    assert found["NUMA0"].traits == found["NUMA1"].traits == {"HW_NUMA_ROOT"}
    assert found["NUMA0"].parent == found["NUMA1"].parent == ROOT


def test_the_virtual_functions_of_a_card_are_one_provider() -> None:
    found = named(tree_of(a_layout()))

    card = found["0000:81:00.0"]
    assert card.inventories == {"SRIOV_NET_VF": ReportedInventory(total=4)}
    assert card.parent == found["NUMA1"].id
    assert card.traits == {"HW_NIC_SRIOV", "CUSTOM_PHYSNET_PHYSNET1", "CUSTOM_VNIC_TYPE_DIRECT"}
    assert found["0000:03:00.0"].parent == ROOT, "the disk is near no cell"
    assert found["0000:03:00.0"].inventories == {"CUSTOM_PCI_144D_A808": ReportedInventory(total=1)}


def test_a_card_is_passed_through_whole_if_the_settings_say_so() -> None:
    offer = an_offer(devices=read_devices(["8086:1572=physnet1"]))
    card = named(tree_of(a_layout(offer)))["0000:81:00.0"]

    assert card.inventories == {"CUSTOM_PCI_8086_1572": ReportedInventory(total=1)}
    assert card.traits == {"HW_NIC_SRIOV", "CUSTOM_PHYSNET_PHYSNET1", "CUSTOM_VNIC_TYPE_DIRECT_PHYSICAL"}


def test_a_card_is_not_offered_whole_and_in_virtual_functions() -> None:
    offer = an_offer(devices=read_devices(["8086:1572", "8086:154c@0000:81:10.[02]"]))

    with pytest.raises(
        ValueError, match=r"devices offers 0000:81:00\.0 and its virtual function 0000:81:10\.0: .* whole, or"
    ):
        a_layout(offer)


def test_virtual_functions_are_offered_without_their_physical_one() -> None:
    offer = an_offer(devices=read_devices(["8086:154c@0000:81:10.[02]"]))
    card = named(tree_of(a_layout(offer)))["0000:81:00.0"]

    assert card.inventories == {"SRIOV_NET_VF": ReportedInventory(total=2)}
    assert card.traits == {"HW_NIC_SRIOV"}


def test_functions_of_one_card_are_on_one_network() -> None:
    offer = an_offer(devices=read_devices(["8086:154c@0000:81:10.0=physnet1", "8086:154c=physnet2"]))

    with pytest.raises(
        ValueError, match=r"0000:81:00\.0 the networks CUSTOM_PHYSNET_PHYSNET1 and CUSTOM_PHYSNET_PHYSNET2"
    ):
        a_layout(offer)


def test_each_gpu_makes_devices_of_the_type_that_the_settings_give_it() -> None:
    found = named(tree_of(a_layout()))

    assert found["0000:3b:00.0"].inventories == {"VGPU": ReportedInventory(total=4)}
    assert found["0000:3b:00.0"].traits == {"CUSTOM_NVIDIA_230"}
    assert found["0000:3b:00.0"].parent == found["NUMA0"].id
    assert found["0000:5e:00.0"].inventories == {"VGPU": ReportedInventory(total=16)}
    assert found["0000:5e:00.0"].traits == {"CUSTOM_NVIDIA_222"}


def test_a_gpu_of_several_types_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"mediated_types offers nvidia-222 and nvidia-230 of 0000:3b:00\.0: .* one type"
    ):
        a_layout(an_offer(mediated=read_mediated(["nvidia-222", "nvidia-230"])))


def test_a_gpu_of_one_type_has_plain_vgpus() -> None:
    offer = an_offer(mediated=read_mediated(["nvidia-230"]))
    found = named(tree_of(a_layout(offer)))

    assert found["0000:d8:00.0"].inventories == {"VGPU": ReportedInventory(total=4)}
    assert found["0000:d8:00.0"].traits == {"CUSTOM_NVIDIA_230"}


def test_several_gpus_are_one_pool() -> None:
    near = an_offer(mediated=read_mediated(["nvidia-222@0000:3b:*=t4", "nvidia-222@0000:5e:*=t4"]))
    far = an_offer(mediated=read_mediated(["nvidia-222=t4"]))

    pool = named(tree_of(a_layout(near)))["t4"]
    assert pool.inventories == {"VGPU": ReportedInventory(total=32)}
    assert pool.traits == {"CUSTOM_NVIDIA_222"}
    assert pool.parent == a_layout().cells[0].provider
    wide = named(tree_of(a_layout(far)))["t4"]
    assert wide.inventories == {"VGPU": ReportedInventory(total=48)}
    assert wide.parent == ROOT, "its GPUs are near different cells"


def test_a_gpu_is_not_offered_whole_and_for_mediated_devices() -> None:
    offer = an_offer(devices=read_devices(["10de:1eb8@0000:d8:*"]), mediated=read_mediated(["nvidia-230"]))

    with pytest.raises(
        ValueError, match=r"devices offers 0000:d8:00\.0, and mediated_types offers its nvidia-230"
    ):
        a_layout(offer)


def test_a_flat_host_has_all_on_its_root() -> None:
    found = named(tree_of(a_layout(an_offer(flat=True))))

    assert "NUMA0" not in found
    assert found[""].inventories == {
        "DISK_GB": ReportedInventory(total=500),
        "VCPU": ReportedInventory(total=4, allocation_ratio=4.0),
        "PCPU": ReportedInventory(total=12),
        "MEMORY_MB": ReportedInventory(total=40_960, reserved=1_024),
        "CUSTOM_MEMORY_MB_PAGES_2048": pages(12_288, 2),
        "CUSTOM_MEMORY_MB_PAGES_1048576": pages(12_288, 1_024),
    }
    assert found["0000:81:00.0"].parent == ROOT


def test_two_computes_offer_different_parts_of_one_machine() -> None:
    one = a_layout(
        an_offer(name="a", cpus_dedicated=frozenset(), cpus_shared=frozenset({0, 1}), memory_mb=8_000)
    )
    other = layout_of(ROOT, two_cells(), HostOffer(name="b", cpus_shared=frozenset({4, 2}), memory_mb=1_001))

    assert [(cell.number, cell.shared, cell.memory_mb) for cell in one.cells] == [(0, (0, 1), 8_000)]
    assert [(cell.shared, cell.memory_mb) for cell in other.cells] == [((2,), 500), ((4,), 501)]


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (
            {"cpus_dedicated": frozenset({3, 99})},
            "cpus_dedicated has 99, which this machine does not have: it has 0-15",
        ),
        ({"cpus_shared": frozenset({0, 1, 2})}, "cpus_shared and cpus_dedicated both have 1-2"),
        (
            {"cpus_shared": frozenset(), "cpus_dedicated": frozenset()},
            "cpus_shared and cpus_dedicated are empty",
        ),
    ],
)
def test_an_offer_of_what_is_not_there_is_refused(terms: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        a_layout(an_offer(**terms))


def test_ids_survive_a_restart_and_belong_to_the_root() -> None:
    first, again = tree_of(a_layout()), tree_of(a_layout())
    other = tree_of(
        layout_of(ProviderId(UUID(int=9)), two_cells(), an_offer(), devices=devices_of_two_cells())
    )

    assert first == again
    assert not set(first.providers) & set(other.providers)
    # Nothing is reported again, so an operator's own traits stay.
    assert report_of_changes(ReportState(first, 1), again, "cell1", 2) is None


def test_foreign_guests_are_reserved() -> None:
    foreign = (
        # Two CPUs on dedicated ones of cell 0, one on the shared ones of cell 1, and three anywhere.
        ForeignGuest(
            name="pinned",
            uuid=FOREIGN,
            pins=((1,), (9,), (4, 12)),
            memory=(ForeignMemory(1_024, 2_048, (0,)), ForeignMemory(1_024, 1_048_576, (1,))),
            functions=("0000:03:00.0", "0000:81:10.0"),
            mediated=MADE,
        ),
        ForeignGuest(name="loose", uuid=FOREIGN, pins=((), (), ()), memory=(ForeignMemory(2_000),)),
    )
    found = named(tree_of(a_layout(), foreign))

    assert found["NUMA0"].inventories["PCPU"] == ReportedInventory(total=6, reserved=2)
    assert found["NUMA1"].inventories["PCPU"] == ReportedInventory(total=6)
    # With a ratio of 4, one and a half guest CPUs in cell 0 take one shared CPU, and two and a half in cell 1 too.
    assert found["NUMA0"].inventories["VCPU"].reserved == 1
    assert found["NUMA1"].inventories["VCPU"].reserved == 1
    assert found["NUMA0"].inventories["MEMORY_MB"].reserved == 512 + 1_000
    assert found["NUMA0"].inventories["CUSTOM_MEMORY_MB_PAGES_2048"] == pages(4_096, 2, 1_024)
    assert found["NUMA1"].inventories["CUSTOM_MEMORY_MB_PAGES_1048576"] == pages(4_096, 1_024, 1_024)
    assert found["0000:03:00.0"].inventories["CUSTOM_PCI_144D_A808"].reserved == 1
    card = found["0000:81:00.0"].inventories
    assert card["SRIOV_NET_VF"].reserved == 1
    assert found["0000:5e:00.0"].inventories["VGPU"] == ReportedInventory(total=16, reserved=2)
    whole = a_layout(an_offer(devices=read_devices(["8086:1572"])))
    card = named(tree_of(whole, foreign))["0000:81:00.0"].inventories
    assert card["CUSTOM_PCI_8086_1572"].reserved == 1, "a virtual function in use keeps the physical one"


def test_a_physical_function_of_a_foreign_guest_keeps_all_virtual_ones() -> None:
    foreign = (ForeignGuest(name="router", uuid=FOREIGN, functions=("0000:81:00.0",)),)
    card = named(tree_of(a_layout(), foreign))["0000:81:00.0"].inventories

    assert card["SRIOV_NET_VF"].reserved == 4
    whole = a_layout(an_offer(devices=read_devices(["8086:1572"])))
    card = named(tree_of(whole, foreign))["0000:81:00.0"].inventories
    assert card["CUSTOM_PCI_8086_1572"].reserved == 1


def test_foreign_guests_use_first_what_the_host_does_not_offer() -> None:
    offer = an_offer(memory_mb=20_480, memory_reserved_mb=0, pages_kept=(PagesKept(0, 2_048, 512),))

    def reserved(mb: int, kib: int = 0) -> int:
        foreign = (ForeignGuest(name="other", uuid=FOREIGN, memory=(ForeignMemory(mb, kib, (0,)),)),)
        resource = f"CUSTOM_MEMORY_MB_PAGES_{kib}" if kib else "MEMORY_MB"
        return named(tree_of(a_layout(offer), foreign))["NUMA0"].inventories[resource].reserved

    # Half of the cell's 20,480 MB are not offered.
    assert (reserved(10_000), reserved(10_240), reserved(10_241), reserved(99_999)) == (0, 0, 1, 10_240)
    assert (reserved(2, 2_048), reserved(1_024, 2_048), reserved(1_026, 2_048)) == (1_024, 1_024, 1_026)


def test_networks_have_bandwidth_as_of_simulated_hosts() -> None:
    offer = an_offer(networks=read_networks(["physnet0=10000000"]))
    network = named(tree_of(a_layout(offer)))[":physnet0"]

    assert network.parent == ROOT
    assert set(network.inventories) == {"NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC"}
    assert network.traits == {"CUSTOM_PHYSNET_PHYSNET0", "CUSTOM_VNIC_TYPE_NORMAL"}


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


def test_features_of_the_whole_model_count_where_libvirt_writes_them_out() -> None:
    expanded = "<cpu><arch>x86_64</arch><model>Skylake</model><feature policy='require' name='aes'/><feature policy='disable' name='mpx'/></cpu>"
    machine = read_machine((TWO_CELLS / "capabilities.xml").read_text(), expanded_cpu=expanded)
    traits = tree_of(layout_of(ROOT, machine, an_offer())).providers[ROOT].traits

    assert "HW_CPU_X86_AESNI" in traits
    assert "HW_CPU_X86_MPX" not in traits


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
    layout = layout_of(ROOT, read_machine(text, memory_mb=4_096), HostOffer(name="h1"))
    root = named(tree_of(layout))[""]

    assert layout.is_flat
    assert root.inventories["VCPU"].total == 4
    assert root.inventories["MEMORY_MB"] == ReportedInventory(total=4_096, reserved=512)


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
