"""Decides which update of a node counts, and when the node must be read again.

An update is a notification or an answer of Ironic's REST API. Each function takes the row and returns the row after the
update, or the same object if nothing changes. None changes the row's `version`: the caller does this when it writes.

Notifications are ordered by their publisher's timestamp. Two publishers have two clocks, so notifications of both that are
closer than the skew have no order. Then the node is read again. If either notification says that the node is not
available, the node is kept reserved until then: a short wait is better than an instance on a node in use.

If nothing can be read (`can_read` is false), the newest notification counts, and there are no doubts.
"""

from collections.abc import Sequence

from msgspec import Struct, structs

from ironic_sync.core.node import POWER_OFF, Node
from ironic_sync.core.notifications import (
    AllocationNotified,
    NodeDoubted,
    NodeNotified,
    Notification,
    UnreadableNotification,
)
from ironic_sync.core.offers import is_available
from ironic_sync.core.rows import NodeRow
from kit.clock import SECOND_US

# A publisher's clock that is farther ahead than this is wrong, or the daemon's is behind. Its notifications count as if they were
# sent now, so that a timestamp of next year does not outdo all that is said until then. Where the node can be read, a
# clock that is ahead by more than the skew shows already: then notifications have no order, and the node is read again.
AHEAD_US_MAX = 60_000_000
# Reasons to read a node again are listed up to here. One is enough to read it.
DOUBTS_MAX = 10

FIRST_NOTIFICATION = "its first notification: Ironic sends no shard"
TRAITS_CHANGED = "its traits changed: Ironic announces them before it writes them"
ALLOCATION_CHANGED = "an allocation changed: Ironic sends no notification of the node"
NOTIFICATION_UNREADABLE = "a notification of it could not be read"
OLDER_THAN_READ = "a notification may be older than what was read"
NOT_LISTED = "Ironic's list of nodes has it no more"
DELETED_SPEAKS = "a notification came after its deletion"
# What Ironic's event is called that a node's power is not as it was ordered.
CORRECTED = "power_state_corrected"
AHEAD = "a notification has a time that is yet to come: its publisher's clock or this daemon's is wrong"


class OrderingRules(Struct, frozen=True, kw_only=True):
    """How updates are ordered, and whether Ironic can be read. `now_us` is the daemon's clock, 0 where it does not matter."""

    skew_us: int
    can_read: bool
    now_us: int = 0


def after_notification(row: NodeRow, notification: Notification, rules: OrderingRules) -> NodeRow:
    """The row after a notification."""
    match notification:
        case NodeNotified():
            return _after_node(row, notification, rules)
        case NodeDoubted():
            return _doubted(row, rules, notification.doubt)
        case AllocationNotified():
            keeps_node = notification.node is not None and notification.kind != "delete"
            return _doubted(row, rules, ALLOCATION_CHANGED, held=keeps_node)
        case UnreadableNotification() if 0 < notification.at_us <= row.heard_at_us:
            return row
        case UnreadableNotification():
            return _doubted(row, rules, NOTIFICATION_UNREADABLE, held=True)


def read_again(row: NodeRow, node: Node, version_before: int, at_us: int) -> NodeRow | None:
    """The row after a REST answer; None if the row was written since `version_before`: then the node is read again.

    `at_us` is a time of the daemon's clock, not later than the answer. The deployer takes the time of its question: a change that
    happens while the answer is on its way is newer. The answer settles every doubt. A notification time in the future, which
    comes from a wrong clock, is replaced by `at_us`.
    """
    if row.version != version_before:
        return None
    settled = structs.replace(
        _without_future(row, at_us),
        node=node,
        is_found_off=_is_found_off(row, node),
        is_deleted=False,
        doubts=(),
        is_doubted=False,
        missing_since_us=0,
    )
    # A sweep that finds nothing new writes nothing.
    if settled == row and row.read_at_us:
        return row
    return structs.replace(settled, read_at_us=at_us)


def read_as_gone(row: NodeRow, version_before: int, at_us: int) -> NodeRow | None:
    """The row after REST answered 404 for this very node: it counts as deleted, and keeps its last known state; if the books
    give it to an instance, it is held. None if the row was written since `version_before`.
    """
    if row.version != version_before:
        return None
    if row.deployed and not row.is_deleted:
        return held_missing(row, version_before, at_us)
    if row.is_deleted and not row.doubts and not row.is_doubted:
        return row
    return structs.replace(
        _without_future(row, at_us),
        is_deleted=True,
        doubts=(),
        is_doubted=False,
        missing_since_us=0,
        read_at_us=at_us,
    )


def held_missing(row: NodeRow, version_before: int, at_us: int) -> NodeRow | None:
    """The row after Ironic was found to have lost this node, together with many others or with an instance: the node is kept reserved.

    It counts as deleted only later, or when an operator says so. None if the row was written since `version_before`.
    """
    if row.version != version_before:
        return None
    is_known = 0 < row.missing_since_us <= at_us and not row.doubts and not row.is_doubted
    if row.is_deleted or is_known:
        return row
    # Not from a clock that was ahead: it would stay held for as much longer.
    since_us = min(row.missing_since_us or at_us, at_us)
    return structs.replace(row, doubts=(), is_doubted=False, missing_since_us=since_us, read_at_us=at_us)


def believed_missing(row: NodeRow) -> NodeRow:
    """The row after an operator said that Ironic has indeed lost the node."""
    if not row.missing_since_us:
        return row
    return structs.replace(row, is_deleted=True, missing_since_us=0)


def not_listed(row: NodeRow) -> NodeRow:
    """The row after Ironic's list of all nodes lacked its node. The node is kept reserved until a read of it alone
    settles that.
    """
    if row.is_deleted:
        return row
    return _doubted(row, OrderingRules(skew_us=0, can_read=True), NOT_LISTED, held=True)


def _after_node(row: NodeRow, notified: NodeNotified, rules: OrderingRules) -> NodeRow:
    is_unordered = rules.can_read and _is_unordered(row, notified, rules.skew_us)
    if notified.at_us <= row.heard_at_us:
        return _doubted_for_order(row, row, notified, rules) if is_unordered else row
    if (
        rules.can_read
        and row.node is not None
        and (notified.at_us <= row.read_at_us or _tells_of_before(row, notified))
    ):
        return _after_late_node(row, notified, rules)
    after = structs.replace(
        row,
        node=_with_shard(notified.node, _known_node(row, notified)),
        is_deleted=notified.is_deleted,
        is_found_off=_is_found_off(row, notified.node, notified.kind),
        heard_at_us=_heard_at(notified, rules),
        heard_from=notified.publisher,
        # A node with a newer notification exists.
        missing_since_us=0 if notified.at_us > row.missing_since_us else row.missing_since_us,
    )
    if not rules.can_read:
        return after
    for doubt in _doubts_of(row, notified):
        after = _doubted(after, rules, doubt)
    if _is_older_than_read(row, notified, rules.skew_us):
        after = _doubted(after, rules, OLDER_THAN_READ, held=True)
    if after.heard_at_us < notified.at_us:
        after = _doubted(after, rules, AHEAD, held=not _are_free(notified, row))
    if row.is_deleted and not notified.is_deleted and notified.kind != "create":
        after = _doubted(structs.replace(after, is_deleted=True), rules, DELETED_SPEAKS, held=True)
    return _doubted_for_order(after, row, notified, rules) if is_unordered else after


def _is_found_off(row: NodeRow, node: Node, kind: str = "") -> bool:
    """Did Ironic find this node switched off by itself, and has it been off since?"""
    return node.power_state == POWER_OFF and (kind == CORRECTED or row.is_found_off)


def _tells_of_before(row: NodeRow, notified: NodeNotified) -> bool:
    """Whether the node was in another state since. That Ironic was restored from a backup is only believed of what is read."""
    at, known = notified.node.provision_updated_at, row.node.provision_updated_at if row.node else None
    return not row.is_deleted and known is not None and (at is None or at < known)


def _after_late_node(row: NodeRow, notified: NodeNotified, rules: OrderingRules) -> NodeRow:
    """The row after a notification that was sent before the node was last read, or tells of a state before the known one. The
    known state stays. If the notification differs from it, the node is read again, since the publisher's clock and the daemon's may
    differ.
    """
    after = structs.replace(row, heard_at_us=_heard_at(notified, rules), heard_from=notified.publisher)
    if row.node is not None and row.node.power_state == notified.node.power_state:
        after = structs.replace(after, is_found_off=_is_found_off(row, row.node, notified.kind))
    if notified.is_deleted and row.missing_since_us:
        # That Ironic had lost it was read before this was heard.
        return believed_missing(after)
    if row.is_deleted == notified.is_deleted and _with_shard(notified.node, row.node) == row.node:
        return after
    return _doubted(after, rules, OLDER_THAN_READ, held=not _are_free(notified, row))


def _doubts_of(row: NodeRow, notified: NodeNotified) -> list[str]:
    """The reasons to read the node from Ironic although this notification was applied; empty if there are none."""
    doubts = [notified.doubt] if notified.doubt else []
    known = _known_node(row, notified)
    if known is None:
        return doubts if notified.is_deleted else [*doubts, FIRST_NOTIFICATION]
    if notified.kind == "update" and sorted(notified.node.traits) != sorted(known.traits):
        doubts.append(TRAITS_CHANGED)
    return doubts


def _known_node(row: NodeRow, notified: NodeNotified) -> Node | None:
    """The node as it was known before. A new node under the id of a deleted one was not known."""
    return None if row.is_deleted and notified.kind == "create" else row.node


def _is_unordered(row: NodeRow, notified: NodeNotified, skew_us: int) -> bool:
    """Whether this notification and the last one on the row have no order: they come from two publishers, their times
    are closer than the skew, and their contents differ.
    """
    if row.node is None or row.heard_from in ("", notified.publisher):
        return False
    if abs(notified.at_us - row.heard_at_us) >= skew_us:
        return False
    return row.is_deleted != notified.is_deleted or _with_shard(notified.node, row.node) != row.node


def _is_older_than_read(row: NodeRow, notified: NodeNotified, skew_us: int) -> bool:
    """Whether the notification frees a node that REST showed as unavailable, and may have been sent before that answer."""
    return (
        row.node is not None
        and row.heard_at_us <= row.read_at_us
        and notified.at_us <= row.read_at_us + skew_us
        and _is_free(notified.node, is_deleted=notified.is_deleted)
        and not _is_free(row.node, is_deleted=row.is_deleted)
    )


def _doubted_for_order(
    after: NodeRow, before: NodeRow, notified: NodeNotified, rules: OrderingRules
) -> NodeRow:
    """Put the row `after` in doubt: nobody can say whether `notified` or the last notification of `before` is the later
    one.
    """
    both = " and ".join(sorted((before.heard_from, notified.publisher)))
    doubt = f"notifications of {both} are nearer than {rules.skew_us // 1_000} ms"
    return _doubted(after, rules, doubt, held=not _are_free(notified, before))


def _doubted(row: NodeRow, rules: OrderingRules, doubt: str, *, held: bool = False) -> NodeRow:
    """The row with one more reason to read the node again; the same row if it has that reason already."""
    if not rules.can_read:
        return row
    is_listed = doubt in row.doubts or len(row.doubts) >= DOUBTS_MAX
    if is_listed and row.is_doubted >= held:
        return row
    doubts = row.doubts if is_listed else (*row.doubts, doubt)
    return structs.replace(row, doubts=doubts, is_doubted=row.is_doubted or held)


def _are_free(notified: NodeNotified, row: NodeRow) -> bool:
    """Whether the node may be claimed both as this notification describes it and as the row had it before."""
    return _is_free(notified.node, is_deleted=notified.is_deleted) and _is_free(
        row.node, is_deleted=row.is_deleted
    )


def _is_free(node: Node | None, *, is_deleted: bool) -> bool:
    return node is not None and not is_deleted and is_available(node)


def _with_shard(node: Node, before: Node | None) -> Node:
    """The node with the shard that was read before: a notification has no shard."""
    if node.shard is not None or before is None or before.shard is None:
        return node
    return structs.replace(node, shard=before.shard)


def _heard_at(notified: NodeNotified, rules: OrderingRules) -> int:
    ahead_us = rules.skew_us if rules.can_read else AHEAD_US_MAX
    return rules.now_us if rules.now_us and notified.at_us > rules.now_us + ahead_us else notified.at_us


def _without_future(row: NodeRow, at_us: int) -> NodeRow:
    """The row without the time of a notification that lies in the future: all later notifications would count as older."""
    if row.heard_at_us <= at_us + AHEAD_US_MAX:
        return row
    return structs.replace(row, heard_at_us=at_us, heard_from="")


# Decides whether nodes that Ironic no longer lists count as deleted.
#
# If they are few, they do. Many at once may mean that another Ironic answers, or that the daemon's user now sees fewer
# nodes. Then they are kept reserved. They count as deleted when they stay missing for long, or when an operator
# confirms it. A node that the books give to an instance is kept until Ironic's notification, or an operator, says that it was deleted.


class Belief(Struct, frozen=True, kw_only=True):
    """How many nodes may vanish at once, as a number and as a share, and after which time all that are missing count as deleted."""

    few: int = 5
    share: float = 0.2
    # Long enough to mend Ironic.
    after_s: float = 3600.0

    @property
    def after_us(self) -> int:
        return round(self.after_s * SECOND_US)


def decide_missing(
    rows: Sequence[NodeRow], *, known: int, lost_lately: int, at_us: int, belief: Belief
) -> tuple[Sequence[NodeRow], Sequence[NodeRow]]:
    """Of the missing nodes `rows`: those that count as deleted, and those that are kept reserved. `known` is the number of
    all known nodes. `lost_lately` is the number that recently counted as deleted: it prevents that many nodes vanish a few at
    a time.
    """
    fresh = [row for row in rows if not _is_ripe(row, at_us, belief)]
    lost = len(fresh) + lost_lately
    are_many = lost > belief.few and lost > belief.share * known
    are_held = [bool(row.deployed) or (are_many and not _is_ripe(row, at_us, belief)) for row in rows]
    decided = [*zip(rows, are_held, strict=True)]
    return [row for row, is_held in decided if not is_held], [row for row, is_held in decided if is_held]


def _is_ripe(row: NodeRow, at_us: int, belief: Belief) -> bool:
    return 0 < row.missing_since_us <= at_us - belief.after_us
