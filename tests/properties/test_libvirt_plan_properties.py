"""Whatever a guest's plan says, its domain says the same: a compute that has restarted reads back what it had written."""

import string
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from compute_sim.libvirt.core.domains import as_foreign, domain_xml
from compute_sim.libvirt.core.machine import cpus_in_words, read_cpus
from compute_sim.libvirt.core.plans import (
    CpuTopology,
    DomainCell,
    GuestDisk,
    GuestNic,
    GuestPlan,
    PlannedFunction,
    PlannedMediated,
)
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, ShapeSeen, Share
from tests.unit.compute.libvirt_machines import read_back

CPUS = st.sets(st.integers(0, 300), min_size=1, max_size=20).map(lambda cpus: tuple(sorted(cpus)))
HEX = "0123456789abcdef"
# What a plan lets into a domain as text; names may have anything.
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" <>&\"'"), max_size=12)
NAMES = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\\\x00\n\t\r\u2028\ufffe"), max_size=12
)
WORDS = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=12)
MACS = st.text(HEX, min_size=10, max_size=10).map(
    lambda digits: "52:" + ":".join(digits[at : at + 2] for at in range(0, 10, 2))
)
ADDRESSES = st.builds(
    lambda domain, bus, slot, function: f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}",
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFF),
    st.integers(0, 0x1F),
    st.integers(0, 7),
)
SHARES = st.builds(
    Share,
    host=st.uuids().map(ProviderId),
    amounts=st.lists(
        st.builds(
            ResourceAmount,
            provider=st.uuids().map(ProviderId),
            resource=WORDS,
            amount=st.integers(1, 2**31 - 1),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
    shapes=st.lists(
        st.builds(ShapeSeen, root=st.uuids().map(ProviderId), shape=st.integers(0, 2**63 - 1)), max_size=2
    ).map(tuple),
    instances_max=st.integers(0, 9),
)


def some(one: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(one, max_size=most).map(tuple)


@st.composite
def plans(draw: st.DrawFn) -> GuestPlan:
    pins = draw(st.lists(CPUS, min_size=1, max_size=6).map(tuple))
    host_cells = draw(st.sampled_from([(), (None,), (0,), (3, 1)]))
    mediated = draw(st.lists(st.builds(PlannedMediated, st.uuids(), WORDS, ADDRESSES), max_size=3))
    return GuestPlan(
        instance=ConsumerId(draw(st.uuids())),
        attempt=draw(st.integers(1, 2**31 - 1)),
        cell=draw(WORDS),
        share=draw(SHARES),
        name=draw(NAMES),
        domain=draw(WORDS),
        domain_type=draw(st.sampled_from(["kvm", "qemu", "test"])),
        arch=draw(st.sampled_from(["x86_64", "aarch64"])),
        machine_type=draw(st.sampled_from(["", "q35"])),
        cpu_mode=draw(st.sampled_from(["", "host-model", "host-passthrough"])),
        memory_mb=draw(st.integers(1, 10**7)),
        page_kib=draw(st.sampled_from([0, 2048, 1048576])),
        pins=pins,
        dedicated=draw(st.just(()) | CPUS),
        emulator=draw(st.just(()) | CPUS),
        memory_cells=() if host_cells else draw(st.just(()) | CPUS),
        cells=tuple(DomainCell(draw(CPUS), draw(st.integers(1, 10**6)), cell) for cell in host_cells),
        topology=draw(st.none() | st.builds(CpuTopology, *[st.integers(1, 9)] * 3)),
        functions=draw(some(st.builds(PlannedFunction, ADDRESSES))),
        mediated=tuple({each.uuid: each for each in mediated}.values()),
        disks=draw(
            some(
                st.builds(
                    GuestDisk,
                    TEXTS,
                    st.sampled_from(["qcow2", "raw"]),
                    st.sampled_from(["disk", "cdrom"]),
                    st.sampled_from(["virtio", "scsi", "sata", "ide", "usb"]),
                )
            )
        ),
        nics=draw(
            some(
                st.builds(
                    GuestNic,
                    MACS,
                    WORDS,
                    st.sampled_from(["network", "bridge"]),
                    st.sampled_from(["virtio", "e1000"]),
                )
            )
        ),
        kernel=draw(TEXTS),
        ramdisk=draw(TEXTS),
        cmdline=draw(TEXTS),
        firmware=draw(st.sampled_from(["", "efi"])),
        video=draw(st.sampled_from(["", "virtio", "none"])),
        console_log=draw(TEXTS),
    )


@settings(deadline=None)
@given(plans())
def test_a_plan_is_read_back_from_its_domain(plan: GuestPlan) -> None:
    text = domain_xml(plan)

    assert read_back(text) == plan
    foreign = as_foreign(text)
    assert foreign.pins == plan.pins
    assert foreign.functions == tuple(each.address for each in plan.functions)
    assert foreign.mediated == tuple(each.uuid for each in plan.mediated)
    assert isinstance(foreign.uuid, UUID)


@given(st.sets(st.integers(0, 400)))
def test_cpus_are_read_back_from_words(cpus: set[int]) -> None:
    assert read_cpus(cpus_in_words(cpus)) == cpus
