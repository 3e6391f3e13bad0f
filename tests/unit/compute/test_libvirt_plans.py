"""Which part of its host a guest gets, as its claim says; and what its domain says of it."""

from compute_sim.libvirt.core.domain_xml import domain_xml
from compute_sim.libvirt.core.held import held_by
from compute_sim.libvirt.core.planning import plan_guest
from compute_sim.libvirt.core.plans import GuestPlan
from tests.unit.compute.libvirt_machines import a_layout, an_order


def test_a_plain_guest_runs_on_the_shared_cpus_of_the_cell_that_it_claims() -> None:
    layout = a_layout()
    plan = plan_guest(an_order(layout, {"NUMA1": {"VCPU": 2, "MEMORY_MB": 2048}}), layout)

    assert isinstance(plan, GuestPlan), plan
    assert plan.pins == ((4, 12), (4, 12))
    assert plan.memory_cells == (1,)
    assert held_by(domain_xml(plan)) == plan
