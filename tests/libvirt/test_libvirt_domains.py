"""QEMU under libvirt takes the domains of guests as they are written, and the kernel runs them where they are pinned."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from compute_sim.libvirt.core.domains import domain_xml, held_by
from compute_sim.libvirt.core.layout import HostOffer, layout_of
from compute_sim.libvirt.core.machine import read_machine
from compute_sim.libvirt.core.planning import plan_guest
from compute_sim.libvirt.core.plans import GuestPlan
from tests.libvirt.libvirt_cloud import virsh
from tests.servers.libvirtd import PrivateLibvirtd
from tests.unit.compute.libvirt_machines import ROOT, an_order, read_back, samples, specs


@pytest.fixture(scope="module")
def libvirtd() -> Iterator[PrivateLibvirtd]:
    with PrivateLibvirtd() as server:
        yield server


def test_qemu_gives_each_domain_back(tmp_path: Path, libvirtd: PrivateLibvirtd) -> None:
    for sample in samples():
        # Where a plan names no machine type, libvirt writes down its default.
        plan = structs.replace(
            sample, domain_type="qemu", machine_type=sample.machine_type or "pc-i440fx-7.2"
        )
        path = tmp_path / f"{plan.domain}.xml"
        path.write_text(domain_xml(plan))
        virsh(libvirtd.uri, "define", str(path))
        back = virsh(libvirtd.uri, "dumpxml", "--inactive", plan.domain)
        virsh(libvirtd.uri, "undefine", "--nvram", plan.domain)

        assert read_back(back) == plan


@pytest.mark.skipif(
    (psutil.cpu_count() or 1) < 2, reason="one CPU cannot be shared and another one dedicated"
)
def test_the_kernel_runs_a_guest_on_the_cpus_of_its_plan(tmp_path: Path, libvirtd: PrivateLibvirtd) -> None:
    machine = read_machine(virsh(libvirtd.uri, "capabilities"))
    last = max(machine.cells[0].cpus)
    offer = HostOffer(name="h1", domain_type="qemu", cpus_dedicated=frozenset({last}), memory_reserved_mb=0)
    layout = layout_of(ROOT, machine, offer)
    flavor = specs(2, 32, cpu_policy="mixed", cpu_dedicated_mask="1", emulator_threads_policy="share")
    order = an_order(layout, {"NUMA0": {"VCPU": 1, "PCPU": 1, "MEMORY_MB": 32}}, flavor)
    plan = plan_guest(order, layout)
    assert isinstance(plan, GuestPlan), plan
    path = tmp_path / "guest.xml"
    path.write_text(domain_xml(plan))

    virsh(libvirtd.uri, "create", str(path))
    try:
        live = held_by(virsh(libvirtd.uri, "dumpxml", plan.domain))
        allowed = where_threads_run(plan)
    finally:
        virsh(libvirtd.uri, "destroy", plan.domain)

    assert isinstance(live, GuestPlan)
    assert (live.pins, live.dedicated, live.emulator, live.share) == (
        plan.pins,
        plan.dedicated,
        plan.emulator,
        plan.share,
    )
    assert allowed == {
        "CPU 0/TCG": layout.cells[0].shared,
        "CPU 1/TCG": (last,),
        "emulator": layout.cells[0].shared,
    }


def where_threads_run(plan: GuestPlan) -> dict[str, tuple[int, ...]]:
    """The CPUs that the kernel allows to each of the guest's CPUs, and to the emulator, by the name of the thread."""
    [process] = [
        each
        for each in psutil.process_iter(["cmdline"])
        if each.info["cmdline"]
        and any(f"guest={plan.domain}," in word for word in each.info["cmdline"])
        and "qemu" in each.info["cmdline"][0]
    ]
    found = {"emulator": tuple(process.cpu_affinity())}
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        name = (thread / "comm").read_text().strip()
        if name.startswith("CPU "):
            found[name] = tuple(psutil.Process(int(thread.name)).cpu_affinity())
    return found
