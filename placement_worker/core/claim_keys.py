"""The keys that a batch of orders or allocation writes must lock and read."""

from collections.abc import Iterable

from msgspec import Struct

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import ConsumerAllocations
from bus.messages.placement import ClaimResources, ReleaseClaim, ServerGroup, SwapClaim
from placement_worker.core.ledger import ClaimOrder


class ClaimKeys(Struct, frozen=True):
    """Each key once; consumers and groups in the order in which they are locked.

    `claims` has the first order of a consumer if it is a claim; `allocations` has the last write of each consumer. A group
    is here as the first order that names it defines it. Of custom `classes` it must be known whether they exist.
    """

    consumers: list[ConsumerId]
    providers: list[ProviderId]
    groups: list[ServerGroup]
    claims: dict[int, ClaimResources]
    allocations: dict[int, ConsumerAllocations]
    classes: frozenset[str] = frozenset()


def keys_of_orders(orders: Iterable[ClaimOrder]) -> ClaimKeys:
    consumers: dict[int, ConsumerId] = {}
    providers: dict[int, ProviderId] = {}
    groups: dict[int, ServerGroup] = {}
    claims: dict[int, ClaimResources] = {}
    for order in orders:
        number = order.consumer.int
        if isinstance(order, ClaimResources) and number not in consumers:
            claims[number] = order
        consumers[number] = order.consumer
        if isinstance(order, ReleaseClaim):
            continue
        if isinstance(order, SwapClaim):
            if order.heir is not None:
                consumers[order.heir.id.int] = order.heir.id
            if order.returns is not None:
                consumers[order.returns.int] = order.returns
        if order.group is not None:
            groups.setdefault(order.group.id.int, order.group)
        share = order.share
        providers[share.host.int] = share.host
        for amount in share.amounts:
            providers[amount.provider.int] = amount.provider
        for seen in share.shapes:
            providers[seen.root.int] = seen.root
    return ClaimKeys(
        consumers=[consumers[number] for number in sorted(consumers)],
        providers=list(providers.values()),
        groups=[groups[number] for number in sorted(groups)],
        claims=claims,
        allocations={},
    )


def keys_of_shares(
    consumers: Iterable[ConsumerId],
    providers: Iterable[ProviderId],
    classes: Iterable[str] = (),
    groups: Iterable[ServerGroup] = (),
    allocations: Iterable[ConsumerAllocations] = (),
) -> ClaimKeys:
    """The keys to lock for writes that name consumers and providers. Each of these may be given several times."""
    return ClaimKeys(
        consumers=[one for _, one in sorted({one.int: one for one in consumers}.items())],
        providers=list({one.int: one for one in providers}.values()),
        groups=[one for _, one in sorted({one.id.int: one for one in groups}.items())],
        claims={},
        allocations={one.consumer.int: one for one in allocations},
        classes=frozenset(classes),
    )
