"""May a consumer have this share?

The cells are judged first: an order for one cell learns nothing about a provider of another cell. Then the shapes: if a
tree has changed since the sender read it, the amounts may be wrong, and are not judged. Then all amounts are judged.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from bus.messages.placement import NO_OWNER, ClaimResources, ReleaseClaim, SwapClaim
from engine.capacity import UsageDraft, shortfall_of
from engine.inventories import SHARE_CELL, ProviderId, ResourceAmount, Share
from engine.refusals import DoesNotFit, GroupRefused, HostFull, NotAllowed, Released, Shortfall
from placement_worker.core.drafts import Amounts, LedgerDraft, amounts_in
from placement_worker.core.ledger import Consumer, Ledger, SentOrder


class MovedRoots(Struct, frozen=True):
    """The refusal of a claim whose sender saw older trees. It names only roots: the handler reads their trees and answers
    `ShapeMoved`. `gone` are providers that do not exist any more.
    """

    roots: tuple[ProviderId, ...] = ()
    gone: tuple[ProviderId, ...] = ()


ShareRefused = DoesNotFit | MovedRoots | NotAllowed


def judge_place(
    draft: LedgerDraft,
    order: ClaimResources | SwapClaim,
    held: Amounts,
    leaving: Sequence[Consumer] = (),
    *,
    joins: str | None,
    by_cell: bool,
) -> Amounts | ShareRefused | GroupRefused:
    """Judge the share of a claim or swap (`judge_share`), then the policy of its server group.

    The consumers in `leaving` give up their hosts, and `held` is the sum of the amounts that they give up. Members of
    an affinity group on the hosts that the order names in `leaves` do not count.

    `joins` is the project of a consumer that would join the server group, None if it is a member already. `by_cell`: a cell's
    sender gives the order. If all agree, the group's row says so.
    """
    host = order.share.host
    # The usual claim leaves no place, and asks nothing.
    has_place = bool(leaving) and any(lives_on(one, host) for one in leaving)
    wanted = judge_share(draft, order.cell, order.share, held, has_place=has_place)
    group = order.group
    if group is None or not isinstance(wanted, dict):
        return wanted
    if joins is not None and (foreign := draft.groups.judge_joining(group, joins, by_cell=by_cell)):
        return foreign
    leaves = order.leaves if isinstance(order, SwapClaim) else ()
    against = draft.groups.judge(group, host, [one.id for one in leaving], leaves)
    if against is not None:
        return against
    if joins is not None:
        draft.groups.joined_by(group, joins, by_cell=by_cell)
    return wanted


def lives_on(consumer: Consumer, host: ProviderId) -> bool:
    return consumer.host is not None and consumer.host.int == host.int


def judge_share(
    draft: LedgerDraft, cell: str, share: Share, held: Amounts, *, has_place: bool = False
) -> Amounts | ShareRefused:
    """The amounts that the share takes from each provider, if the consumer may have all of it; otherwise the refusal.

    `held` are the amounts that consumers give back in the same step. `has_place`: the share's host already counts a
    consumer that gives up its place for this one, so a limit on the number of consumers does not matter.
    """
    host = draft.usage(share.host)
    if host and host.row.cell not in ("", cell):
        return _foreign(host, cell)
    gone: list[ProviderId] = [] if host else [share.host]
    wanted = _wanted(draft, cell, share, gone)
    if not isinstance(wanted, dict):
        return wanted
    moved = _moved(draft, cell, share, gone)
    if not isinstance(moved, list):
        return moved
    if share.shapes:
        moved += _unseen(share, wanted)
    if moved or gone:
        return MovedRoots(tuple(dict.fromkeys(moved)), tuple(dict.fromkeys(gone)))
    if host and (misplaced := _misplaced(host, wanted)):
        return misplaced
    short = _shortfalls(wanted, held)
    full = _full(host, share, has_place=has_place) if host and share.instances_max else None
    return DoesNotFit(shortfalls=_as_asked(short, share), full=full) if short or full else wanted


def merged_amounts(share: Share, wanted: Amounts) -> tuple[ResourceAmount, ...]:
    """A share's amounts as they are stored: if it names a class of a provider several times, their sum is one amount."""
    if sum(map(len, wanted.values())) == len(share.amounts):
        return share.amounts
    return amounts_in(wanted)


def _wanted(draft: LedgerDraft, cell: str, share: Share, gone: list[ProviderId]) -> Amounts | NotAllowed:
    wanted: Amounts = {}
    of_provider: dict[str, int] = {}
    last = -1
    for amount in share.amounts:
        # Amounts of one provider usually come one after another.
        if amount.provider.int != last:
            last = amount.provider.int
            usage = draft.usage(amount.provider)
            if usage is None:
                gone.append(amount.provider)
                of_provider = {}
                continue
            if usage.row.cell not in ("", cell):
                return _foreign(usage, cell)
            of_provider = wanted.setdefault(usage, {})
        resource = amount.resource
        of_provider[resource] = of_provider.get(resource, 0) + amount.amount
    return wanted


def _moved(
    draft: LedgerDraft, cell: str, share: Share, gone: list[ProviderId]
) -> list[ProviderId] | NotAllowed:
    moved: list[ProviderId] = []
    for seen in share.shapes:
        usage = draft.usage(seen.root)
        if usage is None:
            gone.append(seen.root)
        elif usage.row.cell not in ("", cell):
            return _foreign(usage, cell)
        elif usage.row.shape != seen.shape:
            # If a root became a part of another tree, the caller must see that tree.
            moved.append(usage.row.root)
    return moved


def _unseen(share: Share, wanted: Amounts) -> list[ProviderId]:
    """Roots of trees that the share takes from although its `shapes` do not name them: a provider has changed its tree since
    the sender read it.
    """
    if len(share.shapes) == 1:
        # The usual case; to build a set of one costs more than to compare.
        seen_root = share.shapes[0].root.int
        return [usage.row.root for usage in wanted if usage.row.root.int != seen_root]
    seen = {each.root.int for each in share.shapes}
    return [usage.row.root for usage in wanted if usage.row.root.int not in seen]


def _misplaced(host: UsageDraft, wanted: Amounts) -> NotAllowed | None:
    """The refusal of a share whose host is no root, or that takes nothing from its host's tree; None otherwise. A consumer
    without an amount in the tree would not keep the host from being removed.
    """
    root = host.row.root.int
    if root != host.row.id.int:
        return NotAllowed(
            field="share.host",
            reason=f"provider {host.row.id} is not a root: it is in the tree of {host.row.root}",
        )
    for usage in wanted:
        if usage.row.root.int == root:
            return None
    return NotAllowed(
        field="share.amounts", reason=f"the share takes nothing from the tree of its host, {host.row.id}"
    )


def _full(host: UsageDraft, share: Share, *, has_place: bool) -> HostFull | None:
    """The refusal if the host already counts as many consumers as the share allows (`instances_max`), or more; None
    otherwise. A consumer that already lives there may stay (`has_place`).
    """
    if host.consumers < share.instances_max or has_place:
        return None
    return HostFull(host=share.host, instances=host.consumers, instances_max=share.instances_max)


def _shortfalls(wanted: Amounts, held: Amounts) -> list[Shortfall]:
    """Why some of the wanted amounts cannot be given. An amount that the consumer already holds is not judged again: an
    instance can leave its host although a pool from which it keeps an amount has shrunk.
    """
    short: list[Shortfall] = []
    for usage, of_provider in wanted.items():
        given_back = held.get(usage, {})
        for resource, asked in of_provider.items():
            held_of_it = given_back.get(resource, 0)
            if asked != held_of_it and (shortfall := shortfall_of(usage, resource, asked, held_of_it)):
                short.append(shortfall)
    return short


def _as_asked(short: Sequence[Shortfall], share: Share) -> tuple[Shortfall, ...]:
    """Sort the shortfalls by the order in which the share first names their providers and classes."""
    places = list(dict.fromkeys((amount.provider, amount.resource) for amount in share.amounts))
    return tuple(sorted(short, key=lambda each: places.index((each.provider, each.resource))))


def _foreign(usage: UsageDraft, cell: str) -> NotAllowed:
    reason = f"provider {usage.row.id} is of cell {usage.row.cell!r}, not of {cell!r}"
    return NotAllowed(field=SHARE_CELL, reason=reason)


# Whose is a consumer? Only its owner claims more for it, swaps it or releases it.
#
# A consumer's type and project are fixed by the claim that makes it. Its owner is the cell of that claim (`Consumer.cell`): the
# API level hands the consumer over to that cell. Only the API level gives a consumer whose claim has ended to another cell, by
# a new claim of the same type and project. What is compared:
#
#     sender       a claim                     a swap                        a release
#     a cell       its cell, type, project     its cell; heir and returned   its cell
#                                              consumer: cell, project
#     API level    type, project               has no right to it            type (always INSTANCE), project
#
# A consumer that was made over HTTP, and never claimed, belongs to the cell of its providers. If its program named no project
# either, its owner is unknown, and any project's claim or release counts for it.
#
# A release may come before its claim, and leaves a row then: a tombstone. No claim has made that row, so it has no owner
# either. It binds only messages of its own sender: of the same cell, or of the API level for the same project. To all others
# the id is unknown. Each owner has a bound on such rows (`room_for_tombstones`). Beyond it a release leaves none: a claim that comes after its
# release is granted then, and an audit finds it.
#
# What Nova's instances and migrations hold belongs to the owner `nova` (bus/topology/values.py), by which no cell is called. Nova also writes
# allocations over HTTP, by name: these have no cell on Nova's own providers. So this owner may also act on an instance without a cell.
#
# A refusal does not say whose a consumer is. The API level's release of another's consumer is answered as if the consumer held
# nothing: a client may name any id, and would fill the queue of dead letters.


# API-level callers release claims that were never placed under this cell name, whichever cell was meant. No cell has this
# name, so no cell can act for another one by it.
NO_CELL = "cell0"
# The highest step from the last attempt of a consumer to the next one. Attempts grow one by one, and a row near the end of
# the number's range could not be written any more.
ATTEMPT_AHEAD_MAX = 1_000_000
# The only type of consumer that the API level claims and releases.
INSTANCE = "INSTANCE"

# Of a tombstone: a cell; or the API level, for a project.
Owner = tuple[str, str]


def wrong_cell(reason: str) -> NotAllowed:
    return NotAllowed(field="cell", reason=reason)


def taken(field: str, consumer: object) -> NotAllowed:
    return NotAllowed(field=field, reason=f"the id {consumer} is taken")


def is_tombstone(row: Consumer) -> bool:
    """Was this row made by a release, before any claim?"""
    return row.ended_at is not None and not row.generation


def owner_of(release: ReleaseClaim) -> Owner:
    """Who owns the tombstone that this release may leave."""
    return release.cell, release.project or NO_OWNER


def owners_of_tombstones(ledger: Ledger, releases: Sequence[ReleaseClaim]) -> tuple[Owner, ...]:
    """The owners of the tombstones that these releases may leave."""
    may_leave = [
        owner_of(release)
        for release in releases
        if _may_leave(release, ledger.consumers[release.consumer.int])
    ]
    return tuple(dict.fromkeys(may_leave))


def _may_leave(release: ReleaseClaim, row: Consumer) -> bool:
    is_known = row.attempt and not (is_tombstone(row) and (row.cell, row.project) != owner_of(release))
    return not (is_known or release.leaves_group)


def room_for_tombstones(counted: Mapping[Owner, int], tombstones_max: int) -> dict[Owner, int]:
    """How many tombstones each of these owners may still leave."""
    return {owner: max(0, tombstones_max - count) for owner, count in counted.items()}


def binds(row: Consumer, sent: SentOrder) -> bool:
    """Does this row count for the order? A tombstone counts only for orders of the owner whose release left it."""
    if not is_tombstone(row):
        return True
    order = sent.order
    if row.cell != NO_CELL:
        return row.cell == order.cell
    if sent.speaks_for is not None or not isinstance(order, ClaimResources | ReleaseClaim):
        return False
    return row.project == (order.project or NO_OWNER)


def judge_owner(row: Consumer, sent: SentOrder) -> NotAllowed | Released | None:
    """Why the sender may not give this order about a consumer that has a row; None if it may."""
    order = sent.order
    if is_tombstone(row):
        is_cells = order.cell != NO_CELL and not isinstance(order, ClaimResources)
        return _of_other_cell(sent) if is_cells and not binds(row, sent) else None
    match order:
        case ClaimResources():
            if sent.speaks_for is not None and row.cell != order.cell:
                return _of_other_cell(sent)
            return None if _is_of_claim(row, order) else taken("consumer", row.id)
        case ReleaseClaim() if order.cell == NO_CELL:
            return None if _may_api_release(row, order) else Released(freed=False)
        case _:
            is_own = row.cell == order.cell or (row.cell == NO_CELL and sent.speaks_for is None)
            return None if is_own else _of_other_cell(sent)


def is_of_same_owner(row: Consumer, instance: Consumer) -> bool:
    """Does this row belong to the cell and the project of the instance?"""
    return (row.cell, row.project) == (instance.cell, instance.project)


def _is_of_claim(row: Consumer, claim: ClaimResources) -> bool:
    return row.type == claim.consumer_type and _is_of_project(row, claim.project)


def _may_api_release(row: Consumer, order: ReleaseClaim) -> bool:
    return row.type == INSTANCE and _is_of_project(row, order.project or "")


def _is_of_project(row: Consumer, project: str) -> bool:
    was_claimed = bool(row.attempt)
    return row.project == (project or NO_OWNER) or (row.project == NO_OWNER and not was_claimed)


def _of_other_cell(sent: SentOrder) -> NotAllowed:
    return wrong_cell(f"consumer {sent.order.consumer} is not of cell {sent.order.cell!r}")
