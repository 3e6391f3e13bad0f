"""Derives from a node's known state its cell and its offer, and what it means for instances on the node."""

from collections.abc import Set as AbstractSet

from msgspec import Struct, structs

from bus.messages.cell import SpawnFailed
from engine.flavors import InstanceId
from ironic_sync.core.node import provision_state
from ironic_sync.core.offers import CellMap, CellPlan, decide_cell, offer_of
from ironic_sync.core.orders import spawned, with_end
from ironic_sync.core.rows import AT_ONCE, Answer, Deployed, NodeDeploy, NodeRow

NODE_DELETED = "its bare-metal node does not exist any more: it was deleted in Ironic"


class NodePolicy(Struct, frozen=True, kw_only=True):
    """What an operator configured, and what does not change while the process runs.

    `standard_traits` are the names of os_traits. `can_read` says whether Ironic's REST API can be asked.
    """

    cells: CellMap
    standard_traits: AbstractSet[str]
    can_read: bool


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
        row = with_lost_instance(with_leftover(row))
    # A node that moves is reserved, so the offer is derived after the cell.
    offer = offer_of(row, policy.standard_traits)
    return row if offer == row.offer else structs.replace(row, offer=offer)


def after_change(before: NodeRow, changed: NodeRow, policy: NodePolicy) -> NodeRow:
    """The row to be written in place of `before`.

    If its content for placement changes, nothing counts as reported any more. This also holds if the content is again what
    placement once accepted: meanwhile placement may have accepted another report whose answer was lost.

    A node that placement removed stays removed while it counts as deleted, whatever is heard of it: a read decides first.
    """
    after = settled(changed, policy)
    if _content(before) == _content(after) or (before.is_removed and after.is_deleted):
        return after
    return structs.replace(after, reported=None, is_removed=False, content_version=before.version + 1)


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
    if (
        not row.ended
        or row.deploy is not None
        or node is None
        or node.instance_uuid is None
        or row.is_deleted
    ):
        return row
    end = next((each for each in row.ended if each.instance == node.instance_uuid), None)
    if end is None:
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
    return with_leftover(with_end(row, instance, attempt))


def with_lost_instance(row: NodeRow) -> NodeRow:
    """If Ironic has deleted a node with an active instance of ours, or has both again, the row with a message to the
    instance's conductor.

    The instance and its claim stay: the node may have been deleted by mistake, or Ironic may have said so by mistake.
    """
    done = row.deployed
    if done is None or row.deploy is not None or row.is_deleted == done.is_lost:
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
