"""May a consumer have this share?

The cells are judged first: an order for one cell learns nothing about a provider of another cell. Then the shapes: if a
tree has changed since the sender read it, the amounts may be wrong, and are not judged. Then all amounts are judged.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from bus.message import ConsumerId, ProviderId
from bus.messages.placement import (
    SHARE_CELL,
    ClaimResources,
    DoesNotFit,
    GroupRefused,
    HostFull,
    NotAllowed,
    ResourceAmount,
    Share,
    Shortfall,
    SwapClaim,
)
from placement_worker.core.capacity import UsageDraft, shortfall_of
from placement_worker.core.drafts.ledger_draft import Amounts, LedgerDraft, amounts_in
from placement_worker.core.ledger import Consumer


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
    beside: AbstractSet[ConsumerId] = frozenset(),
) -> Amounts | ShareRefused | GroupRefused:
    """Judge the share of a claim or swap (`judge_share`), then the policy of its server group.

    The consumers in `leaving` give up their hosts, and `held` is the sum of the amounts that they give up. The consumers in
    `beside` leave their hosts, too: they are members of the server group only on the host of this share.

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
    against = draft.groups.judge(group, host, [one.id for one in leaving], beside)
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
