"""Follows bare-metal nodes: their real state at Ironic, the rows that the daemons write, and the reports that placement
got.

A daemon's knowledge at the time of a write is measured by two times: that of the last notification it applied, and that
of the last answer of Ironic's API. A node that had become unavailable by then must not be offered before it is
available again.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from uuid import UUID

from msgspec import Struct

from bus.messages.placement import SwapClaim
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, InventoryState, ProviderId
from ironic_sync.core import node as known
from ironic_sync.core.reports import offer_number, trial_number
from ironic_sync.core.ring import Member, NodeHandover, Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.membership import Membership  # noqa: TC001 - like every other import
from laboratory.ironic import SimulatedNode
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, TreeBook, TreeChanges
from tests.simulation.findings import Findings
from tests.simulation.plan import GROUPS_OF_NODES
from tests.simulation.process import EPOCH, SimProcess

# Counted events: nodes that became unavailable, nodes that became available again, and claims of nodes.
NODE, LEFT, BACK, CLAIMED = "node", "left", "came back", "claimed"
# A node in one of these states has no instance, whatever id it carries.
BEFORE_A_DEPLOY = frozenset(("enroll", "verifying", "manageable", "available"))
# From when a daemon reads the members until it moves nodes.
LOOKED_S = 0.25
# Notifications sent at the same moment differ by microseconds.
AT_ONCE_S = 0.001
UNAVAILABLE = "an unavailable node is not offered before it is available again"
ONE_OWNER = "no node has two daemons that act on it"
EPOCHS = "a report of an earlier owner is refused"
STAYS = "a node with an instance stays with its daemon while that lives and does not drain"
READ_FIRST = "a node is read before its new owner does anything with it"
KEEPS_PROVIDERS = "no provider is deleted because nodes are handed over"
OTHER_PROGRAMS = "an instance of another program is left on its node"
WITH_PORTS = "an instance is deployed with its ports"
NO_STEP_FOR_EVER = "no step of a deploy is repeated without end"
# A daemon gives up after 4 without effect; lost answers and crashes add a few.
ACCEPTED_PORTS_MAX = 7
MARGIN = "a daemon stops acting before its lease is over"


class RealNode(Struct):
    """A node's real state at Ironic, and when it became unavailable."""

    node: SimulatedNode | None
    is_free: bool = False
    left_s: list[float] = []
    # The image that the current deploy writes, and the last image that was written.
    writes: str = ""
    image: str = ""
    # When it was last deleted, created again, or moved to another cell.
    last_gone_s: float = -1.0


class KnownNode(Struct):
    """The daemons' knowledge of a node, by version of its row, and the last report that placement got."""

    by_number: dict[int, float] = {}
    latest_s: float = -1.0
    reported_s: float = -1.0
    reported: tuple[int, int] = (-1, -1)
    has_provider: bool = False
    # How recent the daemon's knowledge was when it created the provider.
    created_from_s: float = -1.0
    owned_since_s: float = 0.0


class NodesChecker:
    def __init__(
        self, findings: Findings, margin_s: float, ports: Mapping[InstanceId, tuple[str, ...]]
    ) -> None:
        """`ports` are those that the requests of instances name."""
        self._findings = findings
        self._ports = ports
        # How often Ironic has accepted a port, by the node and the instance on it.
        self._accepted_ports: Counter[tuple[ProviderId, str | None]] = Counter()
        self._margin_s = margin_s
        self.real_nodes: dict[ProviderId, RealNode] = {}
        self._known: dict[ProviderId, KnownNode] = {}
        # The time of each answer of the API. The key is the id of the answer object, which rows keep.
        self._answers: dict[int, tuple[known.Node, float]] = {}
        # When each process last asked Ironic for a node and got the answer.
        self._read_s: dict[tuple[str, ProviderId], float] = {}
        self._built: set[tuple[InstanceId, ProviderId]] = set()
        # Of processes that are alive.
        self.memberships: dict[SimProcess, Membership] = {}

    # Changes at Ironic

    def created(self, nodes: Iterable[SimulatedNode]) -> None:
        for node in nodes:
            self.real_nodes[id_of(node)] = RealNode(node, is_free(node))

    def changed(self, node: ProviderId, after: SimulatedNode | None) -> None:
        now_s = self._findings.now_s
        real_node = self.real_nodes.setdefault(node, RealNode(None))
        before, real_node.node = real_node.node, after
        if before is None or after is None or before.conductor_group != after.conductor_group:
            real_node.last_gone_s = now_s
        if real_node.is_free and not is_free(after):
            real_node.left_s.append(now_s)
            self._findings.count(NODE, LEFT)
        elif is_free(after) and not real_node.is_free:
            self._findings.count(NODE, BACK)
        real_node.is_free = is_free(after)
        _note_image(real_node, before, after)
        self._check_ports(before, after)
        if after is None:
            self._findings.log("ironic", "{} is deleted", node)
            return
        if before is None or _shown(before) != _shown(after):
            self._findings.log("ironic", "{} is {}", node, _shown(after))
        if after.instance_uuid and after.provision_state == "active":
            self._built.add((InstanceId(UUID(after.instance_uuid)), node))

    def _check_ports(self, before: SimulatedNode | None, after: SimulatedNode | None) -> None:
        """When a deploy begins, the ports of its instance must be attached."""
        if before is None or after is None or not after.instance_uuid:
            return
        if (before.provision_state, after.provision_state) != ("available", "deploying"):
            return
        wanted = self._ports.get(InstanceId(UUID(after.instance_uuid)), ())
        self._findings.count("deploy", "with ports" if wanted else "without ports")
        if missing := {*wanted} - {*after.vifs}:
            self._findings.breaks(
                WITH_PORTS, f"{after.uuid} deploys {after.instance_uuid} without {sorted(missing)}"
            )

    def _was_free_since(self, node: ProviderId, known_s: float) -> bool:
        """True if the node was available at some time after `known_s`; earlier times cannot count against the daemon."""
        real_node = self.real_nodes.get(node)
        if real_node is None or real_node.is_free:
            return real_node is not None
        return bisect_right(real_node.left_s, known_s - AT_ONCE_S) < len(real_node.left_s)

    # Instances

    def still_there(self, instance: InstanceId, host: ProviderId) -> bool:
        """Whether the node was deployed with this instance and still has it.

        The instance id alone is not enough: after another daemon has ended the deploy, Ironic may still accept the id
        from a daemon that was delayed. The node has not been deployed then, and the id is removed again.
        """
        real_node = self.real_nodes.get(host)
        node = real_node.node if real_node is not None else None
        return (
            node is not None
            and node.instance_uuid == str(instance)
            and node.provision_state not in BEFORE_A_DEPLOY
        )

    def has_built(self, instance: InstanceId, host: ProviderId) -> bool:
        """True if the node has the instance, or once had it."""
        return (instance, host) in self._built

    def built_on(self, host: ProviderId) -> list[InstanceId]:
        return sorted(instance for instance, where in self._built if where == host)

    def has_image(self, instance: InstanceId, host: ProviderId, image: str) -> bool:
        """Whether this image was written to the node. A node that has lost the instance since is not judged: the
        answer is yes.
        """
        real_node = self.real_nodes.get(host)
        return real_node is None or not self.still_there(instance, host) or real_node.image == image

    def is_deleted(self, host: str) -> bool:
        """Whether this host is a node that Ironic has deleted."""
        return any(str(id_) == host and each.node is None for id_, each in self.real_nodes.items())

    def instance_on(self, node: ProviderId) -> str | None:
        real_node = self.real_nodes.get(node)
        return real_node.node.instance_uuid if real_node is not None and real_node.node is not None else None

    # Actions of daemons

    def api_answered(self, process: SimProcess, nodes: Iterable[known.Node], asked_s: float) -> None:
        now_s = self._findings.now_s
        for node in nodes:
            self._answers[id(node)] = (node, now_s)
            self.was_read(process, node.id, asked_s)

    def was_read(self, process: SimProcess, node: ProviderId, asked_s: float) -> None:
        """The API has answered this daemon about the node, if only that there is none. `asked_s` is the time of the
        question; answers may arrive in another order than their questions.
        """
        key = (process.full_name, node)
        self._read_s[key] = max(asked_s, self._read_s.get(key, 0.0))

    def ordered(self, process: SimProcess, node: ProviderId, what: str) -> None:
        """A daemon is about to order a change of a node from Ironic."""
        self._findings.log(process.full_name, "orders {} of {}", what, node)
        self._findings.count("order", what)
        self._check_read(process, node)
        if not self.memberships[process].may_act_on(node):
            self._findings.breaks(
                ONE_OWNER, f"{process.full_name} orders {what} of {node}, which is not its own"
            )

    def accepted_port(self, node: ProviderId) -> None:
        """Ironic has accepted an order to attach a port to this node."""
        instance = self.instance_on(node)
        self._accepted_ports[node, instance] += 1
        if self._accepted_ports[node, instance] > ACCEPTED_PORTS_MAX:
            self._findings.breaks(
                NO_STEP_FOR_EVER,
                f"Ironic has accepted {self._accepted_ports[node, instance]} ports of {instance} on {node}",
            )

    def changed_foreign(
        self, process: SimProcess, node: ProviderId, what: str, instance: str, asked_s: float
    ) -> None:
        """Ironic has accepted an order for a node with an instance of another program. That breaks a promise if the
        order was on its way for no longer than the margin of its sender's lease. Ironic takes no condition with an
        order, so nothing stops a later one.
        """
        if self._findings.now_s - asked_s <= self._margin_s:
            self._findings.breaks(
                OTHER_PROGRAMS, f"{process.full_name} orders {what} of {node}, which has {instance}"
            )

    def saved(
        self, process: SimProcess, before: Mapping[ProviderId, NodeRow], rows: Sequence[NodeRow]
    ) -> None:
        for row in rows:
            self._note(row)
            was = before.get(row.id)
            if row.epoch and row.seen_epoch == row.epoch and (was is None or was.seen_epoch != row.epoch):
                self._check_read(process, row.id)
            if was is not None and (was.owner, was.epoch) != (row.owner, row.epoch):
                self._findings.breaks(
                    ONE_OWNER, f"{process.full_name} changes the owner of {row.id} by an ordinary write"
                )

    def _note(self, row: NodeRow) -> None:
        knowledge = self._known.setdefault(row.id, KnownNode())
        heard_s = row.heard_at_us / 1e6 - EPOCH.timestamp() if row.heard_at_us else -1.0
        read = self._answers.get(id(row.node))
        knowledge.latest_s = max(knowledge.latest_s, heard_s, read[1] if read else -1.0)
        for number in (trial_number(row), offer_number(row)):
            knowledge.by_number[number] = knowledge.latest_s

    def _check_read(self, process: SimProcess, node: ProviderId) -> None:
        owned_s = self._known.setdefault(node, KnownNode()).owned_since_s
        read_s = self._read_s.get((process.full_name, node))
        if read_s is None or read_s < owned_s:
            self._findings.breaks(
                READ_FIRST,
                f"{process.full_name} has not read {node} since it became its owner at {owned_s:.3f}",
            )

    def owners_changed(
        self,
        process: SimProcess,
        moves: Sequence[NodeHandover],
        moved: Sequence[Owned],
        members: Sequence[Member],
    ) -> None:
        alive = {each.name for each in members if each.is_alive}
        # One that has joined since the mover read the members has taken none of its nodes again yet.
        since = EPOCH + timedelta(seconds=self._findings.now_s - LOOKED_S)
        stays = {
            each.name
            for each in members
            if each.is_alive and not each.is_draining and (each.joined_at is None or each.joined_at <= since)
        }
        wanted = {move.id: move for move in moves}
        for each in moved:
            knowledge = self._known.setdefault(each.id, KnownNode())
            knowledge.owned_since_s = self._findings.now_s
            former = wanted[each.id].owner
            self._findings.log(process.full_name, "moves {} from {!r} to {!r}", each.id, former, each.owner)
            self._findings.count(NODE, "taken over" if former not in alive else "handed over")
            if former != process.name:
                self._check_let_go(process, each.id)
            if each.holds_instance and each.owner != former and former in stays:
                self._findings.breaks(STAYS, f"{former} gives {each.id} to {each.owner}")
        self.check_owners([each.id for each in moved])

    def _check_let_go(self, taker: SimProcess, node: ProviderId) -> None:
        for process, membership in self.memberships.items():
            if process is not taker and not process.is_dead and membership.may_act_on(node):
                self._findings.breaks(
                    ONE_OWNER, f"{taker.full_name} takes {node}, and {process.full_name} acts on it"
                )

    # The ring

    def check_owners(self, nodes: Iterable[ProviderId]) -> None:
        """No node may have two daemons that act on it now."""
        acting = [
            (process, membership) for process, membership in self.memberships.items() if not process.is_dead
        ]
        for node in nodes:
            names = [process.full_name for process, membership in acting if membership.may_act_on(node)]
            if len(names) > 1:
                self._findings.breaks(ONE_OWNER, f"{names} all act on {node}")

    def check_leases(self, members: Sequence[Member]) -> None:
        left_s = {(each.name, each.incarnation): each.lease_left_s for each in members}
        for process, membership in self.memberships.items():
            if process.is_dead or not membership.may_act():
                continue
            lease_s = left_s.get((membership.name, membership.incarnation), 0.0)
            if lease_s < self._margin_s - AT_ONCE_S:
                self._findings.breaks(
                    MARGIN, f"{process.full_name} acts with {lease_s:.3f} s left of its lease"
                )

    # Commits of placement

    def written(self, orders: Sequence[ClaimOrder], written: Sequence[TreeChanges | ClaimChanges]) -> None:
        # A cleanup consumer takes over an existing claim: it is no new claim of the node.
        cleanup_consumers = {order.heir.id for order in orders if isinstance(order, SwapClaim) and order.heir}
        for changes in written:
            if isinstance(changes, TreeChanges):
                for tree in changes.trees:
                    if tree.root in self.real_nodes:
                        self._check_report(tree)
            else:
                self._check_claims(changes, cleanup_consumers)

    def _check_report(self, tree: TreeBook) -> None:
        node, knowledge = tree.root, self._known.setdefault(tree.root, KnownNode())
        if (tree.epoch, tree.sequence) < knowledge.reported:
            self._findings.breaks(
                EPOCHS,
                f"{node} is reported with epoch and sequence {(tree.epoch, tree.sequence)} after {knowledge.reported}",
            )
        knowledge.reported = (tree.epoch, tree.sequence)
        knowledge.reported_s = max(knowledge.reported_s, knowledge.by_number.get(tree.sequence, -1.0))
        real_node = self.real_nodes[node]
        if not tree.providers:
            belongs_here = (
                real_node.node is not None and GROUPS_OF_NODES[real_node.node.conductor_group] == tree.cell
            )
            is_news = real_node.last_gone_s >= knowledge.created_from_s - AT_ONCE_S
            if knowledge.has_provider and belongs_here and not is_news:
                self._findings.breaks(
                    KEEPS_PROVIDERS, f"the provider of {node} is deleted, but the node exists"
                )
            knowledge.has_provider = False
            return
        if not knowledge.has_provider:
            knowledge.has_provider, knowledge.created_from_s = True, knowledge.reported_s
        stocks = tree.providers[node].inventories.values()
        if any(map(_is_offered, stocks)):
            self._findings.log("books", "{} is offered", node)
            self._check_offered(node, "is offered")
        else:
            self._findings.log("books", "{} is reserved", node)

    def _check_claims(self, changes: ClaimChanges, cleanup_consumers: AbstractSet[ConsumerId]) -> None:
        held = dict(changes.held)
        for holder in [each for each in changes.claimed if each.consumer not in cleanup_consumers]:
            for node in {each.provider for each in held.get(holder.consumer, ())} & self.real_nodes.keys():
                self._findings.count(NODE, CLAIMED)
                self._check_offered(node, f"is claimed for {holder.consumer}")

    def _check_offered(self, node: ProviderId, how: str) -> None:
        known_s = self._known.setdefault(node, KnownNode()).reported_s
        if not self._was_free_since(node, known_s):
            real_node = self.real_nodes[node]
            self._findings.breaks(
                UNAVAILABLE,
                f"{node} {how}; it became unavailable at {real_node.left_s[-1] if real_node.left_s else 0.0:.3f}; placement's report was made at "
                f"{known_s:.3f}; it is {_shown(real_node.node) if real_node.node else 'deleted'}",
            )


def _note_image(real_node: RealNode, before: SimulatedNode | None, after: SimulatedNode | None) -> None:
    """Note the image that a deploy writes: Ironic reads it at the beginning, and has written it when the node is active."""
    was, now = before and before.provision_state, after and after.provision_state
    if after is not None and now == "deploying" and was not in ("wait call-back", now):
        real_node.writes = str(after.instance_info.get("image_source", ""))
    elif now == "active" and was in ("deploying", "wait call-back"):
        real_node.image = real_node.writes


def is_free(node: SimulatedNode | None) -> bool:
    """True if, by Ironic's own fields, the node is available to any consumer."""
    return (
        node is not None
        and node.provision_state == "available"
        and not node.maintenance
        and not node.retired
        and node.power_state != "error"
        and node.instance_uuid is None
        and node.fault is None
        and bool(node.resource_class)
    )


def name_of(node_class: str) -> str:
    """Placement's name for a resource class of Ironic."""
    return f"CUSTOM_{node_class.replace('-', '_').upper()}"


def id_of(node: SimulatedNode) -> ProviderId:
    return ProviderId(UUID(node.uuid))


def _is_offered(stock: InventoryState) -> bool:
    return stock.total > stock.reserved


def _shown(node: SimulatedNode) -> str:
    more = (
        ("maintenance", node.maintenance),
        ("retired", node.retired),
        (f"fault {node.fault}", node.fault),
        (f"instance {node.instance_uuid}", node.instance_uuid),
        (f"power {node.power_state}", node.power_state == "error"),
    )
    is_so = [words for words, is_so in more if is_so]
    return ", ".join((node.provision_state, str(node.resource_class), node.conductor_group, *is_so))
