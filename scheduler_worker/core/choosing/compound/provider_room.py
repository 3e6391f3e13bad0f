"""The free amounts at each provider, without what this scheduler's unanswered choices hold there and what the batch has
taken.
"""

from collections.abc import Mapping, Sequence

from bus.message import ProviderId
from placement_worker.core.candidates.one_class import OneClassProviders
from scheduler_worker.core.picture.picture import Picture

# The row of a provider in the index, a class, and the amount that an instance takes. A search makes so many of these that
# names for the three would cost too much.
ProviderAmount = tuple[int, str, int]
Parts = Sequence[ProviderAmount]


class ProviderRoom:
    """The free amounts at each provider. The picture is not changed: `taken` counts, by class and provider row, what is
    used beside the usage that the picture has.
    """

    def __init__(self, picture: Picture) -> None:
        self._index = picture.index
        self.taken: dict[str, dict[int, int]] = {}
        # Classes that an instance which leaves keeps in use until its move is confirmed, although `taken` counts them as
        # given back: a provider that gives one class at a time gives no other one beside them.
        self.kept: dict[int, frozenset[str]] = {}
        self._one_class = OneClassProviders(picture.index, self.taken, self.kept)
        # Counts what is taken, so that callers know whether an answer still holds.
        self.changes = 0
        for share in picture.held_on_compound():
            for each in share.amounts:
                row = self._index.row_of(each.provider)
                if row is not None:
                    self.count(row, each.resource, each.amount)

    def free(self, row: int, resource: str) -> int:
        taken = self.taken.get(resource)
        free = self._index.stocks[resource].free.item(row)
        return free - taken.get(row, 0) if taken else free

    def part_left(self, row: int, amounts: Mapping[str, int]) -> float:
        """The part of a provider's capacity that stays free after it has given these amounts: the mean of the classes."""
        stocks, left = self._index.stocks, 0.0
        for resource, amount in amounts.items():
            stock, taken = stocks[resource], self.taken.get(resource)
            free = stock.free.item(row) - amount
            left += (free - taken.get(row, 0) if taken else free) / stock.capacity.item(row)
        return left / len(amounts)

    def free_at(self, provider: ProviderId, resource: str) -> int:
        row = self._index.row_of(provider)
        return 0 if row is None else self.free(row, resource)

    def has(self, parts: Parts) -> bool:
        return all(
            self.free(row, resource) >= amount and not self._one_class.bars(row, ((resource, amount),))
            for row, resource, amount in parts
        )

    def give_back(self, row: int, resource: str, amount: int) -> None:
        """Count this amount, which an instance that leaves holds, as free for this instance."""
        self.count(row, resource, -amount)
        self.kept[row] = self.kept.get(row, frozenset()) | {resource}

    def classes_beside(self, provider: ProviderId, resource: str) -> list[str]:
        """The other classes in use at a provider that gives one class at a time; none at any other provider."""
        row = self._index.row_of(provider)
        if row is None or row not in self._index.one_class.rows:
            return []
        return sorted(self._one_class.in_use(row) - {resource})

    def take(self, parts: Parts) -> None:
        for row, resource, amount in parts:
            self.count(row, resource, amount)

    def count(self, row: int, resource: str, amount: int) -> None:
        self.changes += 1
        taken = self.taken.setdefault(resource, {})
        taken[row] = taken.get(row, 0) + amount

    def correct(self, provider: ProviderId, resource: str, free: int) -> None:
        """Lower the free amount of a class on this provider to the amount that placement has stated."""
        row = self._index.row_of(provider)
        if row is not None and resource in self._index.stocks:
            more = self.free(row, resource) - free
            if more > 0:
                self.count(row, resource, more)
