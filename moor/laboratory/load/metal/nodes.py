"""The simulated nodes of a load run, and the daemons that manage them."""

from collections.abc import Iterable

from compute_sim.laboratory.ironic import IronicScript
from compute_sim.laboratory.ironic.core.script import WorkFails
from ironic_sync.settings import IronicSettings
from moor.clouds.bare_metal import BareMetalPlan, cells_of_groups
from moor.worker_settings import CloudSettings

# A simulated deploy and cleaning take only about a tenth of a second, so that Moorage's own part is what is measured.
PACE = 0.02
# The notification that ends a deploy may reach another daemon than the node's owner, which then reads the node after 1 s.
DEFAULTS = CloudSettings(ironic=IronicSettings(deploy_read_s=1.0))


def bare_metal_of(nodes: int, daemons: int, cells: Iterable[str], failing: float) -> BareMetalPlan:
    faults = (WorkFails(work="deploy", probability=failing),) if failing else ()
    return BareMetalPlan(
        nodes=nodes,
        daemons=daemons,
        cells=cells_of_groups(cells),
        pace=PACE,
        script=IronicScript(seed=1, faults=faults),
    )
