"""The quotas of the projects of one batch, while it is decided: does a claim bring its project over a limit?

Consumers count by their type:

    type of consumer        what it counts
    MIGRATION               what its instance gave up by the move, beyond its new share: a revert gives that back
    CLEANUP                 nothing: a host that is silent is no fault of the project
    INSTANCE                what it holds, and one instance
    any other               what it holds

So a move counts once: instance and migration together count the larger of both shares, of each class. Only growth is judged,
by claims and swaps; whatever was written by name counts without being judged. A release, and a consumer that holds nothing
such as an offloaded instance, count nothing.
"""

from collections.abc import Iterable, Mapping

from msgspec import structs

from bus.messages.placement import OverLimit, QuotaExceeded, ResourceAmount
from bus.messages.quotas import INSTANCES
from placement_worker.core.ledger import Consumer, Quota

Counted = dict[str, int]
SavedQuotas = Mapping[str, Counted]


def sums_of(held: Iterable[ResourceAmount]) -> Counted:
    sums: Counted = {}
    for each in held:
        sums[each.resource] = sums.get(each.resource, 0) + each.amount
    return sums


def counted(type_: str, kept: Iterable[tuple[str, int]], held: Mapping[str, int]) -> Counted:
    """The amounts by which a consumer counts that holds `held`, by class; empty if it holds nothing."""
    if not held or type_ == "CLEANUP":
        return {}
    if type_ == "MIGRATION":
        return dict(kept)
    return {**held, INSTANCES: 1} if type_ == "INSTANCE" else dict(held)


def given_up(
    before: Iterable[ResourceAmount], after: Iterable[ResourceAmount]
) -> tuple[tuple[str, int], ...]:
    """The part of the amounts before a move that the amounts after it lack, of each class."""
    now = sums_of(after)
    lost = {name: amount - now.get(name, 0) for name, amount in sums_of(before).items()}
    return tuple([(name, amount) for name, amount in sorted(lost.items()) if amount > 0])


class QuotasDraft:
    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas = quotas
        self._used: dict[str, Counted] = {project: dict(quota.used) for project, quota in quotas.items()}

    def judge(
        self, project: str, type_: str, held: Mapping[str, int], given_back: Mapping[str, int] | None = None
    ) -> QuotaExceeded | None:
        """Why a consumer of this project may not hold these amounts; `given_back` is what it holds now, None if it is new."""
        quota = self._quotas.get(project)
        if quota is None:
            return None
        before = counted(type_, (), given_back or {})
        after = counted(type_, (), held)
        return self.judge_growth(
            project, {name: amount - before.get(name, 0) for name, amount in after.items()}
        )

    def judge_growth(self, project: str, growth: Mapping[str, int]) -> QuotaExceeded | None:
        quota, used = self._quotas.get(project), self._used.get(project, {})
        if quota is None:
            return None
        over = [
            OverLimit(name=name, limit=limit, used=used.get(name, 0), asked=asked)
            for name, limit in sorted(quota.limits.items())
            if (asked := growth.get(name, 0)) > 0 and used.get(name, 0) + asked > limit
        ]
        return QuotaExceeded(project=project, over=tuple(over)) if over else None

    def changed(
        self,
        before: Consumer,
        had: Iterable[ResourceAmount],
        after: Consumer,
        has: Iterable[ResourceAmount],
    ) -> None:
        """Count the consumer as it is after a change of its row, or of what it holds."""
        self._add(before, had, -1)
        self._add(after, has, 1)

    def _add(self, row: Consumer, held: Iterable[ResourceAmount], sign: int) -> None:
        used = self._used.get(row.project)
        if used is None:
            return
        for name, amount in counted(row.type, row.kept, sums_of(held)).items():
            used[name] = used.get(name, 0) + sign * amount

    def saved(self) -> SavedQuotas:
        return {project: dict(used) for project, used in self._used.items()}

    def restore(self, was: SavedQuotas) -> None:
        self._used = {project: dict(used) for project, used in was.items()}

    def changes(self) -> tuple[Quota, ...]:
        """The quotas of which another amount is used now."""
        used = {project: nonzero(amounts) for project, amounts in self._used.items()}
        return tuple(
            [
                structs.replace(quota, used=used[project])
                for project, quota in sorted(self._quotas.items())
                if used[project] != nonzero(quota.used)
            ]
        )


def nonzero(amounts: Mapping[str, int]) -> Counted:
    return {name: amount for name, amount in sorted(amounts.items()) if amount}
