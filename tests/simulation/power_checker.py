"""A cell that says of an instance that it is stopped, or that it is active, says what its host really does with it."""

from cell_conductor.core.rows import Instance
from compute_sim.core.attempts import AttemptState
from tests.simulation.findings import Findings
from tests.simulation.host_history import short_id
from tests.simulation.real_instances import RealInstances

POWER = "power"
PROMISE = "an instance runs if it is active, and not if it is stopped"
# Of an attempt that runs no instance.
OFF = (AttemptState.STOPPING, AttemptState.STOPPED)


class PowerChecker:
    def __init__(self, findings: Findings, real_instances: RealInstances) -> None:
        self._findings = findings
        self._real_instances = real_instances

    def becomes(self, row: Instance, was: str) -> None:
        """The row has this state now, by this commit."""
        if row.state not in ("active", "stopped") or row.host is None:
            return
        if row.move is not None:
            self._findings.count(POWER, f"{row.move.kind}: {was} to {row.state}")
        state = self._real_instances.state_of(row.id, row.host.share.host, row.host_attempt)
        # A host may have lost it with its power.
        if state is None or (state is AttemptState.STOPPED if row.state == "stopped" else state not in OFF):
            return
        self._findings.breaks(
            PROMISE, f"{short_id(row.id)} is {row.state}, and its attempt on {row.host.name} is {state.value}"
        )
