"""What is to happen in one seed, drawn beforehand: who asks for what and when, which hosts there are, what goes wrong.

A plan is a value: whoever looks for the few things in it that matter takes the others out and runs it again.
"""

from uuid import UUID

from msgspec import Struct

from bus.messages.build import RequestId
from compute_sim.core.faults import FaultScript
from compute_sim.core.hosts import Host
from compute_sim.ironic import IronicScript, Node
from scheduler_worker.instances import instance_id_of
from tests.simulation.faults import Fault

CELLS = ("c1", "c2")
GOLD = "CUSTOM_GOLD"
# Which cell the nodes of a conductor group are in.
GROUPS_OF_NODES = {"rack1": CELLS[0], "rack2": CELLS[1]}
RATIOS = (0.5, 1.0, 1.5, 4.0, 16.0)


class Boot(Struct, frozen=True):
    """One request: `count` instances of so many CPUs, asked at `at_s`, and once more at each of `again_s`."""

    id: UUID
    name: str
    at_s: float
    count: int
    vcpus: int
    ram_mb: int
    again_s: tuple[float, ...] = ()
    needs_gold: bool = False
    # Empty: any host. A host of an operator who adds it and boots on it at once is asked for when it is there.
    host: str = ""
    deadline_s: int = 30
    # Of a bare-metal node: its class in Ironic. Such an instance has no size of its own.
    node_class: str = ""


class Delete(Struct, frozen=True):
    """The instance with this index of a request, at this time."""

    request: UUID
    index: int
    at_s: float


class Rebuild(Struct, frozen=True):
    """The instance with this index of a request gets another image, as soon as it is active after this time."""

    id: UUID
    request: UUID
    index: int
    at_s: float
    again_s: tuple[float, ...] = ()

    @property
    def image(self) -> str:
        return f"http://images/{self.id}"


class Switch(Struct, frozen=True):
    """An operator disables a host, and enables it again."""

    host: str
    at_s: float
    until_s: float


class Nonsense(Struct, frozen=True):
    """A request that will be rejected: without a flavor, or with the id of another and other content."""

    at_s: float
    like: UUID | None


class Flip(Struct, frozen=True):
    """Somebody changes a node at Ironic, not by Moorage; what it becomes follows from what it is then, and from the lot."""

    at_s: float
    node: str
    deed: str
    lot: int


class Errand(Struct, frozen=True):
    """A clerk does something by name; what it is about follows from its lot, and from what the clerk knows then."""

    at_s: float
    clerk: str
    deed: str
    lot: int


class Plan(Struct, frozen=True):
    seed: int
    hosts: dict[str, tuple[Host, ...]]
    script: FaultScript
    # How many instances the schedulers let a host have; 0: as many as fit.
    instances_max: int = 0
    boots: tuple[Boot, ...] = ()
    deletes: tuple[Delete, ...] = ()
    rebuilds: tuple[Rebuild, ...] = ()
    switches: tuple[Switch, ...] = ()
    nonsense: tuple[Nonsense, ...] = ()
    faults: tuple[Fault, ...] = ()
    errands: tuple[Errand, ...] = ()
    # Bare metal: the nodes that Ironic has at the beginning, what becomes of them there, what else goes wrong there, and the
    # daemons with the times of their first start. Without nodes there is no Ironic.
    nodes: tuple[Node, ...] = ()
    flips: tuple[Flip, ...] = ()
    ironic: IronicScript = IronicScript()
    daemons: dict[str, float] = {}
    # When nothing goes wrong any more.
    calm_s: float = 45.0
    # How long after that everything has settled.
    patience_s: float = 60.0

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
