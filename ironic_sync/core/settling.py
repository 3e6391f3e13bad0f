"""Derives from a node's known state its cell and its offer, and what it means for instances on the node; and applies the orders of
conductors to its row.
"""

from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Literal

from msgspec import Struct, structs

from bus.messages.cell import (
    AdoptDeployed,
    DeployInstance,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    LeaveNode,
    NodePower,
    RedeployInstance,
    SpawnFailed,
    UndeployInstance,
)
from engine.flavors import InstanceId
from engine.hosts import NODE
from ironic_sync.core.node import POWER_FAILURE, provision_state
from ironic_sync.core.offers import (
    CellMap,
    CellPlan,
    against_maintenance,
    decide_cell,
    offer_of,
    reasons_against,
)
from ironic_sync.core.rows import (
    AT_ONCE,
    Alarms,
    Answer,
    Deployed,
    Ended,
    NodeDeploy,
    NodeRow,
    Rebuilt,
    Unasked,
)

NODE_DELETED = "its bare-metal node does not exist any more: it was deleted in Ironic"


class NodePolicy(Struct, frozen=True, kw_only=True):
    """What an operator configured, and what does not change while the process runs.

    `standard_traits` are the names of os_traits. `can_read` says whether Ironic's REST API can be asked.
    """

    cells: CellMap
    standard_traits: AbstractSet[str]
    can_read: bool
    # The property of a node that says where it is.
    place_property: str = ""


def settled(row: NodeRow, policy: NodePolicy) -> NodeRow:
    """The row with its cell, its offer, an undeploy of a leftover instance, and a message about a lost one or one that is back; the same
    object if nothing changes.
    """
    plan = CellPlan(row.cell)
    if not row.is_deleted:
        plan = decide_cell(row, policy.cells, can_read=policy.can_read)
    if plan != CellPlan(row.cell, row.cell_wanted, row.cell_note):
        row = structs.replace(row, cell=plan.cell, cell_wanted=plan.wanted, cell_note=plan.note)
    if policy.can_read:
        row = _with_power(_with_words(with_lost_instance(with_leftover(row))))
    # A node that moves is reserved, so the offer is derived after the cell.
    offer = offer_of(row, policy.standard_traits, policy.place_property)
    return row if offer == row.offer else structs.replace(row, offer=offer)


def after_change(before: NodeRow, changed: NodeRow, policy: NodePolicy) -> NodeRow:
    """The row to be written in place of `before`.

    If its content for placement changes, nothing counts as reported any more. This also holds if the content is again what
    placement once accepted: meanwhile placement may have accepted another report whose answer was lost.

    A node that placement removed stays removed while it counts as deleted, whatever is heard of it: a read decides first.
    """
    after = settled(_with_age(before, changed) if policy.can_read else changed, policy)
    if _content(before) == _content(after) or (before.is_removed and after.is_deleted):
        return after
    return structs.replace(after, reported=None, is_removed=False, content_version=before.version + 1)


def _with_age(before: NodeRow, row: NodeRow) -> NodeRow:
    """The row that remembers since when its node was in another state, if Ironic tells now of an older one: Ironic's database was
    restored from a backup. Until a person has answered, or Ironic's time has come again, the node counts for nothing, also if it was
    lost meanwhile.
    """
    if row.node is None:
        return row
    at, known = row.node.provision_updated_at, row.older_than
    if known is None and before.node not in (None, row.node) and not before.is_deleted:
        known = before.node.provision_updated_at
    older_than = known if known is not None and (at is None or at < known) else None
    return row if older_than == row.older_than else structs.replace(row, older_than=older_than)


def answered(row: NodeRow) -> NodeRow:
    """The row after a person said that the node may count again as Ironic has it. Its owner reads it again."""
    return structs.replace(row, older_than=None, doubts=(*row.doubts, ANSWERED)) if row.older_than else row


def _content(row: NodeRow) -> tuple[object, ...]:
    offer = row.offer and structs.replace(row.offer, reasons=())
    return row.cell, row.cell_wanted, row.is_deleted, offer


def seen(row: NodeRow) -> NodeRow:
    """The row after its owner has read the node, or taken it over where the daemons have no REST API to read it.

    If this is the first time in the row's epoch, the node is reported again, so that placement knows the epoch.
    """
    if row.seen_epoch == row.epoch:
        return row
    return structs.replace(row, seen_epoch=row.epoch, reported=None)


def with_leftover(row: NodeRow) -> NodeRow:
    """If Ironic has an instance on the node whose attempt has ended, the row with an undeploy that is due at once.

    Ironic may receive a request of an abandoned deploy late. No other program would ever remove that instance. Or the
    order to undeploy came while the order for another instance was under way: then its conductor waits for the answer.
    """
    node = row.node
    if row.deploy is not None or node is None or row.is_deleted or row.needs_read:
        return row
    end = next((each for each in row.ended if each.instance == node.instance_uuid), None)
    if end is None or row.living is not None or row.older_than is not None:
        # Ironic's word about an ended instance is no reason to wipe one that lives: Ironic may be restored from a backup.
        return row
    is_deployed = row.deployed is not None and row.deployed.instance == end.instance
    if is_deployed and row.deployed is not None and row.deployed.attempt != end.attempt:
        return row
    deploy = NodeDeploy(
        kind="undeploy",
        cell=row.cell,
        instance=end.instance,
        attempt=end.attempt,
        is_leftover=not is_deployed,
        due_at=AT_ONCE,
    )
    return structs.replace(row, deploy=deploy)


def with_stray(row: NodeRow, instance: InstanceId) -> NodeRow:
    """The row after an operator said that nobody has this instance, which is on the node in Ironic: it is undeployed like a
    leftover, as soon as the node is known to have it and no other order is under way.
    """
    done = row.deployed
    attempt = done.attempt if done is not None and done.instance == instance else 0
    asked = with_leftover(with_end(row, instance, attempt))
    deploy = asked.deploy
    if deploy is None or not deploy.is_leftover or deploy.instance != instance:
        return asked
    return structs.replace(asked, deploy=structs.replace(deploy, is_allowed=True, due_at=AT_ONCE))


UNASKED_KEPT_MAX = 5
# As a message takes them.
WORDS_MAX = 200
ANSWERED = "a person said that Ironic is right about it although it was restored"


def with_unasked(row: NodeRow, now: datetime) -> NodeRow:
    """The row with its undeploy noted as one that a daemon orders by itself."""
    assert row.deploy is not None, "an order is noted when it is given"
    unasked = Unasked(now, row.deploy.instance, why_unasked(row.deploy))
    return structs.replace(row, unasked=(*row.unasked, unasked)[-UNASKED_KEPT_MAX:])


def why_unasked(deploy: NodeDeploy) -> str:
    return f"attempt {deploy.attempt} of it has ended, and Ironic has it on the node"


def why_not_unasked(alarms: Alarms, at_most: int) -> str:
    """Why a daemon may not carry out an undeploy that nobody ordered, which is noted among `alarms`; empty if it may."""
    if alarms.older:
        return f"Ironic was restored, and {alarms.older} nodes wait for an answer: `moor node ring older`"
    if alarms.unasked > at_most:
        return f"daemons took instances off {at_most} nodes by themselves within an hour: `moor node undeploy` does it now"
    return ""


def with_lost_instance(row: NodeRow) -> NodeRow:
    """If Ironic has deleted a node with an active instance of ours, or has both again, the row with a message to the
    instance's conductor.

    The instance and its claim stay: the node may have been deleted by mistake, or Ironic may have said so by mistake. Of a node of which
    something was heard after its deletion nothing is told before it is read.
    """
    done = row.deployed
    if done is None or row.deploy is not None or row.is_deleted == done.is_lost:
        return row
    if row.is_deleted and row.is_doubted:
        return row
    if done.is_lost and not _is_there(row, done):
        return row
    number = done.gone_or_back + 1
    answer: Answer
    if row.is_deleted:
        answer = SpawnFailed(
            cell=done.cell,
            instance=done.instance,
            attempt=done.attempt,
            host=row.id,
            reason=NODE_DELETED,
            number=number,
        )
        rebuilt = done.rebuilt
    else:
        answer = spawned(done, row, number)
        rebuilt = done.rebuilt and structs.replace(done.rebuilt, is_active=True)
    done = structs.replace(done, gone_or_back=number, rebuilt=rebuilt)
    return structs.replace(row, deployed=done, answers=(*row.answers, answer), answers_at=AT_ONCE)


def _with_words(row: NodeRow) -> NodeRow:
    """The row as due, if the conductor of its living instance is to be told what the node says now."""
    done = row.living
    if done is None or row.answers_at is not None or node_words(row) == done.told:
        return row
    return structs.replace(row, answers_at=AT_ONCE)


def node_words(row: NodeRow) -> str:
    """What the node of a living instance says beside that; empty if it says that the instance is active, and nothing else."""
    done, node = row.living, row.node
    if done is None or node is None:
        return ""
    if row.deploy is not None or row.is_deleted or row.needs_read:
        # An order, or a read, tells more soon.
        return done.told
    why = f": {node.last_error}" if node.last_error else ""
    state = f"its node says: {node.provision_state}{why}" if node.provision_state != "active" else ""
    return (row.trouble or state or _without_power(row) or against_maintenance(node))[:WORDS_MAX]


def _with_power(row: NodeRow) -> NodeRow:
    """The row as due, if keepers are to be told that its living instance has lost its power, or has it again."""
    is_told_soon = row.living is not None and (row.deploy is not None or row.needs_read)
    is_lost = bool(_without_power(row))
    if not is_told_soon and is_lost != bool(row.power_loss):
        # No other loss of this node has the number: the row is written under the next version now.
        row = structs.replace(row, power_loss=row.version + 1 if is_lost else 0)
    if row.power_loss == row.power_loss_told or row.answers_at is not None:
        return row
    return structs.replace(row, answers_at=AT_ONCE)


def _without_power(row: NodeRow) -> str:
    """How the node of a living instance has lost its power by Ironic's word; empty if it has not."""
    node = row.node
    if row.living is None or node is None or row.is_deleted:
        return ""
    if node.fault == POWER_FAILURE:
        why = f": {node.maintenance_reason}" if node.maintenance_reason else ""
        return f"its node has lost its power, or Ironic the control of it{why}"
    return "its node has lost its power: Ironic found it switched off" if row.is_found_off else ""


def power_news(row: NodeRow) -> list[NodePower]:
    """What keepers must be told of the power of this node."""
    if row.power_loss == row.power_loss_told or row.node is None:
        return []
    name = row.node.name or str(row.id)
    news: list[NodePower] = []
    if row.power_loss_told:
        news.append(NodePower(cell=row.cell, node=row.id, name=name, number=row.power_loss_told))
    if row.power_loss and row.living is not None:
        news.append(
            NodePower(
                cell=row.cell,
                node=row.id,
                name=name,
                number=row.power_loss,
                instance=row.living.instance,
                words=_without_power(row)[:WORDS_MAX],
            )
        )
    return news


def _is_there(row: NodeRow, done: Deployed) -> bool:
    """Whether the instance is on its node beyond doubt, and active."""
    node = row.node
    if node is None or row.doubts or row.is_doubted or row.missing_since_us:
        return False
    return node.instance_uuid == done.instance and provision_state(node.provision_state).deploy == "done"


def at_once_if_new(before: NodeRow, after: NodeRow) -> NodeRow:
    """The row `after`, with its deploy due at once if the node changed. The node's owner may be another daemon, which
    did not hear of this; it finds the row because it is due.
    """
    if after.deploy is None or after.node == before.node:
        return after
    return structs.replace(after, deploy=structs.replace(after.deploy, due_at=AT_ONCE))


# Applies a conductor's order to a node's row: it starts a deploy, an undeploy or a rebuild, or gives an answer at once.
#
# Orders are delivered at least once, and in any sequence. An order that was already done is answered again and not repeated.
# An ended attempt leaves a tombstone on the row, so that a deploy that arrives after its undeploy does nothing.
#
# An undeploy is always answered. It never affects the deploy of another instance, attempt or cell: if its instance is on the
# node, it waits until that has ended. It ends a rebuild of its own instance. The rebuild with the highest number counts; an older one gets no answer.


# An instance that Ironic has on the node is adopted by its row alone. A refusal leaves no `Ended`: Ironic has the instance, so a daemon
# would take it for the leftover of an attempt that is over. One that is given back leaves its attempt in `left` for the same reason.


Order = DeployInstance | UndeployInstance | RedeployInstance | AdoptDeployed | LeaveNode
Ordered = tuple[NodeRow, Answer | None]

# How many ended attempts a row stores. A late deploy of an older attempt would be executed, and its conductor would then
# undeploy it.
ENDED_MAX = 20
NO_API = "this daemon knows no REST API of Ironic (MOOR_IRONIC_URL), and cannot deploy"


def after_order(row: NodeRow, order: Order, now: datetime, *, can_deploy: bool) -> Ordered:
    """The row after this order, and the immediate answer, if any. A row of version 0 is an unknown node; an order does not
    create it.
    """
    match order:
        case DeployInstance():
            return _after_deploy(row, order, now, can_deploy=can_deploy)
        case RedeployInstance():
            return _after_redeploy(row, order, now, can_deploy=can_deploy)
        case UndeployInstance():
            return _after_undeploy(row, order, now)
        case AdoptDeployed():
            return _after_adopt(row, order, can_deploy=can_deploy)
        case LeaveNode():
            return _after_leave(row, order)


def spawned(deployed: Deployed, row: NodeRow, number: int = 0) -> InstanceSpawned:
    return InstanceSpawned(
        cell=deployed.cell,
        instance=deployed.instance,
        attempt=deployed.attempt,
        host=row.id,
        kind=NODE,
        number=number,
    )


def spawn_failed(
    order: NodeDeploy | DeployInstance | AdoptDeployed, row: NodeRow, reason: str
) -> SpawnFailed:
    return SpawnFailed(
        cell=order.cell, instance=order.instance, attempt=order.attempt, host=row.id, reason=reason
    )


def destroyed(order: NodeDeploy | UndeployInstance | LeaveNode, row: NodeRow) -> InstanceDestroyed:
    return InstanceDestroyed(cell=order.cell, instance=order.instance, attempt=order.attempt, host=row.id)


def redeployed(order: RedeployInstance, row: NodeRow, how: Rebuilt) -> InstanceRedeployed:
    return InstanceRedeployed(
        cell=order.cell,
        instance=order.instance,
        attempt=order.attempt,
        host=row.id,
        number=how.number,
        failure=how.failure,
        is_active=how.is_active,
    )


def with_end(row: NodeRow, instance: InstanceId, attempt: int, failure: str = "") -> NodeRow:
    """The row that remembers that this attempt is over (`Ended`), so that no order deploys it again.

    The same object if the row remembers this attempt of the instance, or a later one, already.
    """
    known = _end_of(row, instance)
    if known is not None and known.attempt >= attempt:
        return row
    others = tuple(each for each in row.ended if each.instance != instance)
    end = Ended(instance=instance, attempt=attempt, failure=failure)
    return structs.replace(row, ended=(*others, end)[-ENDED_MAX:])


def _after_deploy(row: NodeRow, order: DeployInstance, now: datetime, *, can_deploy: bool) -> Ordered:
    end, done = _end_of(row, order.instance), row.deployed
    if end is not None and order.attempt <= end.attempt:
        return row, spawn_failed(order, row, _why_over(end, order.attempt))
    if row.deploy is not None and _is_same(row.deploy, order):
        return row, None
    if done is not None and _is_same(done, order):
        return row, spawned(done, row)
    if reason := _why_not(row, order, can_deploy=can_deploy) or row.discord:
        # A refusal is final: by now the conductor may have tried another host.
        remembered = with_end(row, order.instance, order.attempt, reason) if row.version else row
        return remembered, spawn_failed(order, row, reason)
    return structs.replace(row, deploy=_begun("deploy", order, now)), None


def _after_adopt(row: NodeRow, order: AdoptDeployed, *, can_deploy: bool) -> Ordered:
    done, node = row.deployed, row.node
    end = _end_of(row, order.instance)
    if end is not None and order.attempt <= end.attempt:
        return row, spawn_failed(order, row, _why_over(end, order.attempt))
    if _is_left(row, order):
        return row, spawn_failed(order, row, f"attempt {order.attempt} was given back")
    if done is not None and _is_same(done, order):
        return row, None
    reason = _why_not_at_all(row, order, can_deploy=can_deploy) or _why_not_adopted(row, order)
    if reason or node is None:
        return row, spawn_failed(order, row, reason)
    adopted = Deployed(
        cell=order.cell,
        instance=order.instance,
        attempt=order.attempt,
        active_at=node.provision_updated_at,
    )
    return structs.replace(row, deployed=adopted), None


def _why_not_adopted(row: NodeRow, order: AdoptDeployed) -> str:
    """Why Ironic does not have just this instance on the node, active, by all that is known. If the node changes meanwhile, the row and
    Ironic disagree (`discord`), and nothing is done there.
    """
    node, living = row.node, row.living
    if living is not None:
        return f"instance {living.instance} lives on node {row.id} by the books"
    if row.older_than or row.missing_since_us:
        return row.trouble or f"Ironic has lost node {row.id} and others"
    if node is None or node.instance_uuid != order.instance:
        has = f"instance {node.instance_uuid}" if node and node.instance_uuid else "no instance"
        return f"Ironic has {has} on node {row.id}"
    if node.provision_state != "active":
        return f"provision state of node {row.id} is {node.provision_state!r}, and must be 'active'"
    return ""


def _after_leave(row: NodeRow, order: LeaveNode) -> Ordered:
    under_way, done = row.deploy, row.deployed
    if under_way is not None and _is_same(under_way, order):
        # It ends first; the conductor asks again.
        return row, None
    if not row.version:
        return row, destroyed(order, row)
    others = tuple(each for each in row.left if each.instance != order.instance)
    if not _is_left(row, order):
        left = Ended(instance=order.instance, attempt=order.attempt)
        row = structs.replace(row, left=(*others, left)[-ENDED_MAX:])
    if done is not None and _is_same(done, order):
        row = structs.replace(row, deployed=None)
    return row, destroyed(order, row)


def _is_left(row: NodeRow, order: Order) -> bool:
    """Was this attempt given back, or a later one of the instance?"""
    return any(each.instance == order.instance and order.attempt <= each.attempt for each in row.left)


def _after_undeploy(row: NodeRow, order: UndeployInstance, now: datetime) -> Ordered:
    if not row.version or _is_left(row, order):
        return row, destroyed(order, row)
    ended = with_end(row, order.instance, order.attempt)
    under_way = row.deploy
    if under_way is not None and _is_same(under_way, order):
        if under_way.kind == "undeploy" and not under_way.is_leftover:
            return ended, None
        given_up = structs.replace(
            under_way,
            kind="undeploy",
            is_leftover=False,
            failure="",
            before="",
            is_ordered=False,
            tries=0,
            refusals=0,
            repeats=0,
            due_at=AT_ONCE,
        )
        return structs.replace(ended, deploy=given_up), None
    if not _is_on(row, order) or (under_way is not None and under_way.instance == order.instance):
        return ended, destroyed(order, row)
    if under_way is not None:
        # It begins when the order for the other instance has ended (`with_leftover`), or with the conductor's reminder.
        return ended, None
    return structs.replace(ended, deploy=_begun("undeploy", order, now)), None


def _after_redeploy(row: NodeRow, order: RedeployInstance, now: datetime, *, can_deploy: bool) -> Ordered:
    done, under_way = row.deployed, row.deploy
    last = done.rebuilt if done is not None and _is_same(done, order) else None
    if last is not None and order.number <= last.number:
        return row, redeployed(order, row, last) if order.number == last.number else None
    if under_way is not None and isinstance(under_way.order, RedeployInstance):
        is_known = under_way.kind == "rebuild" and _is_same(under_way, order)
        if is_known and order.number <= under_way.order.number:
            return row, None
    if reason := _why_no_rebuild(row, order, can_deploy=can_deploy):
        is_active = done is not None and _is_same(done, order) and not (last and not last.is_active)
        refused = Rebuilt(number=order.number, failure=reason, is_active=is_active)
        # A refusal is final: by now the conductor has reported it.
        return with_rebuilt(row, order, refused), redeployed(order, row, refused)
    return structs.replace(row, deploy=_begun("rebuild", order, now)), None


def _begun(
    kind: Literal["deploy", "undeploy", "rebuild"],
    order: DeployInstance | UndeployInstance | RedeployInstance,
    now: datetime,
) -> NodeDeploy:
    return NodeDeploy(
        kind=kind,
        cell=order.cell,
        instance=order.instance,
        attempt=order.attempt,
        order=None if isinstance(order, UndeployInstance) else order,
        started_at=now,
        due_at=AT_ONCE,
    )


def with_rebuilt(row: NodeRow, order: RedeployInstance, how: Rebuilt) -> NodeRow:
    """The row that remembers how this rebuild ended; the same row if the order's attempt is not on the node."""
    if not _is_on(row, order):
        return row
    done = row.deployed
    if done is None or not _is_same(done, order):
        done = Deployed(cell=order.cell, instance=order.instance, attempt=order.attempt)
    return structs.replace(row, deployed=structs.replace(done, rebuilt=how))


def _why_no_rebuild(row: NodeRow, order: RedeployInstance, *, can_deploy: bool) -> str:
    """Why the order to rebuild cannot be done, so that the node's owner need not try; empty if it may."""
    node, under_way, end = row.node, row.deploy, _end_of(row, order.instance)
    if not row.version or node is None:
        return f"node {row.id} is not known here"
    if end is not None and order.attempt <= end.attempt:
        return _why_over(end, order.attempt)
    if not _is_on(row, order):
        return f"attempt {order.attempt} of the instance is not on node {row.id}"
    if not can_deploy:
        return NO_API
    if under_way is not None and under_way.kind != "rebuild":
        return f"{under_way.kind} of instance {under_way.instance} is under way on node {row.id}"
    return ""


def _is_on(row: NodeRow, order: UndeployInstance | RedeployInstance) -> bool:
    """May the order's attempt be on the node? Yes if a daemon deployed it there. Yes also if Ironic names its instance
    on the node, and the row does not say by which attempt the instance came.
    """
    done, node = row.deployed, row.node
    if done is not None and done.instance == order.instance:
        return _is_same(done, order)
    if row.living is not None:
        # It came after the order's attempt was off the node, whatever a restored Ironic says.
        return False
    return node is not None and node.instance_uuid == order.instance and row.cell == order.cell


def _is_same(known: NodeDeploy | Deployed, order: Order) -> bool:
    return (known.instance, known.attempt, known.cell) == (order.instance, order.attempt, order.cell)


def _end_of(row: NodeRow, instance: InstanceId) -> Ended | None:
    return next((each for each in row.ended if each.instance == instance), None)


def _why_over(end: Ended, attempt: int) -> str:
    if attempt < end.attempt:
        return f"attempt {end.attempt} of the instance is over here, and this is attempt {attempt}"
    return end.failure or f"attempt {attempt} was undeployed"


def _why_not(row: NodeRow, order: DeployInstance, *, can_deploy: bool) -> str:
    """Why the deploy is refused; empty if the owner may try. If the node's state is in doubt, the owner reads it first."""
    node = row.node
    if (reason := _why_not_at_all(row, order, can_deploy=can_deploy)) or node is None:
        return reason
    if row.doubts or row.is_doubted or node.instance_uuid == order.instance:
        return ""
    return "; ".join(reasons_against(node))


def _why_not_at_all(  # noqa: PLR0911 - one for each reason
    row: NodeRow, order: DeployInstance | AdoptDeployed, *, can_deploy: bool
) -> str:
    """Why nothing new can be begun on the node, whatever Ironic has there; empty if it can."""
    under_way = row.deploy
    if not row.version or row.node is None:
        return f"node {row.id} is not known here"
    if row.is_deleted:
        return f"node {row.id} is deleted in Ironic"
    if row.is_foreign:
        return f"something else keeps the provider of node {row.id}: {row.report_note}"
    if row.cell != order.cell:
        return f"node {row.id} is in cell {row.cell!r}, not in {order.cell!r}"
    if not can_deploy:
        return NO_API
    if under_way is not None:
        return f"{under_way.kind} of instance {under_way.instance} is under way on node {row.id}"
    return ""
