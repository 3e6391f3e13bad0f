"""The plan of one seed, drawn before it runs: requests and their times, hosts, faults.

A plan is a value: the search for the elements that matter removes the others and runs it again.
"""

from random import Random
from typing import Any, Literal
from uuid import NAMESPACE_OID, UUID, uuid5

from msgspec import Struct

from bus.messages.build import MoveEnd, MoveKind
from bus.messages.keeping import CampaignId, CampaignWork, MoveBudget
from bus.messages.policies import KeepingPolicy
from engine.flavors import RequestId, instance_id_of
from engine.hosts import HostMode
from engine.inventories import AggregateId, ConsumerId, GroupId, ProviderId, ServerGroup
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import SimulatedHost
from laboratory.ironic import IronicScript, SimulatedNode
from tests.simulation.demands import Demand
from tests.simulation.faults import CellDown, Fault

CELLS = ("c1", "c2")
GOLD = "CUSTOM_GOLD"
# The project of all instances.
PROJECT = "shop"
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
    # Ports to attach to that node.
    ports: tuple[str, ...] = ()
    image: str = ""
    # One of the plan's groups.
    group: GroupId | None = None
    all_or_nothing: bool = False
    # Groups, ports, zones and the like; its amounts are those of the demand.
    demand: Demand | None = None
    # How long it waits for room; 0: not at all.
    wait_s: int = 0
    priority: int = 0
    # CPUs and memory of the flavors that will do if no host has room for this size, the best first.
    alternatives: tuple[tuple[int, int], ...] = ()


def boot_on(chance: Random, name: str, at_s: float, host: str = "", vcpus: int = 1) -> Boot:
    """A boot of one instance, on any host or on this one."""
    return Boot(
        id=UUID(int=chance.getrandbits(128)),
        name=name,
        at_s=at_s,
        count=1,
        vcpus=vcpus,
        ram_mb=1024,
        host=host,
    )


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


class Switch(Struct, frozen=True):
    """Order to stop, start, reboot or move the instance with this index of a request, whatever its state is then."""

    id: UUID
    request: UUID
    index: int
    at_s: float
    kind: MoveKind
    confirm_s: int = 0
    repeated_at_s: tuple[float, ...] = ()


class EndOfMove(Struct, frozen=True):
    """The client's next order about its move. It is sent so long after the instance has arrived, or after the order
    to move was taken if `when_arrived` is false.
    """

    how: MoveEnd | Literal["delete"]
    after_s: float = 0.0
    when_arrived: bool = True


class PlannedMove(Struct, frozen=True):
    """Move the instance with this index of a request, once it is active after this time. A resize has a size; one that
    `stays` is on the same host.
    """

    id: UUID
    request: UUID
    index: int
    at_s: float
    kind: MoveKind
    ends: tuple[EndOfMove, ...] = ()
    vcpus: int = 0
    ram_mb: int = 0
    root_gb: int = 0
    needs_gold: bool = False
    stays: bool = False
    deadline_s: int = 30
    confirm_s: int = 0
    is_repeated: bool = False
    # How long after it is shelved or offloaded; None: it stays so.
    unshelved_after_s: float | None = None
    unshelve_ends: tuple[EndOfMove, ...] = ()
    unshelve_deadline_s: int = 12
    # How long after it is shelved; None: it keeps its host.
    offloaded_after_s: float | None = None
    # The one host to which it moves, or on which it is unshelved, and how long that waits for room; 0: not at all.
    to: str = ""
    wait_s: int = 0
    priority: int = 0


class Evacuation(Struct, frozen=True):
    """From `at_s` to `until_s`, evacuate everything from this host, as soon as it counts as down."""

    id: UUID
    host: str
    at_s: float
    until_s: float
    # How long each evacuation waits for room; 0: not at all.
    wait_s: int = 0
    # The one host to which everything goes; empty: any host.
    to: str = ""


class DisabledHost(Struct, frozen=True):
    """An operator disables a host, and enables it again."""

    host: str
    at_s: float
    until_s: float


class HostOrder(Struct, frozen=True):
    """An operator sets the mode of a host. It is repeated while the host is unknown; a host that does not exist is refused."""

    host: str
    mode: HostMode
    at_s: float


class QuotaOrder(Struct, frozen=True):
    """An operator sets limits of the clients' project; None removes one."""

    at_s: float
    limits: dict[str, int | None]


class AggregateOrder(Struct, frozen=True):
    """An operator changes the metadata and the hosts of an aggregate. A host may be refused while it is unknown."""

    at_s: float
    aggregate: AggregateId
    name: str
    metadata: dict[str, str | None] = {}
    add_hosts: tuple[str, ...] = ()
    remove_hosts: tuple[str, ...] = ()


# off: the host is off. fails: it says that it did not reach the host. hangs: it is killed when its time is up.
FenceEnd = Literal["off", "fails", "hangs"]


class BudgetOrder(Struct, frozen=True):
    """An operator sets a budget of movements, or deletes the one of its name."""

    at_s: float
    budget: MoveBudget
    is_deleted: bool = False


class CampaignChange(Struct, frozen=True):
    """An operator has a campaign pause, go on, or end, so long after it was begun."""

    after_s: float
    to: Literal["pause", "resume", "cancel"]


class CampaignOrder(Struct, frozen=True):
    """An operator begins a campaign, and changes it later."""

    id: CampaignId
    at_s: float
    name: str
    work: CampaignWork
    join: bool = False
    changes: tuple[CampaignChange, ...] = ()
    is_repeated: bool = False


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
    # The pools of each cell, as the settings of its compute name them.
    pools: tuple[str, ...] = ()
    # How many builds each host has at once; 0 means no limit.
    builds_at_once_max: int = 0
    # The schedulers' limit of instances per host; 0 means no limit.
    instances_max: int = 0
    # Created when the run begins. The last one is deleted when all its boots have been sent.
    groups: tuple[ServerGroup, ...] = ()
    boots: tuple[Boot, ...] = ()
    deletes: tuple[Delete, ...] = ()
    rebuilds: tuple[Rebuild, ...] = ()
    moves: tuple[PlannedMove, ...] = ()
    switches: tuple[Switch, ...] = ()
    evacuations: tuple[Evacuation, ...] = ()
    disabled_hosts: tuple[DisabledHost, ...] = ()
    host_orders: tuple[HostOrder, ...] = ()
    aggregate_orders: tuple[AggregateOrder, ...] = ()
    quota_orders: tuple[QuotaOrder, ...] = ()
    # How many keepers there are; where an operator says that hosts are, by their names; budgets, and campaigns that empty hosts.
    keepers: int = 0
    places: dict[str, str] = {}
    budgets: tuple[BudgetOrder, ...] = ()
    campaigns: tuple[CampaignOrder, ...] = ()
    # What keepers do by themselves; and how the fence of each host ends, by the hosts' names.
    policies: tuple[KeepingPolicy, ...] = ()
    fences: dict[str, FenceEnd] = {}
    # Of the schedulers, in place of those that all seeds have.
    settings: dict[str, Any] = {}
    # Of the conductors, likewise.
    conducting: dict[str, Any] = {}
    pace: dict[str, Any] = {}
    # Of the daemons of bare metal, likewise.
    syncing: dict[str, Any] = {}
    invalid_requests: tuple[InvalidRequest, ...] = ()
    faults: tuple[Fault, ...] = ()
    admin_ops: tuple[AdminOp, ...] = ()
    # Bare metal: Ironic's nodes at the beginning, changes of them, faults of Ironic, and the daemons with the times of
    # their first start. Without nodes there is no Ironic.
    nodes: tuple[SimulatedNode, ...] = ()
    flips: tuple[Flip, ...] = ()
    ironic: IronicScript = IronicScript()
    daemons: dict[str, float] = {}
    # The time when faults stop.
    faults_end_s: float = 45.0
    # Everything must have settled this long after that.
    settle_s_max: float = 60.0

    @property
    def has_demands(self) -> bool:
        return any(boot.demand is not None for boot in self.boots)

    @property
    def outage(self) -> CellDown | None:
        return next((fault for fault in self.faults if isinstance(fault, CellDown)), None)

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


# The administrators' own providers, consumers, aggregates and custom names. Hosts are not among them: computes report those.

TRAITS = ("CUSTOM_LABEL_A", "CUSTOM_LABEL_B")
CLASS, RENAMED_CLASS = "CUSTOM_CLASS", "CUSTOM_RENAMED"
SHARES = "MISC_SHARES_VIA_AGGREGATE"


def _id(name: str) -> UUID:
    # Other words would give other ids, and the kept seeds would run differently.
    return uuid5(NAMESPACE_OID, f"of the clerks: {name}")


PROVIDER_NAMES = ("barn", "forge", "manor", "mill", "well", "yard")
OWN_PROVIDERS = tuple(ProviderId(_id(name)) for name in PROVIDER_NAMES)
POOL = ProviderId(_id("pool"))
CONSUMERS = tuple(ConsumerId(_id(f"tenant {n}")) for n in range(8))
AGGREGATES = tuple(AggregateId(_id(f"group {n}")) for n in range(3))


def child_of(parent: str) -> ProviderId:
    """The child of a provider that a reshape moves inventory to."""
    return ProviderId(_id(f"part of {parent}"))
