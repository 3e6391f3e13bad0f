"""The rows that a batch of orders or allocation writes must lock and read, named by their public ids: its keys."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from bus.message import ConsumerId, GroupId, ProviderId
from bus.messages.administration import ConsumerAllocations
from bus.messages.placement import (
    NO_OWNER,
    ClaimResources,
    ReleaseClaim,
    ServerGroup,
    SwapClaim,
    single_swaps,
)
from placement_worker.core.ledger import ClaimOrder


class ClaimKeys(Struct, frozen=True):
    """The rows that a batch must lock and read. Each is named once; consumers and groups are in the order of locking.

    `orders` are read only if some project has a limit.

    From `claims` (the first order of each consumer, if that is a claim) and `allocations` (the last write of each
    consumer) the store inserts new consumers in their probable final state. `groups` are server groups as the first order
    that names them defines them. `classes` are named resource classes: the batch needs to know which custom ones exist.
    """

    consumers: list[ConsumerId]
    providers: list[ProviderId]
    groups: list[ServerGroup]
    claims: dict[int, ClaimResources]
    allocations: dict[int, ConsumerAllocations]
    classes: frozenset[str] = frozenset()
    orders: Sequence[ClaimOrder] = ()

    def projects(self) -> set[str]:
        """The projects for which the batch may make new consumers."""
        claims = [order.project for order in self.orders if isinstance(order, ClaimResources)]
        return {project or NO_OWNER for project in claims} | {
            one.project or NO_OWNER for one in self.allocations.values()
        }

    def maybe_known(self) -> list[ConsumerId]:
        """The consumers that the batch does not merely claim for: their rows say of which projects they are."""
        return [one for one in self.consumers if one.int not in self.claims]


def keys_of_orders(orders: Sequence[ClaimOrder]) -> ClaimKeys:
    consumers: dict[int, ConsumerId] = {}
    providers: dict[int, ProviderId] = {}
    groups: dict[GroupId, ServerGroup] = {}
    claims: dict[int, ClaimResources] = {}
    for order in each_swap(orders):
        number = order.consumer.int
        if isinstance(order, ClaimResources):
            if number not in consumers:
                claims[number] = order
            consumers[number] = order.consumer
        else:
            consumers[number] = order.consumer
            if isinstance(order, ReleaseClaim):
                continue
            if order.heir is not None:
                consumers[order.heir.id.int] = order.heir.id
            if order.returns is not None:
                consumers[order.returns.int] = order.returns
        if order.group is not None:
            groups.setdefault(order.group.id, order.group)
        share = order.share
        providers[share.host.int] = share.host
        for amount in share.amounts:
            providers[amount.provider.int] = amount.provider
        for seen in share.shapes:
            providers[seen.root.int] = seen.root
    return ClaimKeys(
        consumers=[consumers[number] for number in sorted(consumers)],
        providers=list(providers.values()),
        groups=[groups[group] for group in sorted(groups)],
        claims=claims,
        allocations={},
        orders=orders,
    )


def each_swap(orders: Iterable[ClaimOrder]) -> Iterator[ClaimOrder]:
    """The orders, with each swap followed by the swaps that are to be granted together with it."""
    for order in orders:
        if isinstance(order, SwapClaim):
            yield from single_swaps(order)
        else:
            yield order


def keys_of_shares(
    consumers: Iterable[ConsumerId],
    providers: Iterable[ProviderId],
    classes: Iterable[str] = (),
    groups: Iterable[ServerGroup] = (),
    allocations: Iterable[ConsumerAllocations] = (),
) -> ClaimKeys:
    """The rows to lock for writes that name consumers and providers. The arguments may contain duplicates."""
    return ClaimKeys(
        consumers=sorted(set(consumers)),
        providers=list(dict.fromkeys(providers)),
        groups=[one for _, one in sorted({one.id: one for one in groups}.items())],
        claims={},
        allocations={one.consumer.int: one for one in allocations},
        classes=frozenset(classes),
    )
