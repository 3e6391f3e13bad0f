"""Follows the quota of the clients' project: no commit may bring the project over a limit by growth.

It counts by the orders that were granted and by what is held after each commit, not by what placement's rows say that is used:
each instance as what it holds, and beside it what its move has made smaller, until the move cannot come back any more. A way
back is no growth.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from bus.messages.placement import ClaimResources, ReleaseClaim, SwapClaim
from engine.inventories import INSTANCES, ConsumerId, ResourceAmount
from placement_worker.core.ledger import ClaimOrder, Quota
from tests.simulation.findings import Findings
from tests.simulation.plan import PROJECT

QUOTA = "quota"
Held = Mapping[ConsumerId, Sequence[ResourceAmount]]


class QuotasChecker:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._limits: dict[str, int] = {}
        # What each consumer of the project counts: an instance what it holds, a migration what its instance gave up.
        self._counts: dict[ConsumerId, Counter[str]] = {}
        self._of_project: set[ConsumerId] = set()
        self._total = Counter[str]()

    def limits_written(self, written: Sequence[Quota]) -> None:
        for quota in written:
            if quota.project == PROJECT:
                if any(self._total[name] > limit for name, limit in quota.limits.items()):
                    self._findings.count(QUOTA, "a limit below what is used")
                self._limits = dict(quota.limits)
                self._findings.count(QUOTA, "set" if quota.limits else "removed")

    def committed(
        self,
        orders: Sequence[ClaimOrder],
        granted: Collection[tuple[ConsumerId, int]],
        before: Held,
        held: Held,
    ) -> None:
        """`before` has what the consumers held whose holdings changed, and `held` what all hold now."""
        changed = set(before)
        comes_back = False
        for order in orders:
            changed.add(order.consumer)
            if isinstance(order, ReleaseClaim) or (order.consumer, order.attempt) not in granted:
                continue
            if isinstance(order, ClaimResources):
                if order.project == PROJECT and order.consumer_type == "INSTANCE":
                    self._of_project.add(order.consumer)
                elif order.consumer not in self._counts:
                    # Long after its end, its id is used again for a claim of somebody else.
                    self._of_project.discard(order.consumer)
            elif order.consumer in self._of_project:
                comes_back |= order.returns is not None
                self._note_heir(order, held)
        was = Counter(self._total)
        for consumer in changed:
            self._recount(consumer, held)
        self._check(was, is_way_back=comes_back)

    def _note_heir(self, order: SwapClaim, held: Held) -> None:
        heir = order.heir
        # The order may have come before: in an earlier batch, or in this one.
        if heir is None or heir.type != "MIGRATION" or heir.id not in held or heir.id in self._counts:
            return
        smaller = self._counts.get(order.consumer, Counter[str]()) - _amounts(order.share.amounts)
        del smaller[INSTANCES]
        if smaller:
            self._findings.count(QUOTA, "a smaller instance counts its old size")
        self._total += smaller
        self._counts[heir.id] = smaller

    def _recount(self, consumer: ConsumerId, held: Held) -> None:
        now = held.get(consumer)
        if consumer not in self._of_project:
            # A migration counts the same until it holds nothing.
            counts = self._counts[consumer] if now and consumer in self._counts else Counter[str]()
        else:
            counts = _amounts(now) + Counter({INSTANCES: 1}) if now else Counter[str]()
        self._total.subtract(self._counts.pop(consumer, Counter[str]()))
        self._total.update(counts)
        if counts:
            self._counts[consumer] = counts

    def _check(self, was: Mapping[str, int], *, is_way_back: bool) -> None:
        for name, limit in self._limits.items():
            now = self._total[name]
            if was[name] < now <= limit:
                self._findings.count(QUOTA, "grown below the limit")
            if now > limit and now > was[name]:
                if is_way_back:
                    self._findings.count(QUOTA, "exceeded by a way back")
                    continue
                self._findings.breaks(
                    "no commit brings a project over its quota",
                    f"project {PROJECT} has {now} of {name}, before {was[name]}, at most {limit}",
                )


def _amounts(held: Sequence[ResourceAmount]) -> Counter[str]:
    sums = Counter[str]()
    for each in held:
        sums[each.resource] += each.amount
    return sums
