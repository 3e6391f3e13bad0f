"""The free amounts at each provider, without what this scheduler's unanswered choices hold there and what the batch has
taken.
"""

from collections.abc import Mapping, Sequence

from bus.message import ProviderId
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
        return all(self.free(row, resource) >= amount for row, resource, amount in parts)

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
