"""What is really on the hosts, which nobody but they knows: attempts that were begun, and have not failed or gone."""

from collections.abc import Sequence

from bus.message import ProviderId
from bus.messages.build import InstanceId
from compute_sim.core.attempts import Attempted, AttemptKey, State
from tests.simulation.findings import Findings
from tests.simulation.nodes import Nodes

# Longer than any host takes that is not slow.
SLOW_S = 1.5
Place = tuple[ProviderId, int]


class Physical:
    def __init__(self, findings: Findings, nodes: Nodes | None = None) -> None:
        self._findings = findings
        self._nodes = nodes
        self.running: dict[InstanceId, dict[Place, State]] = {}
        # Which were over once: what is built again of these, by an order that came late, will be destroyed again.
        self._over: set[tuple[InstanceId, ProviderId, int]] = set()
        self._begun_s: dict[AttemptKey, float] = {}
        self._cells: dict[tuple[InstanceId, Place], str] = {}

    def attempts_changed(self, attempts: Sequence[Attempted]) -> None:
        for each in attempts:
            place = (each.host, each.attempt)
            there = self.running.setdefault(each.instance, {})
            before = there.get(place)
            if each.state.is_over:
                self._over.add((each.instance, *place))
                there.pop(place, None)
            else:
                there[place] = each.state
                self._cells[each.instance, place] = each.cell
            if before is not each.state:
                self._note_fate(each)
                self._findings.tell(
                    "hosts", "attempt {} of {}: {}", each.attempt, each.instance, each.state.value
                )

    def _note_fate(self, attempt: Attempted) -> None:
        """Which of the faults of hosts it has met."""
        now_s = self._findings.now_s
        match attempt.state:
            case State.BUILDING:
                self._begun_s[attempt.key] = now_s
            case State.FAILED:
                self._findings.see("host", "fails_to_build")
            case State.BUILT if now_s - self._begun_s[attempt.key] > SLOW_S:
                self._findings.see("host", "builds_slowly")
            case _:
                pass

    def power_lost(self, cell: str) -> None:
        """The computes of a cell are gone, with all that was on them."""
        for instance, there in self.running.items():
            for place in [each for each in there if self._cells[instance, each] == cell]:
                del there[place]
                # Ordered again, it is built again: by nobody's mistake.
                self._over.add((instance, *place))

    def has_built(self, instance: InstanceId, host: ProviderId, attempt: int) -> bool:
        """It has, or had and lost it."""
        if self._nodes is not None and self._nodes.has_built(instance, host):
            return True
        is_there = self.running.get(instance, {}).get((host, attempt)) is State.BUILT
        return is_there or (instance, host, attempt) in self._over

    def has_image(self, instance: InstanceId, host: ProviderId, image: str) -> bool:
        return self._nodes is None or self._nodes.has_image(instance, host, image)

    def still_there(self, instance: InstanceId, host: ProviderId) -> list[int]:
        """Its attempts on this host that nobody has heard to be over. Of a node, Ironic does not know the number."""
        if self._nodes is not None and self._nodes.still_there(instance, host):
            return [0]
        return [
            attempt
            for (where, attempt) in self.running.get(instance, {})
            if where == host and (instance, where, attempt) not in self._over
        ]
