"""A guest of another cloud becomes one of ours as it is, if its claim says what its domain has."""

import re
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.cell import AdoptGuest
from compute_sim.libvirt.core.domains import adopted, held_by
from compute_sim.libvirt.core.planning import NoPlan, plan_guest
from compute_sim.libvirt.core.plans import NAMESPACE, ForeignGuest, GuestPlan, PlannedMediated
from compute_sim.libvirt.core.trees import tree_of
from engine.inventories import ConsumerId
from tests.unit.compute.libvirt_machines import DATA, a_layout, an_order, named, specs

DOMAIN = (DATA / "foreign_domain.xml").read_text()
THEIRS = ConsumerId(UUID("c7a5fdbd-edaf-9455-926a-d65c16db1809"))
LAYOUT = a_layout()
CLAIM = {
    "NUMA0": {"PCPU": 2, "CUSTOM_MEMORY_MB_PAGES_2048": 1024},
    "NUMA1": {"VCPU": 1, "CUSTOM_MEMORY_MB_PAGES_2048": 512},
    "0000:81:00.0": {"SRIOV_NET_VF": 1},
    "0000:03:00.0": {"CUSTOM_PCI_144D_A808": 1},
    "0000:5e:00.0": {"VGPU": 1},
}


def an_adoption(claim: dict[str, dict[str, int]] = CLAIM) -> AdoptGuest:
    order = an_order(LAYOUT, claim)
    return AdoptGuest(
        cell=order.cell,
        host=order.share.host,
        instance=THEIRS,
        attempt=7,
        flavor=order.flavor,
        share=order.share,
        name="database",
    )


def with_metadata(metadata: str) -> str:
    """The domain as libvirt has it after the metadata is set: it gives all elements the prefix."""
    prefixed = re.sub(r"<(/?)([a-z])", r"<\1moorage:\2", metadata)
    named = prefixed.replace("<moorage:guest", f'<moorage:guest xmlns:moorage="{NAMESPACE}"', 1)
    return DOMAIN.replace("</metadata>", f"{named}</metadata>")


def test_an_adopted_guest_is_ours_and_holds_what_its_domain_has() -> None:
    metadata = adopted(DOMAIN, an_adoption(), LAYOUT)
    assert isinstance(metadata, str), metadata
    plan = held_by(with_metadata(metadata))

    assert isinstance(plan, GuestPlan)
    assert (plan.instance, plan.attempt, plan.cell, plan.name) == (
        THEIRS,
        7,
        "cell1",
        "database",
    )
    assert plan.share == an_adoption().share
    assert plan.dedicated == (1, 9)
    assert [each.address for each in plan.functions] == ["0000:81:10.0", "0000:03:00.0"]
    assert plan.mediated == (
        PlannedMediated(UUID("0f6c5b1e-3c0b-4a57-9a5e-7f5a5f0b7a01"), "nvidia-222", "0000:5e:00.0"),
    )


def test_an_adopted_guest_is_reserved_no_more_and_nobody_gets_what_it_has() -> None:
    foreign = held_by(DOMAIN)
    assert isinstance(foreign, ForeignGuest)
    assert named(tree_of(LAYOUT, (foreign,)))["NUMA0"].inventories["PCPU"].reserved == 2
    metadata = adopted(DOMAIN, an_adoption(), LAYOUT)
    assert isinstance(metadata, str)

    other = an_order(LAYOUT, {"NUMA0": {"PCPU": 6, "MEMORY_MB": 512}}, specs(6, 512, cpu_policy="dedicated"))
    refusal = plan_guest(other, LAYOUT, (held_by(with_metadata(metadata)),))
    assert isinstance(refusal, NoPlan)
    assert "1 is database's, 9 is database's" in refusal.reason


@pytest.mark.parametrize(
    ("provider", "amounts", "words"),
    [
        ("NUMA0", {"PCPU": 3}, "domain database has 2 dedicated CPUs (1,9), and 3 are claimed for it"),
        ("0000:81:00.0", {}, "has 2 offered functions (0000:81:10.0, 0000:03:00.0), and 1 are claimed"),
        ("0000:5e:00.0", {"VGPU": 2}, "has 1 mediated devices, and 2 are claimed"),
    ],
)
def test_a_claim_that_says_something_else_is_refused(
    provider: str, amounts: dict[str, int], words: str
) -> None:
    refusal = adopted(DOMAIN, an_adoption({**CLAIM, provider: amounts}), LAYOUT)

    assert isinstance(refusal, NoPlan)
    assert words in refusal.reason


def test_another_domain_is_not_the_instance() -> None:
    order = structs.replace(an_adoption(), instance=ConsumerId(UUID(int=3)))

    assert adopted(DOMAIN, order, LAYOUT) == NoPlan(
        f"domain database has the uuid {THEIRS}, and is not instance {UUID(int=3)}"
    )
