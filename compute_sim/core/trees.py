"""The provider tree of a host, as its driver edits it.

A driver gets the tree that placement last accepted, and returns the tree as it is now. Providers and traits that others have
added to it in placement are not in it, and a report leaves them alone. If a driver gives a provider a set of `aggregates`,
these replace all aggregates of the provider. With None they stay as they are, and the provider only joins those in `joins`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct

from bus.messages.placement import (
    InventoryInUse,
    ReportAccepted,
    ReportInventory,
    ReportOutdated,
    ReportVerdict,
)
from engine.inventories import (
    AggregateId,
    ConsumerId,
    ProviderId,
    ProviderState,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
)

T = TypeVar("T")


class TreeProvider(Struct, frozen=True):
    id: ProviderId
    name: str
    parent: ProviderId | None = None
    inventories: Mapping[str, ReportedInventory] = {}
    traits: frozenset[str] = frozenset()
    # None: they stay as they are.
    aggregates: frozenset[AggregateId] | None = None
    joins: frozenset[AggregateId] = frozenset()
    # Of the root alone.
    place: str = ""


class ProviderTree(Struct, frozen=True):
    root: ProviderId
    providers: Mapping[ProviderId, TreeProvider] = {}


def flaw_of(given: ProviderTree, edited: ProviderTree) -> str | None:
    """A sentence that says what is wrong with the tree that a driver has returned; None if nothing is wrong."""
    if edited.root != given.root:
        return f"the tree of {given.root} has another root now"
    own = edited.providers
    if own and edited.root not in own:
        return f"the tree of {edited.root} has providers, but not its root"
    for each in own.values():
        if (each.parent is None) != (each.id == edited.root):
            return (
                f"provider {each.name!r} has no parent, and is not the root"
                if each.parent is None
                else (f"provider {each.name!r} is the root, and has a parent")
            )
        above, seen = each.parent, {each.id}
        while above is not None:
            if above in seen or above not in own:
                return f"provider {each.name!r} is not connected to the root"
            seen.add(above)
            above = own[above].parent
    return None


# Diff between the tree that placement last accepted and the current one, and what placement's answer means.
#
# A report names only providers that differ from the accepted tree. A refused report was not accepted, so its changes are
# part of the next diff too, when something else changes.


class ReportState(Struct, frozen=True):
    """The reporting state of one host: the accepted tree, and the sequence of the last report."""

    accepted: ProviderTree
    sequence: int


class Accepted(Struct, frozen=True):
    """Placement has accepted the report; this is the new state."""

    reporting: ReportState


class MustReportAll(Struct, frozen=True):
    """Placement has refused the report, since another reporter has sent a later one about this tree.

    What placement has of the tree is then unknown. So the next report names every provider, and has a higher sequence
    than the other reporter's.
    """

    reporting: ReportState


class MustReshape(Struct, frozen=True):
    """Placement refused the report, since consumers hold something of an inventory that the tree has no more."""

    reason: str


class ReportRefused(Struct, frozen=True):
    """Placement refused the report. A repeated report would be refused too, until something changes."""

    reason: str


def report_of_changes(
    reporting: ReportState, tree: ProviderTree, cell: str, sequence: int
) -> ReportInventory | None:
    """The report that turns the accepted tree into the current one; None if they are equal."""
    before, after = reporting.accepted.providers, tree.providers
    reported = {id_: _reported(each) for id_, each in before.items()}
    named = [_reported(each) for each in _from_the_root(tree)]
    changed = tuple([each for each in named if reported.get(each.id) != each])
    removed = [id_ for id_ in before if id_ not in after]
    if not changed and not removed:
        return None
    return ReportInventory(
        cell=cell,
        root=tree.root,
        providers=changed,
        removed=tuple(removed),
        sequence=max(sequence, reporting.sequence + 1),
        # What placement has is unknown: an earlier process may have reported other providers.
        whole=not before,
    )


def whole_report(tree: ProviderTree, cell: str, sequence: int) -> ReportInventory:
    """The report of all providers of a tree, whatever placement has."""
    return ReportInventory(
        cell=cell,
        root=tree.root,
        providers=tuple([_reported(each) for each in _from_the_root(tree)]),
        sequence=sequence,
        whole=True,
    )


def after_answer(
    report: ReportInventory, tree: ProviderTree, verdict: ReportVerdict
) -> Accepted | MustReportAll | MustReshape | ReportRefused:
    """What placement's verdict on a report of this tree means: the new reporting state of the host, or the refusal."""
    match verdict:
        case ReportAccepted():
            return Accepted(ReportState(tree, report.sequence))
        case ReportOutdated(epoch=0, sequence=sequence) if sequence <= report.sequence:
            # The report itself was accepted before, and that answer was lost.
            return Accepted(ReportState(tree, report.sequence))
        case ReportOutdated(epoch=0, sequence=sequence):
            return MustReportAll(ReportState(ProviderTree(tree.root), sequence))
        case InventoryInUse(provider=provider, resource=resource, used=used):
            return MustReshape(
                f"{used} {resource} of provider {provider} are in use, and the new tree has none there"
            )
        case _:
            return ReportRefused(str(verdict))


def _from_the_root(tree: ProviderTree) -> list[TreeProvider]:
    """The providers sorted so that parents come before their children."""
    own = tree.providers

    def depth(provider: TreeProvider) -> int:
        above = provider.parent
        steps = 0
        while above is not None and above in own:
            above, steps = own[above].parent, steps + 1
        return steps

    return sorted(own.values(), key=depth)


def _reported(provider: TreeProvider) -> ReportedProvider:
    return ReportedProvider(
        id=provider.id,
        name=provider.name,
        parent=provider.parent,
        inventories=dict(provider.inventories),
        traits=tuple(sorted(provider.traits)),
        aggregates=None if provider.aggregates is None else tuple(sorted(provider.aggregates)),
        joins=tuple(sorted(provider.joins)),
        place=provider.place if provider.parent is None else None,
    )


# Which provider of a host's new tree gives each consumer what it holds of the old one? A driver's usual answer. Pure.
#
# Only what is left without an inventory moves. What one consumer held of one provider is a *piece*: it stays together as far as one
# provider of the new tree has all its classes. So a guest that floated over a whole host goes to one NUMA cell, with its CPUs and
# its memory. The largest pieces are placed first, each at the first provider that has room for it, in the order of the tree.
#
# - If no provider has all classes of a piece, the provider that has most of them gives these, and the rest follows by the same rule:
#   CPUs and memory in a cell, a device at its own provider.
# - If no provider has room for all of one class, several give parts of it, those with most room first: eight devices of one pool, or a
#   guest that is larger than a cell.
#
# If a piece finds no room by this rule, nothing moves, and the answer names it. What stays where it is is not judged, even if more is in use than
# there is. Sums of each consumer and class do not change.


Allocations = Mapping[ConsumerId, tuple[ResourceAmount, ...]]


class CannotReshape(Struct, frozen=True):
    """The driver finds no place for what a consumer holds: the old shape stays."""

    reason: str


def first_fit(
    known: ProviderTree, new: ProviderTree, allocations: Allocations
) -> Allocations | CannotReshape:
    """What each consumer holds of the new tree; or why that is impossible. `known` is the tree that placement has, and
    `allocations` is all that is held of it.
    """
    room = _Room(new)
    pieces: list[_Piece] = []
    stay: dict[ConsumerId, Counter[tuple[ProviderId, str]]] = {}
    for consumer in sorted(allocations):
        held = stay[consumer] = Counter()
        homeless: dict[ProviderId, Counter[str]] = {}
        for each in allocations[consumer]:
            if room.has_inventory(each.provider, each.resource):
                held[each.provider, each.resource] += each.amount
                room.take(each.provider, each.resource, each.amount)
            else:
                homeless.setdefault(each.provider, Counter())[each.resource] += each.amount
        pieces += [_Piece(consumer, of, amounts) for of, amounts in homeless.items()]
    for piece in sorted(pieces, key=lambda each: (-room.part_of(each.amounts), each.consumer, each.provider)):
        if why := _place(room, piece, stay[piece.consumer]):
            was = known.providers.get(piece.provider)
            name = str(piece.provider) if was is None else was.name
            return CannotReshape(
                f"consumer {piece.consumer} holds {_in_words(piece.amounts)} of {name}: {why}"
            )
    return {
        consumer: tuple(
            [
                ResourceAmount(provider=provider, resource=resource, amount=amount)
                for (provider, resource), amount in held.items()
            ]
        )
        for consumer, held in stay.items()
    }


class _Piece(Struct, frozen=True):
    """What a consumer held of one provider, of the classes that this provider has no more."""

    consumer: ConsumerId
    provider: ProviderId
    amounts: Counter[str]


class _Room:
    """What the providers of the new tree have left, in the order of the tree."""

    def __init__(self, tree: ProviderTree) -> None:
        self._providers = tree.providers
        self._free = {
            (each.id, resource): _capacity(inventory)
            for each in tree.providers.values()
            for resource, inventory in each.inventories.items()
        }
        self._total = Counter[str]()
        for (_, resource), capacity in self._free.items():
            self._total[resource] += capacity

    def has_inventory(self, provider: ProviderId, resource: str) -> bool:
        return (provider, resource) in self._free

    def part_of(self, amounts: Mapping[str, int]) -> float:
        """How large this is beside the whole host: the largest part of a class that it takes."""
        return max(amount / max(1, self._total[resource]) for resource, amount in amounts.items())

    def with_most_of(self, classes: Iterable[str]) -> list[tuple[ProviderId, list[str]]]:
        """The providers that have the most of these classes, each with those that it has."""
        wanted = list(classes)
        having = [
            (one, found)
            for one in self._providers
            if (found := [resource for resource in wanted if (one, resource) in self._free])
        ]
        most = max([len(found) for _, found in having], default=0)
        return [(one, found) for one, found in having if len(found) == most]

    def fits(self, provider: ProviderId, amounts: Mapping[str, int]) -> bool:
        return all(self._gives(provider, resource, amount) for resource, amount in amounts.items())

    def part(self, provider: ProviderId, resource: str, wanted: int) -> int:
        """How much of a class the provider can give of the wanted amount: a multiple of its step, 0 if it is less than its least."""
        inventory = self._providers[provider].inventories[resource]
        most = min(wanted, self._free[provider, resource], inventory.max_unit)
        most -= most % inventory.step_size
        return most if most >= inventory.min_unit else 0

    def most_first(self, resource: str) -> list[ProviderId]:
        having = [one for one in self._providers if (one, resource) in self._free]
        return sorted(having, key=lambda one: -self._free[one, resource])

    def take(self, provider: ProviderId, resource: str, amount: int) -> None:
        self._free[provider, resource] -= amount

    def _gives(self, provider: ProviderId, resource: str, amount: int) -> bool:
        inventory = self._providers[provider].inventories[resource]
        return (
            amount <= self._free[provider, resource]
            and inventory.min_unit <= amount <= inventory.max_unit
            and amount % inventory.step_size == 0
        )


def _place(room: _Room, piece: _Piece, held: Counter[tuple[ProviderId, str]]) -> str:
    """Take the amounts of a piece from the room; or say why that is impossible."""
    left = dict(sorted(piece.amounts.items()))
    while left:
        having = room.with_most_of(left)
        if not having:
            return f"no provider of the new shape has {' or '.join(left)}"
        for provider, classes in having:
            amounts = {resource: left[resource] for resource in classes}
            if room.fits(provider, amounts):
                for resource, amount in amounts.items():
                    room.take(provider, resource, amount)
                    held[provider, resource] += amount
                break
        else:
            classes = having[0][1]
            for resource in classes:
                if short := _split(room, resource, left[resource], held):
                    return short
        for resource in classes:
            del left[resource]
    return ""


def _split(room: _Room, resource: str, amount: int, held: Counter[tuple[ProviderId, str]]) -> str:
    """Take one class from as many providers as are needed, those with most room first."""
    rest = amount
    taken: list[tuple[ProviderId, int]] = []
    for provider in room.most_first(resource):
        if part := room.part(provider, resource, rest):
            taken.append((provider, part))
            rest -= part
        if not rest:
            break
    if rest:
        return f"of {amount} {resource} the new shape has room for {amount - rest}"
    for provider, part in taken:
        room.take(provider, resource, part)
        held[provider, resource] += part
    return ""


def _capacity(inventory: ReportedInventory) -> int:
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)


def _in_words(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{resource} {amount}" for resource, amount in sorted(amounts.items()))


def known_tree(root: ProviderId, states: Iterable[ProviderState]) -> ProviderTree:
    """The tree as placement has it."""
    return ProviderTree(root, {state.id: _provider_of(state) for state in states})


def with_made_by_name(tree: ProviderTree, states: Iterable[ProviderState]) -> ProviderTree:
    """The driver's tree with what placement keeps beside it: providers that were made by name, with everything above them."""
    known = {state.id: state for state in states}
    providers = dict(tree.providers)
    for state in known.values():
        if not state.made_by_name or state.id in providers:
            continue
        providers[state.id] = _provider_of(state)
        above = known.get(state.parent) if state.parent is not None else None
        while above is not None and above.id not in providers:
            providers[above.id] = _provider_of(above)
            above = known.get(above.parent) if above.parent is not None else None
    return ProviderTree(tree.root, providers)


def _provider_of(state: ProviderState) -> TreeProvider:
    return TreeProvider(
        id=state.id,
        name=state.name,
        parent=state.parent,
        inventories={
            name: ReportedInventory(*[getattr(stock, field) for field in ReportedInventory.__struct_fields__])
            for name, stock in state.inventories.items()
        },
        traits=frozenset(state.traits),
        aggregates=frozenset(state.aggregates),
    )


def moved(before: Allocations, after: Allocations) -> Sequence[ConsumerId]:
    """The consumers that hold something else after than before."""
    place = attrgetter("provider", "resource")
    return [
        consumer
        for consumer in sorted(before)
        if _sums(before[consumer], place) != _sums(after.get(consumer, ()), place)
    ]


def _sums(amounts: Iterable[ResourceAmount], of: Callable[[ResourceAmount], T]) -> Counter[T]:
    sums = Counter[T]()
    for each in amounts:
        sums[of(each)] += each.amount
    return sums


def flaw_of_answer(new: ProviderTree, before: Allocations, after: Allocations) -> str | None:
    """A sentence that says what is wrong with a driver's answer; None if nothing is wrong. Placement judges the room."""
    if before.keys() != after.keys():
        return "it names other consumers than those that hold something of the host"
    for consumer, amounts in after.items():
        if stray := next((each.provider for each in amounts if each.provider not in new.providers), None):
            return f"it gives consumer {consumer} something of {stray}, which is not in the new tree"
        had, gets = (_sums(some, lambda each: each.resource) for some in (before[consumer], amounts))
        if had != gets:
            return f"consumer {consumer} held {_in_words(had)}, and would hold {_in_words(gets)}"
    return None
