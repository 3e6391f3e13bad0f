"""A node as the daemons keep it: one frozen row, written by compare-and-set on its version."""

from datetime import datetime
from typing import Literal

from msgspec import Struct, structs

from bus.messages.cell import (
    DeployInstance,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    RedeployInstance,
    SpawnFailed,
)
from engine.flavors import InstanceId
from engine.inventories import ProviderId
from ironic_sync.core.node import Node, is_of_nobody
from kit.clock import EPOCH

OF_NOBODY = "Ironic has deployed the node, and has no instance there: `moor node undeploy` releases it"
# Said with a time behind it.
OLDER = "Ironic was restored from a backup: it tells of the node as it was before"
# By any clock: the daemon that writes an order and the node's owner may have two.
AT_ONCE = EPOCH
# The final answer about an attempt, for the conductor.
Answer = InstanceSpawned | SpawnFailed | InstanceDestroyed | InstanceRedeployed


class Offer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a node's report to placement: one unit of its resource class, reserved if it may not be claimed, and why.

    `kept_class` is the node's former class while an instance still holds it: placement keeps it, reserved.
    """

    resource_class: str = ""
    kept_class: str = ""
    reserved: bool = True
    traits: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    place: str = ""

    def says_the_same_as(self, other: "Offer | None") -> bool:
        """Does placement see no difference between the two offers? It is not told the reasons."""
        return other is not None and self == structs.replace(other, reasons=self.reasons)


class NodeAttempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A try of a cell to have an instance on a node."""

    cell: str
    instance: InstanceId
    attempt: int


class NodeDeploy(NodeAttempt, frozen=True, kw_only=True, omit_defaults=True):
    """An order of a cell's conductor for a node, and its progress. A node has at most one.

    A deploy with a `failure` is being cleaned up; the failure is reported when the instance is off the node. A failed
    rebuild is not cleaned up.

    A node is `active` both before and after a rebuild. The rebuild is done if Ironic accepted the order (`is_ordered`). If
    Ironic's answer was lost, `before` decides: the provision state and its time, stored before the order to rebuild. Ironic's
    times are whole seconds, so a rebuild that takes less than a second, and whose answer was lost, is repeated.
    """

    kind: Literal["deploy", "undeploy", "rebuild"]
    # An undeploy that no conductor waits for: it removes what a late request left on the node.
    is_leftover: bool = False
    # A person has ordered it, or it is within what daemons may order by themselves (`IronicSettings.undeploys_unasked`).
    is_allowed: bool = False
    # The order; None for an undeploy.
    order: DeployInstance | RedeployInstance | None = None
    before: str = ""
    is_ordered: bool = False
    # The order to take the instance off was sent, and Ironic's answer was lost.
    is_sent: bool = False
    failure: str = ""
    # For people: what the deploy waits for. `tries` counts failed tries in a row; of these, `refusals` are those that
    # failed although Ironic answered, and `repeats` those that Ironic accepted and that changed nothing.
    progress: str = ""
    tries: int = 0
    refusals: int = 0
    repeats: int = 0
    started_at: datetime | None = None
    # When the node must be read again even without a notification.
    due_at: datetime | None = None

    @property
    def is_unasked(self) -> bool:
        """Whether it destroys an instance although no person gave an order, and nothing has allowed it yet."""
        return self.is_leftover and not self.is_allowed

    @property
    def is_cleanup(self) -> bool:
        """Whether the instance is to be taken off the node: by an undeploy, or after a failed deploy."""
        return self.kind == "undeploy" or bool(self.failure)


class Rebuilt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a rebuild ended, as its conductor is told."""

    number: int
    failure: str = ""
    is_active: bool = True


class Deployed(NodeAttempt, frozen=True, kw_only=True, omit_defaults=True):
    """The attempt that a deploy made active on a node, and how its last rebuild ended, if there was one.

    `gone_or_back` counts the messages to the conductor that Ironic has deleted the node since, or has it again. They are
    numbered by it: odd ones say that it is gone.
    `active_at` is since when the node was active, by Ironic's clock: an Ironic that tells of the node as it was before that has
    not taken the instance off, but was restored from a backup.
    """

    rebuilt: Rebuilt | None = None
    gone_or_back: int = 0
    active_at: datetime | None = None
    told: str = ""

    @property
    def is_lost(self) -> bool:
        """Whether the last such message was that the node is gone."""
        return self.gone_or_back % 2 == 1


class Ended(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt that is over on a node, a tombstone: no order deploys it or an earlier one of its instance any more.

    `failure` is why it failed; empty if it was undeployed.
    """

    instance: InstanceId
    attempt: int
    failure: str = ""


class Unasked(Struct, frozen=True):
    """An order of a daemon's own to take an instance off its node, and why it gave it."""

    at: datetime
    instance: InstanceId
    why: str


class Alarms(Struct, frozen=True):
    """How many nodes Ironic tells an older state of than was known, and on how many daemons lately took an instance off by themselves."""

    older: int
    unasked: int


class NodeRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The known state of a node, and its owner.

    `version` counts the row's writes: a write names the version that it read, and reports to placement are numbered by
    it (core/reports.py). `epoch` counts the node's owners. `read_epoch` is the last epoch in which the owner read the node and placement
    took its report: while it is behind `epoch`, nothing is done with the node.
    `heard_at_us` and `heard_from` are the time and the publisher of the last notification that was applied, as it says them
    itself.
    `read_at_us` is when the node was last read by REST, by the clock of the daemon that read it.
    `doubts` are reasons to read the node again; `is_doubted` keeps it reserved until then.
    `seen_epoch` is the last epoch in which the owner read the node by REST, or took it over where the daemons have no REST
    API.
    `cell_wanted` is the cell that the node goes to when its provider is gone from `cell`. `cell_note` says why its cell is
    unknown, or not the one that the operator's tables name (offers.py).
    `reported` is what placement accepted last, under `reported_number`; `report_note` says why it refused the last report, or what of it was
    written by name and stays.
    `content_version` is the version in which the row last began to say something else to placement: only what was reported in
    that version or later counts as reported.
    `is_removed`: placement has no provider for the node any more. `sequence_ahead` is added to the number of a
    report: placement may have seen higher numbers than this row, which may have been restored from a backup.
    `deploy` is under way, `deployed` was the last that became active. `ended` are the last attempts that are over, the
    newest last. `answers` to conductors are kept until the broker has confirmed them; `answers_at` is when the first of them was made.
    `epoch_ahead` is an epoch that placement has and this row had not: then the owner raises `epoch` above it; `epoch_raises`
    counts how often.
    `missing_since_us` is when Ironic was found to have lost this node, either together with many others or with an instance of ours:
    it is kept reserved, and counts as deleted only later, or when Ironic's notification or an operator says so.
    `is_foreign`: something else keeps the node's provider, which is left alone; `report_note` says what.
    `older_than` is since when the node was in the state that was known here, while Ironic tells of an older one: it was restored.
    `left` are the last attempts that were adopted and given back: their instances are on their nodes, and no daemon's.
    `unasked` are the last orders to take an instance off the node that a daemon gave by itself.
    `is_found_off`: Ironic found the node switched off, which nobody had ordered.
    `power_loss` is the number of the loss of power that lasts, while an instance lives on the node; `power_loss_told` is the one
    that keepers know of. 0: there is none.
    """

    id: ProviderId
    version: int = 0
    cell: str = ""
    cell_wanted: str = ""
    cell_note: str = ""
    owner: str = ""
    epoch: int = 0
    seen_epoch: int = 0
    read_epoch: int = 0
    node: Node | None = None
    is_deleted: bool = False
    heard_at_us: int = 0
    heard_from: str = ""
    read_at_us: int = 0
    doubts: tuple[str, ...] = ()
    is_doubted: bool = False
    offer: Offer | None = None
    reported: Offer | None = None
    reported_number: int = 0
    content_version: int = 0
    report_note: str = ""
    is_removed: bool = False
    sequence_ahead: int = 0
    epoch_ahead: int = 0
    epoch_raises: int = 0
    missing_since_us: int = 0
    is_foreign: bool = False
    deploy: NodeDeploy | None = None
    deployed: Deployed | None = None
    ended: tuple[Ended, ...] = ()
    answers: tuple[Answer, ...] = ()
    answers_at: datetime | None = None
    older_than: datetime | None = None
    left: tuple[Ended, ...] = ()
    unasked: tuple[Unasked, ...] = ()
    is_found_off: bool = False
    power_loss: int = 0
    power_loss_told: int = 0

    @property
    def unasked_at(self) -> datetime | None:
        """When a daemon last ordered by itself that an instance be taken off the node."""
        return self.unasked[-1].at if self.unasked else None

    @property
    def holds_instance(self) -> bool:
        """Whether an instance is on the node or on its way there: then the node stays with its owner while that
        daemon lives.
        """
        return self.deploy is not None or (self.node is not None and self.node.instance_uuid is not None)

    @property
    def living(self) -> Deployed | None:
        """The instance that the books give the node to: it was made active here, and nobody has ended it. No daemon takes it
        off by itself, whatever Ironic says.
        """
        done = self.deployed
        if done is None or any(
            each.instance == done.instance and each.attempt >= done.attempt for each in self.ended
        ):
            return None
        return done

    @property
    def discord(self) -> str:
        """What Ironic has on the node instead of its living instance; empty if there is no such disagreement."""
        done, node = self.living, self.node
        if done is None or node is None or self.deploy is not None:
            return ""
        has = f"{f'instance {node.instance_uuid}' if node.instance_uuid else 'no instance'} on the node"
        if self.missing_since_us:
            has = "no such node any more"
        elif node.instance_uuid == done.instance:
            return ""
        return f"instance {done.instance} lives here by the books, and Ironic has {has}"

    @property
    def trouble(self) -> str:
        """What Ironic says of the node that cannot be so by the books: a person must look at it. Empty if there is nothing."""
        older = f"{OLDER} {self.older_than:%Y-%m-%d %H:%M:%S} UTC" if self.older_than else ""
        is_alone = self.node is not None and self.deploy is None and not self.is_deleted
        alone = OF_NOBODY if is_alone and self.node and is_of_nobody(self.node) else ""
        return self.discord or older or alone

    @property
    def needs_report(self) -> bool:
        """Whether placement must still be told what the node offers, or that it is gone."""
        if not self.cell or self.is_foreign:
            return False
        if self.is_deleted:
            return not self.is_removed
        is_told = self.offer is None or self.offer.says_the_same_as(self.reported)
        return not is_told or bool(self.cell_wanted) or self.is_behind or self.may_drop_class

    @property
    def is_behind(self) -> bool:
        """Whether placement knows a later epoch of the node: it refuses every report until the owner has raised the
        row's epoch above that.
        """
        return self.epoch_ahead > self.epoch

    @property
    def is_over(self) -> bool:
        """Whether all work for a node that Ironic deleted is done."""
        is_gone = self.is_deleted and (self.is_removed or self.is_foreign or not self.cell)
        return (
            is_gone and self.deploy is None and not self.answers and self.power_loss == self.power_loss_told
        )

    @property
    def may_drop_class(self) -> bool:
        """Whether to ask placement to remove the node's former class: no instance is known to hold it any more."""
        return self.offer is not None and bool(self.offer.kept_class) and not self.holds_instance

    @property
    def needs_read(self) -> bool:
        """Whether the owner must read the node: it has doubts, or the owner has not read it in this epoch yet."""
        return self.seen_epoch != self.epoch or self.is_doubted or bool(self.doubts)

    @property
    def due_at(self) -> datetime | None:
        """When the owner must continue the deploy, or send the remaining answers."""
        deploy_at = None if self.deploy is None else self.deploy.due_at
        if self.answers_at is None or deploy_at is None:
            return self.answers_at or deploy_at
        return min(self.answers_at, deploy_at)
