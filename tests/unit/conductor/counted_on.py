"""A cell's answer to an audit, compared with placement and the hosts: nothing is held that the cell does not count on."""

from collections.abc import Collection, Iterable, Mapping

from bus.messages.placement import ReleaseClaim
from cell_conductor.core.books import entry_of
from cell_conductor.core.rows import ConductorRules, Instance
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId
from placement_worker.store import PlacementStore


async def check_claims(
    rows: Mapping[InstanceId, Instance],
    books: PlacementStore,
    rules: ConductorRules,
    *,
    under_way: Iterable[object],
    unplaced: Collection[ConsumerId],
) -> None:
    """At any moment. `under_way` are messages that were sent; `unplaced` are instances whose order has not come yet."""
    held = {each.id: each for each in await books.books_page(None, 1000)}
    sent = [*under_way, *(each.message for row in rows.values() for each in row.outbox)]
    released = {each.consumer for each in sent if isinstance(each, ReleaseClaim)}
    claims = {claim.consumer: claim for row in rows.values() for claim in entry_of(row, rules.cell).claims}
    unknown = held.keys() - claims.keys() - released - {*unplaced}
    assert not unknown, [held[each] for each in sorted(unknown)]
    for consumer, claim in claims.items():
        if claim.share is not None:
            entry = held[consumer]
            assert (entry.attempt, entry.host) == (claim.attempt, claim.share.host)
            assert {*entry.held} == {*claim.share.amounts}


def check_hosts(
    rows: Mapping[InstanceId, Instance],
    rules: ConductorRules,
    attempts: Mapping[ProviderId, Collection[tuple[InstanceId, int]]],
) -> None:
    """When everything has settled: a host has exactly what the cell says that it has."""
    there = {(instance, host, attempt) for host, some in attempts.items() for instance, attempt in some}
    known = {
        (each.instance, each.host, each.attempt)
        for row in rows.values()
        for each in entry_of(row, rules.cell).on_hosts
    }
    assert there == known
