"""The plan of one seed, drawn before it runs: requests and their times, hosts, faults.

A plan is a value: the search for the elements that matter removes the others and runs it again.
"""

from uuid import UUID

from msgspec import Struct

from bus.message import GroupId
from bus.messages.build import RequestId
from bus.messages.placement import ServerGroup
from compute_sim.ironic import IronicScript, Node
from compute_sim.simulated.faults import FaultScript
from compute_sim.simulated.hosts import SimulatedHost
from scheduler_worker.requests.instance_ids import instance_id_of
from tests.simulation.faults import Fault

CELLS = ("c1", "c2")
GOLD = "CUSTOM_GOLD"
# The cell of the nodes of each conductor group.
GROUPS_OF_NODES = {"rack1": CELLS[0], "rack2": CELLS[1]}
RATIOS = (0.5, 1.0, 1.5, 4.0, 16.0)


class Boot(Struct, frozen=True):
    """One request for `count` instances of this size, sent at `at_s` and repeated at each of `repeated_at_s`."""

    id: UUID
    name: str
    at_s: float
    count: int
    vcpus: int
    ram_mb: int
    repeated_at_s: tuple[float, ...] = ()
    needs_gold: bool = False
    # Empty means any host. A boot that names a host that joins late is sent when the host is there.
    host: str = ""
    deadline_s: int = 30
    # For a bare-metal node: its resource class in Ironic. Such an instance has no size of its own.
    node_class: str = ""
    # One of the plan's groups.
    group: GroupId | None = None


class Delete(Struct, frozen=True):
    """Delete the instance with this index of a request, at this time."""

    request: UUID
    index: int
    at_s: float


class Rebuild(Struct, frozen=True):
    """Rebuild the instance with this index of a request with another image, once it is active after this time."""

    id: UUID
    request: UUID
    index: int
    at_s: float
    repeated_at_s: tuple[float, ...] = ()

    @property
    def image(self) -> str:
        return f"http://images/{self.id}"


class DisabledHost(Struct, frozen=True):
    """An operator disables a host, and enables it again."""

    host: str
    at_s: float
    until_s: float


class InvalidRequest(Struct, frozen=True):
    """A request that must be rejected: it has no flavor, or it has the id of another request and different content."""

    at_s: float
    id_of: UUID | None


class Flip(Struct, frozen=True):
    """A change of a node at Ironic that Moorage did not order. The node's state and the seed decide the details."""

    at_s: float
    node: str
    action: str
    seed: int


class AdminOp(Struct, frozen=True):
    """An operation of an administrator. The seed and what the administrator knows at that time decide the details."""

    at_s: float
    admin: str
    action: str
    seed: int


class Plan(Struct, frozen=True):
    seed: int
    hosts: dict[str, tuple[SimulatedHost, ...]]
    script: FaultScript
    # The schedulers' limit of instances per host; 0 means no limit.
    instances_max: int = 0
    # Created when the run begins. The last one is deleted when all its boots have been sent.
    groups: tuple[ServerGroup, ...] = ()
    boots: tuple[Boot, ...] = ()
    deletes: tuple[Delete, ...] = ()
    rebuilds: tuple[Rebuild, ...] = ()
    disabled_hosts: tuple[DisabledHost, ...] = ()
    invalid_requests: tuple[InvalidRequest, ...] = ()
    faults: tuple[Fault, ...] = ()
    admin_ops: tuple[AdminOp, ...] = ()
    # Bare metal: Ironic's nodes at the beginning, changes of them, faults of Ironic, and the daemons with the times of
    # their first start. Without nodes there is no Ironic.
    nodes: tuple[Node, ...] = ()
    flips: tuple[Flip, ...] = ()
    ironic: IronicScript = IronicScript()
    daemons: dict[str, float] = {}
    # The time when faults stop.
    faults_end_s: float = 45.0
    # Everything must have settled this long after that.
    settle_s_max: float = 60.0

    @property
    def instances(self) -> int:
        return sum(boot.count for boot in self.boots)

    @property
    def instance_ids(self) -> frozenset[str]:
        return frozenset(
            str(instance_id_of(RequestId(boot.id), index))
            for boot in self.boots
            for index in range(boot.count)
        )
