"""What instance and migration hold during a move, after each commit: together as much as the old and the new share both need,
each amount once.

It goes by the orders and by what was held before the commit, and by none of placement's rules.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from bus.messages.placement import SwapClaim
from engine.inventories import ConsumerId, ResourceAmount
from placement_worker.core.ledger import ClaimOrder
from tests.simulation.findings import Findings
from tests.simulation.host_history import short_id

MOVE = "move"
HELD_ONCE = "a move holds each amount once"
Amounts = tuple[ResourceAmount, ...]


class MovesChecker:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def committed(
        self,
        orders: Sequence[ClaimOrder],
        granted: Collection[tuple[ConsumerId, int]],
        before: Mapping[ConsumerId, Amounts],
        held: Mapping[ConsumerId, Amounts],
    ) -> None:
        """Skips consumers that several orders of one commit name: the books do not show what they held between two orders."""
        named = Counter(consumer for order in orders for consumer in _consumers_of(order))
        for order in orders:
            if not isinstance(order, SwapClaim) or (order.consumer, order.attempt) not in granted:
                continue
            if all(named[each] == 1 for each in _consumers_of(order)):
                self._check_heir(order, granted, before, held)
                self._check_end(order, held)

    def _check_heir(
        self,
        order: SwapClaim,
        granted: Collection[tuple[ConsumerId, int]],
        before: Mapping[ConsumerId, Amounts],
        held: Mapping[ConsumerId, Amounts],
    ) -> None:
        heir = order.heir
        if heir is None or (heir.type == "CLEANUP" and order.returns is None):
            return
        # Where a reshape has moved what comes back, the share of the order does not say.
        rest = _sums(before.get(order.consumer, ())) - _sums(held.get(order.consumer, ()))
        inherited = _sums(held.get(heir.id, ()))
        is_over = (heir.id, order.held_attempt) not in granted
        self._findings.count(
            MOVE, f"a {heir.type.lower()} holds the rest" if rest else "nothing is left over"
        )
        if inherited != rest and not (is_over and not inherited):
            self._findings.breaks(
                HELD_ONCE,
                f"the {heir.type} of {short_id(order.consumer)} holds {dict(inherited)}, and {dict(rest)} is left over",
            )

    def _check_end(self, order: SwapClaim, held: Mapping[ConsumerId, Amounts]) -> None:
        if order.returns is None:
            return
        self._findings.count(MOVE, "a way back")
        if left := held.get(order.returns):
            self._findings.breaks(
                HELD_ONCE, f"{short_id(order.consumer)} came back, and its migration still holds {left}"
            )


def _consumers_of(order: ClaimOrder) -> tuple[ConsumerId, ...]:
    if not isinstance(order, SwapClaim):
        return (order.consumer,)
    heir = (order.heir.id,) if order.heir else ()
    return (order.consumer, *heir, *((order.returns,) if order.returns else ()))


def _sums(amounts: Amounts) -> Counter[tuple[object, str]]:
    sums: Counter[tuple[object, str]] = Counter()
    for each in amounts:
        sums[each.provider, each.resource] += each.amount
    return sums
