"""Whom and what a batch names: what must be locked and read before it is decided."""

from collections.abc import Iterable

from msgspec import Struct

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import ConsumerAllocations
from bus.messages.placement import ClaimResources, ReleaseClaim, ServerGroup, SwapClaim
from placement_worker.core.ledger import ClaimOrder, NamedShares


class Named(Struct, frozen=True):
    """Whom and what a batch of orders names, each once; consumers and groups in the order of their locks.

    `claims` are the first that is said of their consumers, `wishes` all that is.
    """

    consumers: list[ConsumerId]
    providers: list[ProviderId]
    groups: list[ServerGroup]
    claims: dict[int, ClaimResources]
    wishes: dict[int, ConsumerAllocations]


def named_by(orders: Iterable[ClaimOrder]) -> Named:
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
        if isinstance(order, SwapClaim) and order.cleanup is not None:
            consumers[order.cleanup.int] = order.cleanup
        if order.group is not None:
            groups[order.group.id.int] = order.group
        share = order.share
        providers[share.host.int] = share.host
        for amount in share.amounts:
            providers[amount.provider.int] = amount.provider
        for seen in share.shapes:
            providers[seen.root.int] = seen.root
    return Named(
        consumers=[consumers[number] for number in sorted(consumers)],
        providers=list(providers.values()),
        groups=[groups[number] for number in sorted(groups)],
        claims=claims,
        wishes={},
    )


def named_in(shares: NamedShares) -> Named:
    return Named(
        consumers=sorted(shares.consumers, key=lambda one: one.int),
        providers=list(shares.providers),
        groups=[],
        claims={},
        wishes={wish.consumer.int: wish for wish in shares.wishes},
    )
