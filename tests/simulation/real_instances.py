"""The attempts that really are on the hosts: begun, and neither failed nor destroyed. Only the hypervisors know this."""

from collections.abc import Sequence

from bus.messages.cell import ReceiveInstance
from compute_sim.core.attempts import AttemptKey, AttemptRecord, AttemptState, BuildOrder
from engine.flavors import InstanceId
from engine.inventories import ProviderId
from tests.simulation.findings import Findings
from tests.simulation.nodes_checker import NodesChecker

# Longer than any build without a slow fault.
SLOW_S = 1.5
HostAttempt = tuple[ProviderId, int]
EXISTS = (AttemptState.BUILT, AttemptState.STOPPING, AttemptState.STOPPED, AttemptState.STARTING)


class RealInstances:
    def __init__(self, findings: Findings, nodes: NodesChecker, builds_at_once_max: int) -> None:
        self._findings = findings
        self._builds_at_once_max = builds_at_once_max
        self._nodes = nodes
        self.running: dict[InstanceId, dict[HostAttempt, AttemptState]] = {}
        # Attempts that hosts lost with their power.
        self._lost: set[tuple[InstanceId, ProviderId, int]] = set()
        # Attempts that have ended. If a late order builds one of them again, it will be destroyed again.
        self._ended: set[tuple[InstanceId, ProviderId, int]] = set()
        # The images that instances were saved as.
        self.saved: set[str] = set()
        self._begun_s: dict[AttemptKey, float] = {}
        # The images on the disks; empty without one.
        self._images: dict[tuple[InstanceId, HostAttempt], str] = {}
        self._cells: dict[tuple[InstanceId, HostAttempt], str] = {}

    def attempts_changed(self, attempts: Sequence[AttemptRecord]) -> None:
        for each in attempts:
            place = (each.host, each.attempt)
            if each.state is AttemptState.STOPPED and each.image and not each.failure:
                self.saved.add(each.image)
            there = self.running.setdefault(each.instance, {})
            before = there.get(place)
            if each.state.is_over:
                self._ended.add((each.instance, *place))
                there.pop(place, None)
            else:
                there[place] = each.state
                self._cells[each.instance, place] = each.cell
            if before is not each.state:
                self._note_fate(each)
                self._findings.log(
                    "hosts", "attempt {} of {}: {}", each.attempt, each.instance, each.state.value
                )
        if self._builds_at_once_max:
            for host in dict.fromkeys(each.host for each in attempts if each.state.takes_slot):
                self._check_builds(host)

    def disk_written(self, order: BuildOrder) -> None:
        if isinstance(order, ReceiveInstance):
            image = self._images.get((order.instance, (order.source, order.source_attempt)), "")
        else:
            image = order.image.source if order.image is not None else ""
        self._images[order.instance, (order.host, order.attempt)] = image

    def _check_builds(self, host: ProviderId) -> None:
        """Check how many builds the host has at a commit that began one."""
        builds = sum(
            state.takes_slot
            for there in self.running.values()
            for (place, _), state in there.items()
            if place == host
        )
        if builds > self._builds_at_once_max:
            self._findings.breaks(
                "a host builds so many at once", f"{host} builds {builds} of {self._builds_at_once_max}"
            )

    def _note_fate(self, attempt: AttemptRecord) -> None:
        """Count the faults of hosts that the state of this attempt shows."""
        now_s = self._findings.now_s
        match attempt.state:
            case AttemptState.WAITING:
                self._findings.count("host", "waits for its turn")
            case AttemptState.BUILDING:
                self._begun_s[attempt.key] = now_s
            case AttemptState.FAILED if attempt.key in self._begun_s:
                self._findings.count("host", "fails_to_build")
            case AttemptState.BUILT | AttemptState.BROKEN if attempt.rebuild:
                self._findings.count(
                    "host", "rebuilds" if attempt.state is AttemptState.BUILT else "fails to rebuild"
                )
            case AttemptState.BUILT if now_s - self._begun_s.pop(attempt.key, now_s) > SLOW_S:
                self._findings.count("host", "builds_slowly")
            case _:
                pass

    def power_lost(self, cell: str) -> None:
        """All computes of a cell die, and everything on their hosts is lost."""
        for instance, there in self.running.items():
            for place in [each for each in there if self._cells[instance, each] == cell]:
                del there[place]
                # If the order comes again it is built again, which is no error.
                self._ended.add((instance, *place))
                self._lost.add((instance, *place))

    def was_lost(self, instance: InstanceId, host: ProviderId, attempt: int) -> bool:
        """True if the host had the attempt, and lost it with its power."""
        return (instance, host, attempt) in self._lost

    def has_built(self, instance: InstanceId, host: ProviderId, attempt: int) -> bool:
        """True if the host has the instance, or once had it."""
        if self._nodes.has_built(instance, host):
            return True
        is_there = self.running.get(instance, {}).get((host, attempt)) in EXISTS
        return is_there or (instance, host, attempt) in self._ended

    def state_of(self, instance: InstanceId, host: ProviderId, attempt: int) -> AttemptState | None:
        """The state of an attempt on a host; None if the host does not have it, or has lost it before."""
        if (instance, host, attempt) in self._ended:
            return None
        return self.running.get(instance, {}).get((host, attempt))

    def image_of(self, instance: InstanceId, host: ProviderId, attempt: int) -> str | None:
        """The image that an attempt runs on a host; None if the host does not have it, or has lost it before."""
        exists = self.state_of(instance, host, attempt) in EXISTS
        return self._images.get((instance, (host, attempt)), "") if exists else None

    def node_has_image(self, instance: InstanceId, node: ProviderId, image: str) -> bool:
        return self._nodes.has_image(instance, node, image)

    def still_there(self, instance: InstanceId, host: ProviderId) -> list[int]:
        """Attempts on this host that are not known to have ended. Ironic does not know the number of an attempt: 0
        stands for it.
        """
        if self._nodes.still_there(instance, host):
            return [0]
        return [
            attempt
            for (where, attempt) in self.running.get(instance, {})
            if where == host and (instance, where, attempt) not in self._ended
        ]
