"""The facts of a cell about its instances, for an audit: each row, the claims that placement must have for it, and the hosts
that may have something of it.
"""

from collections.abc import Iterator

from msgspec import structs

from bus.messages.audit import CellEntry, ExpectedClaim, HostEntry, amounts_by_class
from bus.messages.placement import ReleaseClaim
from cell_conductor.core.rows import Instance
from cell_conductor.core.transition import state_of
from engine.inventories import CellName, ConsumerId, ResourceAmount, Share

# In these states the instance holds the share of its host.
_HOLDS = ("building", "active", "rebuilding", "moved", "stopped", "shelved", "broken")
# In these states a claim is being moved or freed: the instance may hold something, and so may its next heir.
_MAY_HOLD = ("swapping", "moving", "deleting")


def entry_of(row: Instance, cell: CellName) -> CellEntry:
    """The cell's facts about one instance for an audit: its state without earlier failures, its claims and its hosts."""
    order, host = row.order, row.host
    told = state_of(row, cell, row.sequence)
    return CellEntry(
        # While the row swaps, its claim is in flight: an audit must know.
        instance=structs.replace(
            told, state=row.state if told.state == "building" else told.state, failures=()
        ),
        user=order.user if order else "",
        host=host.share.host if host else None,
        kind=host.kind if host else "",
        group=order.group if order else None,
        claims=tuple(expected_claims(row)),
        on_hosts=tuple(_on_hosts(row)),
        freed=tuple(_freed(row)),
        # When the cell last changed the row's state, or sent a message about it. A message stays on its row until the next
        # write, confirmed or not.
        stirred_at=max([row.changed_at, *[each.at for each in row.outbox]]),
    )


def expected_claims(row: Instance) -> Iterator[ExpectedClaim]:
    """The claims that the cell counts on. Other consumers of this instance must not hold anything."""
    cleaning_up = [held for each in row.cleanups for held in each.release]
    if row.state in _HOLDS:
        assert row.host is not None, "an attempt has a host"
        share = Share(host=row.host.share.host, amounts=row.host.share.amounts)
        yield ExpectedClaim(consumer=row.id, attempt=row.attempt, share=share)
    elif row.state in _MAY_HOLD or row.keeps_share:
        yield ExpectedClaim(consumer=row.id, attempt=row.attempt)
    beside = {held.consumer: held.attempt for held in cleaning_up if held.consumer != row.id}
    if row.state in _MAY_HOLD and row.heir is not None:
        beside[row.heir] = row.attempt
    way_back = _way_back(row)
    if way_back is not None:
        yield way_back
    elif row.moving is not None and row.moving.heir_attempt:
        beside[row.moving.source_heir().consumer] = row.moving.heir_attempt
    for consumer, attempt in beside.items():
        yield ExpectedClaim(consumer=consumer, type="CLEANUP", attempt=attempt)


def _freed(row: Instance) -> Iterator[ConsumerId]:
    """The other consumers of the instance that the cell has freed lately: placement may not know that yet."""
    for each in row.outbox:
        if isinstance(each.message, ReleaseClaim) and each.message.consumer != row.id:
            yield each.message.consumer


def _way_back(row: Instance) -> ExpectedClaim | None:
    """The claim of the migration, if the instance waits for its move to be confirmed or reverted; otherwise None.

    It holds what the source gave beyond what the destination needs, so that the instance can go back.
    """
    moving = row.moving
    if row.state != "moved" or moving is None or row.host is None:
        return None
    source, own = moving.source.share, row.host.share
    rest = amounts_by_class(source.amounts)
    rest.subtract(amounts_by_class(own.amounts))
    # On the host where the instance stays, the migration has no place of its own.
    amounts = tuple([ResourceAmount(*key, amount) for key, amount in rest.items() if amount > 0])
    return ExpectedClaim(
        consumer=moving.source_heir().consumer,
        type="MIGRATION",
        attempt=moving.heir_attempt,
        share=Share(host=source.host, amounts=amounts) if amounts else None,
        has_place=source.host != own.host,
    )


def _on_hosts(row: Instance) -> Iterator[HostEntry]:
    """The hosts that may have something of the instance, with the attempt by which they know it.

    The host that has the instance comes first.
    """
    if row.host is not None and (row.state in _HOLDS or row.state in _MAY_HOLD) and not row.is_stranded:
        yield HostEntry(row.id, row.host.share.host, row.host_attempt)
    if row.moving is not None:
        yield HostEntry(row.id, row.moving.source.share.host, row.moving.source_attempt)
    for each in row.cleanups:
        yield HostEntry(row.id, each.host, each.attempt)
