"""Is this share to be had? Rights first, since a tree is shown only to who may use it; then whether the asker saw what
is there, since only to who did do the numbers mean anything; then the numbers, all of them.
"""

from collections.abc import Sequence

from msgspec import Struct

from bus.message import ProviderId
from bus.messages.placement import (
    SHARE_CELL,
    DoesNotFit,
    HostFull,
    NotAllowed,
    ResourceAmount,
    Share,
    Shortfall,
)
from placement_worker.core.accounts import Account, shortfall_of
from placement_worker.core.draft import Amounts, Draft, amounts_in


class MovedRoots(Struct, frozen=True):
    """Trees are not what the asker saw. Told as roots: whoever answers reads the trees, and says `ShapeMoved`."""

    roots: tuple[ProviderId, ...] = ()
    gone: tuple[ProviderId, ...] = ()


ShareRefused = DoesNotFit | MovedRoots | NotAllowed


def weigh(
    draft: Draft, cell: str, share: Share, held: Amounts, leaves: ProviderId | None = None
) -> Amounts | ShareRefused:
    """What a share takes from each stock, if all of it may be had by someone who gives back `held`, and its place on the
    host that it `leaves`.
    """
    host = draft.account(share.host)
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
    full = _full(host, share, leaves) if host and share.instances_max else None
    return DoesNotFit(shortfalls=_as_asked(short, share), full=full) if short or full else wanted


def as_held(share: Share, wanted: Amounts) -> tuple[ResourceAmount, ...]:
    """A share may name one class of one provider several times; it is held as one amount."""
    if sum(map(len, wanted.values())) == len(share.amounts):
        return share.amounts
    return amounts_in(wanted)


def wrong_cell(reason: str) -> NotAllowed:
    return NotAllowed(field="cell", reason=reason)


def _wanted(draft: Draft, cell: str, share: Share, gone: list[ProviderId]) -> Amounts | NotAllowed:
    wanted: Amounts = {}
    of_provider: dict[str, int] = {}
    last = -1
    for amount in share.amounts:
        # Amounts of one provider usually stand together.
        if amount.provider.int != last:
            last = amount.provider.int
            account = draft.account(amount.provider)
            if account is None:
                gone.append(amount.provider)
                of_provider = {}
                continue
            if account.row.cell not in ("", cell):
                return _foreign(account, cell)
            of_provider = wanted.setdefault(account, {})
        resource = amount.resource
        of_provider[resource] = of_provider.get(resource, 0) + amount.amount
    return wanted


def _moved(draft: Draft, cell: str, share: Share, gone: list[ProviderId]) -> list[ProviderId] | NotAllowed:
    moved: list[ProviderId] = []
    for seen in share.shapes:
        account = draft.account(seen.root)
        if account is None:
            gone.append(seen.root)
        elif account.row.cell not in ("", cell):
            return _foreign(account, cell)
        elif account.row.shape != seen.shape:
            # Of a root that became a part of another tree, that tree is what the asker must see.
            moved.append(account.row.root)
    return moved


def _unseen(share: Share, wanted: Amounts) -> list[ProviderId]:
    """Roots of trees that the share takes from and the asker did not name: it took a provider for a part of another tree."""
    if len(share.shapes) == 1:
        # As nearly all: a set of one costs more than to compare.
        seen_root = share.shapes[0].root.int
        return [account.row.root for account in wanted if account.row.root.int != seen_root]
    seen = {each.root.int for each in share.shapes}
    return [account.row.root for account in wanted if account.row.root.int not in seen]


def _misplaced(host: Account, wanted: Amounts) -> NotAllowed | None:
    """Why one cannot live there. Who takes nothing from its host would not keep it from being removed."""
    root = host.row.root.int
    if root != host.row.id.int:
        return NotAllowed(
            field="share.host",
            reason=f"provider {host.row.id} is no root: it stands in the tree of {host.row.root}",
        )
    for account in wanted:
        if account.row.root.int == root:
            return None
    return NotAllowed(
        field="share.amounts", reason=f"nothing of it is taken from the tree of its host, {host.row.id}"
    )


def _full(host: Account, share: Share, leaves: ProviderId | None) -> HostFull | None:
    """Where the limit was lowered, nobody is added; who already lives there may stay."""
    if host.consumers < share.instances_max or (leaves is not None and leaves.int == share.host.int):
        return None
    return HostFull(host=share.host, instances=host.consumers, instances_max=share.instances_max)


def _shortfalls(wanted: Amounts, held: Amounts) -> list[Shortfall]:
    short: list[Shortfall] = []
    for account, of_provider in wanted.items():
        given_back = held.get(account, {})
        for resource, asked in of_provider.items():
            shortfall = shortfall_of(account, resource, asked, given_back.get(resource, 0))
            if shortfall:
                short.append(shortfall)
    return short


def _as_asked(short: Sequence[Shortfall], share: Share) -> tuple[Shortfall, ...]:
    """In the order in which the share first names them."""
    places: dict[tuple[int, str], int] = {}
    for amount in share.amounts:
        places.setdefault((amount.provider.int, amount.resource), len(places))
    return tuple(sorted(short, key=lambda each: places[each.provider.int, each.resource]))


def _foreign(account: Account, cell: str) -> NotAllowed:
    reason = f"provider {account.row.id} is of cell {account.row.cell!r}, not of {cell!r}"
    return NotAllowed(field=SHARE_CELL, reason=reason)
