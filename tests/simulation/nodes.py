"""Bare-metal nodes, followed by whoever checks: what they really are at Ironic, what the daemons have written of them, and
what placement was told.

What a daemon knew of a node when it wrote a row is told by times: that of the last notification that it applied, and of
the last answer of Ironic's API. A node that had left by then is not offered before it has come back.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from uuid import UUID

from msgspec import Struct

from bus.message import ConsumerId, ProviderId
from bus.messages.build import InstanceId
from bus.messages.placement import InventoryState, SwapClaim
from compute_sim.ironic import Node
from ironic_sync.core import node as known
from ironic_sync.core.reports import offer_number, trial_number
from ironic_sync.core.ring import Member, Move, Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.membership import Membership  # noqa: TC001 - like every other import
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, TreeBook, TreeChanges
from tests.simulation.findings import Findings
from tests.simulation.plan import GROUPS_OF_NODES
from tests.simulation.process import EPOCH, SimProcess

# What was counted: nodes that left what may be claimed, nodes that came back, and claims of nodes.
NODE, LEFT, BACK, CLAIMED = "node", "left", "came back", "claimed"
# Notifications that are said at one moment are numbered by microseconds.
AT_ONCE_S = 0.001
LEFT_IS_GONE = "a node that has left is not offered before it is back"
ONE_OWNER = "no node has two daemons that act on it"
EPOCHS = "a report of an earlier owner is refused"
READ_FIRST = "a node is read before its new owner does anything with it"
KEPT = "no provider is deleted because nodes are handed over"
OTHERS = "what somebody else put on a node is left alone"
MARGIN = "a daemon stops acting before its lease is over"


class Truth(Struct):
    """What a node is at Ironic, and when it left."""

    node: Node | None
    is_free: bool = False
    left_s: list[float] = []
    # The image that a deploy writes, and the one that was written last.
    writes: str = ""
    image: str = ""
    # When it was deleted, made again, or given to another cell, last.
    went_s: float = -1.0


class Knowledge(Struct):
    """Of one node: what the daemons knew by each version of its row, and what placement was told last."""

    by_number: dict[int, float] = {}
    latest_s: float = -1.0
    told_s: float = -1.0
    told: tuple[int, int] = (-1, -1)
    has_provider: bool = False
    # What its provider was made of was known then.
    made_of_s: float = -1.0
    owned_since_s: float = 0.0


class Nodes:
    def __init__(self, findings: Findings, margin_s: float) -> None:
        self._findings = findings
        self._margin_s = margin_s
        self.truths: dict[ProviderId, Truth] = {}
        self._known: dict[ProviderId, Knowledge] = {}
        # When each node that was read was what the answer says: by the answer itself, which rows keep.
        self._answers: dict[int, tuple[known.Node, float]] = {}
        # When each process last asked Ironic for a node and was answered.
        self._read_s: dict[tuple[str, ProviderId], float] = {}
        self._built: set[tuple[InstanceId, ProviderId]] = set()
        # Of processes that are alive.
        self.memberships: dict[SimProcess, Membership] = {}

    # What is at Ironic

    def founded(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.truths[id_of(node)] = Truth(node, is_free(node))

    def became(self, node: ProviderId, after: Node | None) -> None:
        now_s = self._findings.now_s
        truth = self.truths.setdefault(node, Truth(None))
        before, truth.node = truth.node, after
        if before is None or after is None or before.conductor_group != after.conductor_group:
            truth.went_s = now_s
        if truth.is_free and not is_free(after):
            truth.left_s.append(now_s)
            self._findings.see(NODE, LEFT)
        elif is_free(after) and not truth.is_free:
            self._findings.see(NODE, BACK)
        truth.is_free = is_free(after)
        _note_image(truth, before, after)
        if after is None:
            self._findings.tell("ironic", "{} is deleted", node)
            return
        if before is None or _shown(before) != _shown(after):
            self._findings.tell("ironic", "{} is {}", node, _shown(after))
        if after.instance_uuid and after.provision_state == "active":
            self._built.add((InstanceId(UUID(after.instance_uuid)), node))

    def _was_free_since(self, node: ProviderId, known_s: float) -> bool:
        """Whether it has been free at any time since it left, as far as that was known then; or had not left."""
        truth = self.truths.get(node)
        if truth is None or truth.is_free:
            return truth is not None
        return bisect_right(truth.left_s, known_s - AT_ONCE_S) < len(truth.left_s)

    # What instances have

    def still_there(self, instance: InstanceId, host: ProviderId) -> bool:
        """Of a daemon that was held up, Ironic may take a name after another daemon ended the deploy: such a node is
        available still, and the name is taken off it again.
        """
        truth = self.truths.get(host)
        node = truth.node if truth is not None else None
        return (
            node is not None and node.instance_uuid == str(instance) and node.provision_state != "available"
        )

    def has_built(self, instance: InstanceId, host: ProviderId) -> bool:
        """It has, or had and lost it."""
        return (instance, host) in self._built

    def has_image(self, instance: InstanceId, host: ProviderId, image: str) -> bool:
        """The image was written onto the node; unless it has lost the instance since."""
        truth = self.truths.get(host)
        return truth is None or not self.still_there(instance, host) or truth.image == image

    def instance_on(self, node: ProviderId) -> str | None:
        truth = self.truths.get(node)
        return truth.node.instance_uuid if truth is not None and truth.node is not None else None

    # What daemons do

    def answered(self, process: SimProcess, nodes: Iterable[known.Node], asked_s: float) -> None:
        now_s = self._findings.now_s
        for node in nodes:
            self._answers[id(node)] = (node, now_s)
            self.gone(process, node.id, asked_s)

    def gone(self, process: SimProcess, node: ProviderId, asked_s: float) -> None:
        """It was told that there is no such node. An earlier question may be answered later."""
        key = (process.full_name, node)
        self._read_s[key] = max(asked_s, self._read_s.get(key, 0.0))

    def ordered(self, process: SimProcess, node: ProviderId, what: str) -> None:
        """A daemon begins to ask Ironic to change a node."""
        self._findings.tell(process.full_name, "orders {} of {}", what, node)
        self._findings.see("order", what)
        self._check_read(process, node)
        if not self.memberships[process].may_act_on(node):
            self._findings.breaks(
                ONE_OWNER, f"{process.full_name} orders {what} of {node}, which is not its own"
            )

    def broke_into(self, process: SimProcess, node: ProviderId, what: str, instance: str) -> None:
        """Ironic has accepted an order for a node on which something stands that is not this cloud's."""
        self._findings.breaks(OTHERS, f"{process.full_name} orders {what} of {node}, which has {instance}")

    def saved(
        self, process: SimProcess, before: Mapping[ProviderId, NodeRow], rows: Sequence[NodeRow]
    ) -> None:
        for row in rows:
            self._note(row)
            was = before.get(row.id)
            if row.epoch and row.seen_epoch == row.epoch and (was is None or was.seen_epoch != row.epoch):
                self._check_read(process, row.id)
            if was is not None and (was.owner, was.epoch) != (row.owner, row.epoch):
                self._findings.breaks(ONE_OWNER, f"{process.full_name} writes another owner of {row.id}")

    def _note(self, row: NodeRow) -> None:
        knowledge = self._known.setdefault(row.id, Knowledge())
        heard_s = row.heard_at_us / 1e6 - EPOCH.timestamp() if row.heard_at_us else -1.0
        read = self._answers.get(id(row.node))
        knowledge.latest_s = max(knowledge.latest_s, heard_s, read[1] if read else -1.0)
        for number in (trial_number(row), offer_number(row)):
            knowledge.by_number[number] = knowledge.latest_s

    def _check_read(self, process: SimProcess, node: ProviderId) -> None:
        owned_s = self._known.setdefault(node, Knowledge()).owned_since_s
        read_s = self._read_s.get((process.full_name, node))
        if read_s is None or read_s < owned_s:
            self._findings.breaks(
                READ_FIRST,
                f"{process.full_name} has not read {node} since it is its own, from {owned_s:.3f} on",
            )

    def given(
        self, process: SimProcess, moves: Sequence[Move], moved: Sequence[Owned], members: Sequence[Member]
    ) -> None:
        alive = {each.name for each in members if each.is_alive}
        wanted = {move.id: move for move in moves}
        for each in moved:
            knowledge = self._known.setdefault(each.id, Knowledge())
            knowledge.owned_since_s = self._findings.now_s
            former = wanted[each.id].owner
            self._findings.tell(process.full_name, "gives {} of {!r} to {!r}", each.id, former, each.owner)
            self._findings.see(NODE, "taken over" if former not in alive else "handed over")
            if former != process.name:
                self._check_let_go(process, each.id)
        self.look([each.id for each in moved])

    def _check_let_go(self, taker: SimProcess, node: ProviderId) -> None:
        for process, membership in self.memberships.items():
            if process is not taker and not process.is_dead and membership.may_act_on(node):
                self._findings.breaks(
                    ONE_OWNER, f"{taker.full_name} takes {node}, and {process.full_name} acts on it"
                )

    # The ring

    def look(self, nodes: Iterable[ProviderId]) -> None:
        """Now no node may have two daemons that act on it."""
        acting = [
            (process, membership) for process, membership in self.memberships.items() if not process.is_dead
        ]
        for node in nodes:
            those = [process.full_name for process, membership in acting if membership.may_act_on(node)]
            if len(those) > 1:
                self._findings.breaks(ONE_OWNER, f"{node} has {those}")

    def look_at_leases(self, members: Sequence[Member]) -> None:
        left_s = {(each.name, each.incarnation): each.lease_left_s for each in members}
        for process, membership in self.memberships.items():
            if process.is_dead or not membership.may_act():
                continue
            lease_s = left_s.get((membership.name, membership.incarnation), 0.0)
            if lease_s < self._margin_s - AT_ONCE_S:
                self._findings.breaks(
                    MARGIN, f"{process.full_name} acts with {lease_s:.3f} s left of its lease"
                )

    # What placement commits

    def written(self, orders: Sequence[ClaimOrder], written: Sequence[TreeChanges | ClaimChanges]) -> None:
        # A cleanup consumer inherits what was held before.
        heirs = {order.cleanup for order in orders if isinstance(order, SwapClaim)}
        for changes in written:
            if isinstance(changes, TreeChanges):
                for tree in changes.trees:
                    if tree.root in self.truths:
                        self._check_report(tree)
            else:
                self._check_claims(changes, heirs)

    def _check_report(self, tree: TreeBook) -> None:
        node, knowledge = tree.root, self._known.setdefault(tree.root, Knowledge())
        if (tree.epoch, tree.sequence) < knowledge.told:
            self._findings.breaks(
                EPOCHS, f"{node} is told as {(tree.epoch, tree.sequence)} after {knowledge.told}"
            )
        knowledge.told = (tree.epoch, tree.sequence)
        knowledge.told_s = max(knowledge.told_s, knowledge.by_number.get(tree.sequence, -1.0))
        truth = self.truths[node]
        if not tree.providers:
            belongs_here = truth.node is not None and GROUPS_OF_NODES[truth.node.conductor_group] == tree.cell
            is_news = truth.went_s >= knowledge.made_of_s - AT_ONCE_S
            if knowledge.has_provider and belongs_here and not is_news:
                self._findings.breaks(KEPT, f"the provider of {node} is removed, and the node is there")
            knowledge.has_provider = False
            return
        if not knowledge.has_provider:
            knowledge.has_provider, knowledge.made_of_s = True, knowledge.told_s
        stocks = tree.providers[node].inventories.values()
        if any(map(_is_offered, stocks)):
            self._findings.tell("books", "{} is offered", node)
            self._check_offered(node, "is offered")
        else:
            self._findings.tell("books", "{} is reserved", node)

    def _check_claims(self, changes: ClaimChanges, heirs: AbstractSet[ConsumerId | None]) -> None:
        held = dict(changes.held)
        for holder in [each for each in changes.claimed if each.consumer not in heirs]:
            for node in {each.provider for each in held.get(holder.consumer, ())} & self.truths.keys():
                self._findings.see(NODE, CLAIMED)
                self._check_offered(node, f"is claimed for {holder.consumer}")

    def _check_offered(self, node: ProviderId, how: str) -> None:
        known_s = self._known.setdefault(node, Knowledge()).told_s
        if not self._was_free_since(node, known_s):
            truth = self.truths[node]
            self._findings.breaks(
                LEFT_IS_GONE,
                f"{node} {how}; it left at {truth.left_s[-1] if truth.left_s else 0.0:.3f}, and what placement was told is of "
                f"{known_s:.3f}; it is {_shown(truth.node) if truth.node else 'deleted'}",
            )


def _note_image(truth: Truth, before: Node | None, after: Node | None) -> None:
    """What Ironic writes, it reads at the beginning of the deploy."""
    was, now = before and before.provision_state, after and after.provision_state
    if after is not None and now == "deploying" and was not in ("wait call-back", now):
        truth.writes = str(after.instance_info.get("image_source", ""))
    elif now == "active" and was in ("deploying", "wait call-back"):
        truth.image = truth.writes


def is_free(node: Node | None) -> bool:
    """By Ironic's own words, whether anybody may be given this node."""
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
    """Placement's name for a class of Ironic's."""
    return f"CUSTOM_{node_class.replace('-', '_').upper()}"


def id_of(node: Node) -> ProviderId:
    return ProviderId(UUID(node.uuid))


def _is_offered(stock: InventoryState) -> bool:
    return stock.total > stock.reserved


def _shown(node: Node) -> str:
    more = (
        ("maintenance", node.maintenance),
        ("retired", node.retired),
        (f"fault {node.fault}", node.fault),
        (f"instance {node.instance_uuid}", node.instance_uuid),
        (f"power {node.power_state}", node.power_state == "error"),
    )
    is_so = [words for words, is_so in more if is_so]
    return ", ".join((node.provision_state, str(node.resource_class), node.conductor_group, *is_so))
