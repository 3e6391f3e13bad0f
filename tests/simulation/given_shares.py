"""Simulated hosts that know what they have given: dedicated processors, huge pages and devices.

The books say that nothing is given twice. A host that is told to give something twice knows better: it has no more of it. It counts from the
shares in its orders, and also compares a share with what the flavor asks for.
"""

from collections.abc import Iterable, Mapping, Sequence

from bus.messages.cell import (
    BuildOrder,
    SpawnInstance,
)
from compute_sim.core.trees import ProviderTree
from engine.guests import GuestShape, ShareDiffersError, cells_of, read_guest
from engine.inventories import ConsumerId, ProviderId

# These may be given to more instances than there are: by a ratio, or while a host shrinks.
SHARED_CLASSES = frozenset({"VCPU", "MEMORY_MB", "DISK_GB"})
CELL = "HW_NUMA_ROOT"

HeldPart = tuple[ProviderId, str]


class GivenShares:
    """The shares of the attempts on one host, by instance. The attempts of one instance are one after the other: they have the
    same parts as far as both have them.
    """

    def __init__(self, tree: ProviderTree) -> None:
        cells = [each.id for each in tree.providers.values() if CELL in each.traits] or [tree.root]
        self._cells = {provider: number for number, provider in enumerate(cells)}
        self._names = {each.id: each.name for each in tree.providers.values()}
        self._most = {
            (each.id, resource): inventory.total - inventory.reserved
            for each in tree.providers.values()
            for resource, inventory in each.inventories.items()
            if not _is_shared(resource)
        }
        self._given: dict[ConsumerId, dict[int, dict[HeldPart, int]]] = {}

    def give(self, order: BuildOrder) -> Sequence[str]:
        """Give what the order says; what is wrong with it, in words. If anything is wrong, nothing is given."""
        parts = {(each.provider, each.resource): each.amount for each in order.share.amounts}
        wrong = [*self._unknown(parts), *self._other_shape(order)]
        attempts = self._given.setdefault(order.instance, {})
        before = attempts.get(order.attempt)
        attempts[order.attempt] = {part: amount for part, amount in parts.items() if part in self._most}
        wrong += self._given_twice(attempts[order.attempt])
        if wrong and before is None:
            self.take_back(order.instance, order.attempt)
        return wrong

    def take_back(self, instance: ConsumerId, attempt: int) -> None:
        attempts = self._given.get(instance, {})
        attempts.pop(attempt, None)
        if not attempts:
            self._given.pop(instance, None)

    def _unknown(self, parts: Iterable[HeldPart]) -> Iterable[str]:
        for provider, resource in parts:
            unknown = provider in self._names and (provider, resource) not in self._most
            if unknown and not _is_shared(resource):
                yield f"{self._names[provider]} has no {resource}"

    def _other_shape(self, order: BuildOrder) -> Iterable[str]:
        if not isinstance(order, SpawnInstance):
            # Only an order to build has the properties of the image, by which the shape is read.
            return
        shape = read_guest(order.flavor, order.image_properties)
        if not isinstance(shape, GuestShape) or not shape.cells:
            return
        share: dict[ProviderId, dict[str, int]] = {}
        for each in order.share.amounts:
            share.setdefault(each.provider, {})[each.resource] = each.amount
        try:
            cells_of(shape, share, self._cells)
        except ShareDiffersError as differs:
            yield str(differs)

    def _given_twice(self, parts: Mapping[HeldPart, int]) -> Iterable[str]:
        for part in parts:
            held = [_held_of(attempts, part) for attempts in self._given.values()]
            if sum(held) > self._most[part]:
                provider, resource = part
                holders = sum(1 for amount in held if amount)
                yield (
                    f"{self._names[provider]} has {self._most[part]} {resource}, and {holders} instances are given {sum(held)}"
                )


def _is_shared(resource: str) -> bool:
    return resource in SHARED_CLASSES or resource.startswith("NET_")


def _held_of(attempts: Mapping[int, Mapping[HeldPart, int]], part: HeldPart) -> int:
    return max((held.get(part, 0) for held in attempts.values()), default=0)
