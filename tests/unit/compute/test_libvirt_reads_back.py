"""What libvirt itself makes of the domains: its schema allows them, and its test driver gives them back as they were written."""

import subprocess
from pathlib import Path

from msgspec import structs

from compute_sim.core.trees import flaw_of
from compute_sim.libvirt.core.domains import domain_xml
from compute_sim.libvirt.core.layout import HostOffer, layout_of
from compute_sim.libvirt.core.machine import read_machine
from compute_sim.libvirt.core.planning import plan_guest
from compute_sim.libvirt.core.plans import GuestPlan
from compute_sim.libvirt.core.trees import tree_of
from tests.unit.compute.libvirt_machines import (
    ROOT,
    an_order,
    named,
    read_back,
    samples,
    specs,
)

SCHEMAS = Path("/usr/share/libvirt/schemas")
TEST_DRIVER = "test:///default"


def virsh(*words: str) -> str:
    done = subprocess.run(
        ("virsh", "--quiet", "--connect", TEST_DRIVER),
        input="\n".join(words),
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout


def test_libvirts_schema_allows_each_domain(tmp_path: Path) -> None:
    paths = []
    for number, plan in enumerate(samples()):
        paths.append(tmp_path / f"{number}.xml")
        paths[-1].write_text(domain_xml(plan))

    assert_valid("domain.rng", paths)


def assert_valid(schema: str, paths: list[Path]) -> None:
    assert paths
    done = subprocess.run(
        ("xmllint", "--noout", "--relaxng", str(SCHEMAS / schema), *map(str, paths)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_test_driver_gives_each_domain_back(tmp_path: Path) -> None:
    # The test driver has guests of one architecture, and no machine types.
    plans = [structs.replace(plan, domain_type="test", arch="i686", machine_type="") for plan in samples()]
    words = []
    for number, plan in enumerate(plans):
        path = tmp_path / f"{number}.xml"
        path.write_text(domain_xml(plan))
        words += [f"define {path}", f"dumpxml --inactive {plan.domain}"]
    printed = virsh(*words)
    found = [
        f"<domain{each}</domain>" for each in printed.replace("</domain>", "<domain").split("<domain")[1::2]
    ]

    assert [read_back(text) for text in found] == plans


def test_a_guest_is_planned_on_the_machine_of_the_test_driver(tmp_path: Path) -> None:
    capabilities = (
        "<capabilities>"
        + virsh("capabilities").partition("<capabilities>")[2].partition("</capabilities>")[0]
    )
    machine = read_machine(capabilities + "</capabilities>")
    offer = HostOffer(
        name="t1", domain_type="test", cpus_dedicated=frozenset({1, 2, 9}), memory_reserved_mb=0
    )
    layout = layout_of(ROOT, machine, offer)
    tree = tree_of(layout)
    plan = plan_guest(
        an_order(layout, {"NUMA0": {"PCPU": 2, "MEMORY_MB": 64}}, specs(2, 64, cpu_policy="dedicated")),
        layout,
    )

    assert flaw_of(tree, tree) is None
    assert {name: set(each.inventories) for name, each in named(tree).items()} == {
        "": set(),
        "NUMA0": {"VCPU", "PCPU", "MEMORY_MB"},
        "NUMA1": {"VCPU", "PCPU", "MEMORY_MB"},
    }
    assert isinstance(plan, GuestPlan), plan
    assert plan.pins == ((1,), (2,))
    path = tmp_path / "guest.xml"
    path.write_text(domain_xml(plan))
    printed = virsh(f"create {path}", f"vcpupin {plan.domain}", f"dominfo {plan.domain}")
    assert str(plan.instance) in printed
    assert [line.split() for line in printed.splitlines() if line.strip().startswith(("0 ", "1 "))] == [
        ["0", "1"],
        ["1", "2"],
    ]
