"""Which part of its host a guest gets, as its claim says; and what its domain says of it."""

from uuid import UUID

import pytest
from msgspec import structs

from compute_sim.libvirt.core.domains import as_foreign, domain_xml
from compute_sim.libvirt.core.layout import HostLayout, read_devices, read_mediated
from compute_sim.libvirt.core.machine import MediatedDevice, NodeDevices
from compute_sim.libvirt.core.planning import NoPlan, plan_guest
from compute_sim.libvirt.core.plans import (
    CpuTopology,
    DomainCell,
    ForeignGuest,
    ForeignMemory,
    GuestDisk,
    GuestNic,
    GuestOrder,
    GuestPlan,
    PlannedMediated,
)
from compute_sim.libvirt.core.trees import tree_of
from engine.flavors import Flavor
from engine.inventories import ProviderId, ResourceAmount, Share
from tests.unit.compute.libvirt_machines import a_layout, an_offer, an_order, devices_of_two_cells, read_back

FOREIGN = UUID(int=0xF0)
MADE = (UUID("0f6c5b1e-3c0b-4a57-9a5e-7f5a5f0b7a01"), UUID("0f6c5b1e-3c0b-4a57-9a5e-7f5a5f0b7a02"))
SMALL = {"VCPU": 2, "MEMORY_MB": 2048}


def planned(order: GuestOrder, layout: HostLayout, *others: GuestPlan | ForeignGuest) -> GuestPlan:
    plan = plan_guest(order, layout, others)
    assert isinstance(plan, GuestPlan), plan
    assert read_back(domain_xml(plan)) == plan
    return plan


def refusal(order: GuestOrder, layout: HostLayout, *others: GuestPlan | ForeignGuest) -> str:
    plan = plan_guest(order, layout, others)
    assert isinstance(plan, NoPlan), plan
    return plan.reason


def specs(vcpus: int = 2, ram_mb: int = 2048, **extra: str) -> Flavor:
    """A flavor with these extra specs: `cpu_policy` stands for hw:cpu_policy."""
    return Flavor(
        vcpus=vcpus,
        ram_mb=ram_mb,
        extra_specs={f"hw:{name.replace('__', '.')}": value for name, value in extra.items()},
    )


def foreign(**what: object) -> ForeignGuest:
    return ForeignGuest(name="database", uuid=FOREIGN, **what)  # type: ignore[arg-type]


# CPUs.


def test_a_plain_guest_runs_on_the_shared_cpus_of_the_cell_that_it_claims() -> None:
    layout = a_layout()
    plan = planned(an_order(layout, {"NUMA1": SMALL}), layout)

    assert plan.pins == ((4, 12), (4, 12))
    assert plan.emulator == (4, 12)
    assert (plan.memory_cells, plan.cells, plan.dedicated) == ((1,), (), ())


def test_the_cpus_and_the_memory_of_a_plain_guest_may_be_in_two_cells() -> None:
    layout = a_layout()
    plan = planned(an_order(layout, {"NUMA0": {"VCPU": 2}, "NUMA1": {"MEMORY_MB": 2048}}), layout)

    assert plan.pins == ((0, 8), (0, 8))
    assert plan.memory_cells == (1,)


def test_dedicated_cpus_are_of_the_claimed_cell_and_no_other_guests() -> None:
    layout = a_layout()
    flavor = specs(cpu_policy="dedicated")
    first = planned(an_order(layout, {"NUMA1": {"PCPU": 2, "MEMORY_MB": 2048}}, flavor), layout)
    second = planned(an_order(layout, {"NUMA1": {"PCPU": 2, "MEMORY_MB": 2048}}, flavor, 2), layout, first)

    assert first.pins == ((5,), (13,)), "both threads of a core"
    assert first.dedicated == (5, 13)
    assert first.emulator == (5, 13)
    assert first.cells == (DomainCell((0, 1), 2048, 1),)
    assert not set(first.dedicated) & set(second.dedicated)


def test_prefer_fills_a_core_that_is_half_free_last() -> None:
    layout = a_layout()
    flavor = specs(vcpus=3, cpu_policy="dedicated", cpu_thread_policy="prefer")
    order = an_order(layout, {"NUMA0": {"PCPU": 3, "MEMORY_MB": 2048}}, flavor)

    assert planned(order, layout, foreign(pins=((1,),))).dedicated == (2, 9, 10), "CPU 9 is alone on its core"


def test_require_takes_at_least_two_threads_of_each_core() -> None:
    layout = a_layout()
    four = specs(vcpus=4, cpu_policy="dedicated", cpu_thread_policy="require")
    three = specs(vcpus=3, cpu_policy="dedicated", cpu_thread_policy="require")

    plan = planned(an_order(layout, {"NUMA0": {"PCPU": 4, "MEMORY_MB": 2048}}, four), layout)
    assert plan.dedicated == (1, 2, 9, 10)
    assert refusal(an_order(layout, {"NUMA0": {"PCPU": 3, "MEMORY_MB": 2048}}, three), layout) == (
        "NUMA cell 0 cannot give 3 dedicated CPUs with hw:cpu_thread_policy=require: 1-3,9-11 of 1-3,9-11 are free"
    )


def test_isolate_keeps_the_other_threads_idle() -> None:
    layout = a_layout()
    flavor = specs(cpu_policy="dedicated", cpu_thread_policy="isolate")
    first = planned(an_order(layout, {"NUMA0": {"PCPU": 2, "MEMORY_MB": 2048}}, flavor), layout)
    second = an_order(layout, {"NUMA0": {"PCPU": 2, "MEMORY_MB": 2048}}, flavor, 2)

    assert first.pins == ((1,), (2,))
    assert first.dedicated == (1, 2, 9, 10)
    assert refusal(second, layout, first) == (
        "NUMA cell 0 cannot give 2 dedicated CPUs with hw:cpu_thread_policy=isolate: 3,11 of 1-3,9-11 are free; "
        "1 is guest-1's, 2 is guest-1's, 9 is guest-1's, 10 is guest-1's"
    )


def test_isolate_takes_no_core_with_a_shared_thread() -> None:
    layout = a_layout(an_offer(cpus_dedicated=frozenset({1, 2, 10})))
    flavor = specs(vcpus=1, cpu_policy="dedicated", cpu_thread_policy="isolate")
    plan = planned(an_order(layout, {"NUMA0": {"PCPU": 1, "MEMORY_MB": 2048}}, flavor), layout)

    assert plan.dedicated == (2, 10), "CPU 9, on the core of CPU 1, is shared"


def test_mixed_cpus_are_dedicated_where_the_mask_says() -> None:
    layout = a_layout()
    flavor = specs(vcpus=4, cpu_policy="mixed", cpu_dedicated_mask="2-3")
    plan = planned(an_order(layout, {"NUMA0": {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 2048}}, flavor), layout)

    assert plan.pins == ((0, 8), (0, 8), (1,), (9,))
    assert plan.dedicated == (1, 9)


def test_the_emulator_has_a_dedicated_cpu_of_its_own() -> None:
    layout = a_layout()
    flavor = specs(cpu_policy="dedicated", emulator_threads_policy="isolate")
    plan = planned(an_order(layout, {"NUMA0": {"PCPU": 3, "MEMORY_MB": 2048}}, flavor), layout)

    assert plan.pins == ((1,), (9,))
    assert plan.emulator == (2,)
    assert plan.dedicated == (1, 2, 9)


def test_the_emulator_shares_the_shared_cpus_of_the_cell() -> None:
    flavor = specs(cpu_policy="dedicated", emulator_threads_policy="share")
    layout = a_layout()
    without = a_layout(an_offer(cpus_shared=frozenset()))
    claim = {"NUMA0": {"PCPU": 2, "MEMORY_MB": 2048}}

    assert planned(an_order(layout, claim, flavor), layout).emulator == (0, 8)
    assert planned(an_order(without, claim, flavor), without).emulator == (1, 9), "there are no shared ones"


def test_a_cpu_that_a_foreign_domain_is_pinned_to_is_named() -> None:
    layout = a_layout()
    flavor = specs(vcpus=6, cpu_policy="dedicated")
    order = an_order(layout, {"NUMA0": {"PCPU": 6, "MEMORY_MB": 2048}}, flavor)

    assert refusal(order, layout, foreign(pins=((2,),))) == (
        "NUMA cell 0 cannot give 6 dedicated CPUs: 1,3,9-11 of 1-3,9-11 are free; 2 is database's"
    )


def test_a_flat_host_gives_any_of_its_cpus() -> None:
    layout = a_layout(an_offer(flat=True))
    shared = planned(an_order(layout, {"": SMALL}), layout)
    dedicated = planned(
        an_order(layout, {"": {"PCPU": 2, "MEMORY_MB": 2048}}, specs(cpu_policy="dedicated")), layout
    )

    assert shared.pins == ((0, 4, 8, 12),) * 2
    assert shared.memory_cells == ()
    assert dedicated.dedicated == (1, 9)
    assert dedicated.cells == (DomainCell((0, 1), 2048),)
    assert "numatune" not in domain_xml(shared) + domain_xml(dedicated)


def test_dedicated_cpus_may_be_asked_for_as_amounts() -> None:
    layout = a_layout()
    flavor = Flavor(vcpus=3, ram_mb=2048, extra_specs={"resources:PCPU": "1", "resources:VCPU": "2"})
    plan = planned(an_order(layout, {"NUMA0": {"VCPU": 2, "PCPU": 1, "MEMORY_MB": 2048}}, flavor), layout)

    assert plan.pins == ((0, 8), (0, 8), (1,))
    assert plan.dedicated == (1,)


# Memory.


def test_each_guest_cell_is_on_the_host_cell_that_its_part_is_claimed_from() -> None:
    layout = a_layout()
    flavor = specs(
        vcpus=3,
        ram_mb=3072,
        numa_nodes="2",
        numa_cpus__0="0",
        numa_mem__0="1024",
        numa_cpus__1="1,2",
        numa_mem__1="2048",
    )
    claim = {"NUMA0": {"VCPU": 2, "MEMORY_MB": 2048}, "NUMA1": {"VCPU": 1, "MEMORY_MB": 1024}}
    plan = planned(an_order(layout, claim, flavor), layout)

    assert plan.cells == (DomainCell((0,), 1024, 1), DomainCell((1, 2), 2048, 0))
    assert plan.pins == ((4, 12), (0, 8), (0, 8))
    assert refusal(an_order(layout, {"NUMA0": claim["NUMA0"]}, flavor), layout).startswith(
        "guest cell 0 takes"
    )


def test_pages_are_of_the_claimed_size_and_counted() -> None:
    layout = a_layout()
    flavor = specs(ram_mb=4096, mem_page_size="1GB")
    claim = {"NUMA1": {"VCPU": 2, "CUSTOM_MEMORY_MB_PAGES_1048576": 4096}}
    plan = planned(an_order(layout, claim, flavor), layout)

    assert (plan.page_kib, plan.memory_mb) == (1_048_576, 4096)
    assert refusal(an_order(layout, claim, flavor, 2), layout, plan) == (
        "NUMA cell 1 has 0 MB of 4096 MB in pages of 1048576 KiB free, and 4096 MB are claimed"
    )
    taken = foreign(memory=(ForeignMemory(1024, 1_048_576, (1,)),))
    assert "has 3072 MB of 4096 MB" in refusal(an_order(layout, claim, flavor), layout, taken)


def test_the_pages_of_a_guest_that_was_built_before_the_host_had_cells_are_counted() -> None:
    flat, layout = a_layout(an_offer(flat=True)), a_layout()
    large = specs(ram_mb=10_240, mem_page_size="1GB")
    old = planned(an_order(flat, {"": {"VCPU": 2, "CUSTOM_MEMORY_MB_PAGES_1048576": 10_240}}, large), flat)
    order = an_order(
        layout,
        {"NUMA1": {"VCPU": 2, "CUSTOM_MEMORY_MB_PAGES_1048576": 1024}},
        specs(ram_mb=1024, mem_page_size="1GB"),
        2,
    )

    # A third of its ten pages may be in this cell, which has a third of the host's twelve.
    assert "NUMA cell 1 has 682 MB of 4096 MB" in refusal(order, layout, old)


def test_a_guest_without_memory_is_refused() -> None:
    layout = a_layout()
    order = an_order(layout, {"NUMA0": {"VCPU": 1}}, Flavor(vcpus=1))

    assert (
        refusal(order, layout) == "flavor.ram_mb is 0, and no memory is claimed: a virtual machine needs some"
    )


# Devices.


def test_no_function_is_given_twice() -> None:
    layout = a_layout()
    claim = {"NUMA1": SMALL, "0000:81:00.0": {"SRIOV_NET_VF": 2}}
    first = planned(an_order(layout, claim), layout)
    second = planned(an_order(layout, claim, number=2), layout, first)

    given = [each.address for each in (*first.functions, *second.functions)]
    assert sorted(given) == ["0000:81:10.0", "0000:81:10.2", "0000:81:10.4", "0000:81:10.6"]
    assert "0000:81:10.0 is guest-1's" in refusal(an_order(layout, claim, number=3), layout, first, second)


def test_a_guest_with_the_whole_card_keeps_its_virtual_functions() -> None:
    """The settings have changed since: the card was passed through whole, or by its virtual functions."""
    in_parts, in_one = a_layout(), a_layout(an_offer(devices=read_devices(["8086:1572"])))
    whole = an_order(in_one, {"NUMA1": SMALL, "0000:81:00.0": {"CUSTOM_PCI_8086_1572": 1}})
    part = an_order(in_parts, {"NUMA1": SMALL, "0000:81:00.0": {"SRIOV_NET_VF": 1}}, number=2)

    assert refusal(part, in_parts, planned(whole, in_one)) == (
        "h1_0000:81:00.0 has 0 free SRIOV_NET_VF, and 1 are claimed: 0000:81:00.0 is guest-1's"
    )
    assert refusal(whole, in_one, planned(part, in_parts)) == (
        "h1_0000:81:00.0 has 0 free CUSTOM_PCI_8086_1572, and 1 are claimed: 0000:81:10.0 is guest-2's"
    )
    assert refusal(part, in_one) == "h1_0000:81:00.0 gives no SRIOV_NET_VF any more, and 1 are claimed"


def test_a_device_that_vanished_is_named() -> None:
    layout = a_layout()
    order = an_order(layout, {"NUMA0": SMALL, "0000:03:00.0": {"CUSTOM_PCI_144D_A808": 1}})
    gone = a_layout(devices=without(devices_of_two_cells(), "0000:03:00.0"))
    known = tree_of(layout)

    assert plan_guest(order, gone, known=known) == NoPlan(
        "h1_0000:03:00.0 is not on this host any more; 1 CUSTOM_PCI_144D_A808 of it are claimed"
    )
    assert "provider" in refusal(order, gone)
    port = an_order(layout, {"NUMA0": SMALL, "0000:81:00.0": {"SRIOV_NET_VF": 1}})
    bare = a_layout(
        devices=without(devices_of_two_cells(), *(f"0000:81:10.{number}" for number in (0, 2, 4, 6)))
    )
    assert refusal(port, bare).endswith("is not on this host any more; 1 SRIOV_NET_VF of it are claimed")


def test_amounts_of_pools_are_none_of_the_hosts_business() -> None:
    layout = a_layout()
    order = an_order(layout, {"NUMA0": SMALL})
    pool = ResourceAmount(provider=ProviderId(UUID(int=5)), resource="DISK_GB", amount=10)
    planned(
        structs.replace(order, share=Share(host=layout.root, amounts=(*order.share.amounts, pool))), layout
    )


def without(devices: NodeDevices, *addresses: str) -> NodeDevices:
    left = tuple(
        structs.replace(each, virtual=tuple(one for one in each.virtual if one not in addresses))
        for each in devices.functions
        if each.address not in addresses
    )
    return structs.replace(devices, functions=left)


def test_mediated_devices_are_made_of_the_claimed_gpu_and_type() -> None:
    layout = a_layout()
    claim = {"NUMA0": SMALL, "0000:3b:00.0": {"VGPU": 3}}
    first = planned(an_order(layout, claim), layout)
    again = planned(an_order(layout, claim), layout)

    assert [(each.type, each.parent) for each in first.mediated] == [("nvidia-230", "0000:3b:00.0")] * 3
    assert len({each.uuid for each in first.mediated}) == 3
    assert first == again, "a build that is repeated makes the same devices"
    # The GPU can make four, and says so until the first guest's are made.
    assert refusal(an_order(layout, claim, number=2), layout, first) == (
        "h1_0000:3b:00.0 can make 1 devices of nvidia-230, and 3 VGPU are claimed"
    )
    other = a_layout(an_offer(mediated=read_mediated(["nvidia-222"])))
    claim = {"NUMA0": SMALL, "0000:3b:00.0": {"VGPU": 1}}
    assert "can make 0 devices of nvidia-222" in refusal(an_order(other, claim, number=2), other, first)


def test_a_mediated_device_that_nobody_has_comes_last() -> None:
    layout = a_layout(an_offer(mediated=read_mediated(["nvidia-222@0000:5e:*"])))
    fifteen = an_order(layout, {"NUMA0": SMALL, "0000:5e:00.0": {"VGPU": 15}})
    plan = planned(fifteen, layout, foreign(mediated=(MADE[0],)))

    assert plan.mediated[-1] == PlannedMediated(MADE[1], "nvidia-222", "0000:5e:00.0")
    assert MADE[0] not in {each.uuid for each in plan.mediated}
    sixteen = an_order(layout, {"NUMA0": SMALL, "0000:5e:00.0": {"VGPU": 16}})
    assert "can make 15 devices" in refusal(sixteen, layout, foreign(mediated=(MADE[0],)))


def test_a_pool_of_gpus_gives_of_any_of_them() -> None:
    layout = a_layout(
        an_offer(mediated=read_mediated(["nvidia-230@0000:3b:*=t4", "nvidia-230@0000:d8:*=t4"]))
    )
    plan = planned(an_order(layout, {"NUMA0": SMALL, "t4": {"VGPU": 6}}), layout)

    assert [each.parent for each in plan.mediated] == ["0000:3b:00.0"] * 4 + ["0000:d8:00.0"] * 2


def test_a_gpu_that_makes_devices_is_not_given_whole() -> None:
    """The settings have changed since: the GPU made mediated devices, or was passed through whole."""
    in_parts = a_layout()
    in_one = a_layout(an_offer(devices=read_devices(["10de:1eb8@0000:d8:*"]), mediated=()))
    part = planned(an_order(in_parts, {"NUMA1": SMALL, "0000:d8:00.0": {"VGPU": 1}}), in_parts)
    whole = an_order(in_one, {"NUMA1": SMALL, "0000:d8:00.0": {"CUSTOM_PCI_10DE_1EB8": 1}}, number=2)

    made = MediatedDevice(part.mediated[0].uuid, "nvidia-222", "0000:d8:00.0")
    for at in (in_one, structs.replace(in_one, mediated=(*in_one.mediated, made))):
        assert "0000:d8:00.0 makes a mediated device of guest-1" in refusal(whole, at, part)
    assert "can make 0 devices" in refusal(
        an_order(in_parts, {"NUMA1": SMALL, "0000:d8:00.0": {"VGPU": 1}}), in_parts, planned(whole, in_one)
    )


# The rest of a domain.


def test_images_choose_hardware_that_they_know() -> None:
    layout = a_layout()
    properties = {
        "hw_machine_type": "q35",
        "hw_disk_bus": "scsi",
        "hw_vif_model": "e1000e",
        "hw_video_model": "virtio",
        "hw_firmware_type": "uefi",
    }
    order = an_order(
        layout,
        {"NUMA0": SMALL},
        image_properties=properties,
        disks=(GuestDisk("/disks/1"), GuestDisk("/disks/2", "raw", "cdrom")),
        nics=(
            GuestNic("52:54:00:00:00:01", "default"),
            GuestNic("52:54:00:00:00:02", "br0", "bridge", "virtio"),
        ),
    )
    plan = planned(order, layout)

    assert [(disk.path, disk.bus) for disk in plan.disks] == [("/disks/1", "scsi"), ("/disks/2", "sata")]
    assert [nic.model for nic in plan.nics] == ["e1000e", "virtio"]
    assert (plan.machine_type, plan.video, plan.firmware) == ("q35", "virtio", "efi")


def test_a_kernel_and_its_words_are_in_the_domain() -> None:
    layout = a_layout()
    order = an_order(
        layout,
        {"NUMA0": SMALL},
        kernel="/images/vmlinuz <1>",
        ramdisk="/images/initrd&",
        cmdline=' console=ttyS0 a="b" ',
        console_log="/logs/1.log",
        name='my "first" \x00 <guest>\n\\',
    )
    plan = planned(order, layout)

    assert (plan.kernel, plan.cmdline, plan.name) == (order.kernel, order.cmdline, order.name)
    assert "<boot" not in domain_xml(plan)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (
            {"image_properties": {"hw_machine_type": "pc-99"}},
            "hw_machine_type is 'pc-99', which libvirt does not know for x86_64; it knows pc-i440fx-7.2, pc, pc-q35-7.2",
        ),
        (
            {"image_properties": {"hw_architecture": "sparc"}},
            "this libvirt runs no sparc guests of the type kvm",
        ),
        (
            {"image_properties": {"hw_disk_bus": "fdc"}},
            "image_properties.hw_disk_bus is 'fdc', must be one of virtio, scsi, sata, ide, usb",
        ),
        ({"image_properties": {"hw_firmware_type": "coreboot"}}, "must be one of bios, uefi"),
        (
            {"image_properties": {"hw_firmware_type": "bios", "hw_architecture": "aarch64"}},
            "this libvirt runs no aarch64 guests",
        ),
        ({"flavor": specs(cpu_threads="0")}, "hw:cpu_threads is '0', must be a number from 1 to 2"),
        ({"flavor": specs(vcpus=3, cpu_sockets="2")}, "2 sockets of 1 cores of 1 threads are not the 3 CPUs"),
        (
            {"flavor": specs(numa_nodes="x")},
            "flavor.extra_specs.hw:numa_nodes is 'x': a guest has 1 to 16 NUMA cells",
        ),
        ({"cmdline": "a\x01"}, "cmdline is 'a\\x01': '\\x01' cannot be written into a domain"),
    ],
)
def test_what_cannot_be_built_is_named(terms: dict[str, object], words: str) -> None:
    layout = a_layout()
    terms = {"flavor": specs()} | terms

    assert words in refusal(an_order(layout, {"NUMA0": SMALL}, **terms), layout)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "topology"),
    [
        ({"cpu_threads": "2"}, CpuTopology(2, 1, 2)),
        ({"cpu_cores": "2", "cpu_threads": "2"}, CpuTopology(1, 2, 2)),
        ({"cpu_sockets": "2"}, CpuTopology(2, 2, 1)),
        ({}, None),
    ],
)
def test_a_guest_has_the_sockets_and_cores_that_are_asked_for(
    asked: dict[str, str], topology: CpuTopology | None
) -> None:
    layout = a_layout()
    order = an_order(layout, {"NUMA0": {"VCPU": 4, "MEMORY_MB": 2048}}, specs(4, 2048, **asked))

    assert planned(order, layout).topology == topology


def test_a_guest_of_another_compute_is_foreign() -> None:
    layout = a_layout()
    flavor = specs(cpu_policy="dedicated")
    plan = planned(an_order(layout, {"NUMA0": {"PCPU": 2, "MEMORY_MB": 2048}}, flavor), layout)

    assert as_foreign(domain_xml(plan)) == ForeignGuest(
        name="guest-1", uuid=plan.instance, pins=((1,), (9,)), memory=(ForeignMemory(2048, 0, (0,)),)
    )


def test_guests_see_the_hosts_cpu_where_kvm_runs_them() -> None:
    modes = {
        ("kvm", ""): "host-model",
        ("qemu", ""): "",
        ("qemu", "host-model"): "host-model",
        ("kvm", "host-passthrough"): "host-passthrough",
    }
    for (domain_type, cpu_mode), expected in modes.items():
        layout = a_layout(an_offer(domain_type=domain_type, cpu_mode=cpu_mode))
        assert planned(an_order(layout, {"NUMA0": SMALL}), layout).cpu_mode == expected


@pytest.mark.parametrize(("asked", "written"), [("bios", ""), ("uefi", "efi"), ("", "")])
def test_a_bios_is_what_guests_have_anyway(asked: str, written: str) -> None:
    layout = a_layout()
    order = an_order(layout, {"NUMA0": SMALL}, image_properties={"hw_firmware_type": asked})

    assert planned(order, layout).firmware == written


@pytest.mark.parametrize(
    ("machine_type", "known", "bus"),
    [
        ("", ("pc", "q35"), "ide"),
        ("", ("q35",), "sata"),
        ("pc-q35-7.2", ("pc-q35-7.2",), "sata"),
        ("", (), "ide"),
    ],
)
def test_a_config_drive_is_on_a_bus_that_the_machine_has(
    machine_type: str, known: tuple[str, ...], bus: str
) -> None:
    layout = a_layout()
    kind = structs.replace(layout.machine.guests[0], machines=known)
    layout = structs.replace(layout, machine=structs.replace(layout.machine, guests=(kind,)))
    drive = GuestDisk("/disks/config", "raw", "cdrom")
    properties = {"hw_machine_type": machine_type} if machine_type else {}
    plan = planned(an_order(layout, {"NUMA0": SMALL}, disks=(drive,), image_properties=properties), layout)

    assert [disk.bus for disk in plan.disks] == [bus]
