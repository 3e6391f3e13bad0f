"""QEMU under libvirt takes the domains of guests as they are written, and the kernel runs them where they are pinned."""

from pathlib import Path

from msgspec import structs

from compute_sim.libvirt.core.domains import domain_xml
from tests.libvirt.libvirt_cloud import virsh
from tests.servers.libvirtd import PrivateLibvirtd
from tests.unit.compute.libvirt_machines import read_back, samples


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
