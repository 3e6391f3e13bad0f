"""The books as the deciding functions see them, and what they want written into them.

A store loads what is to be decided on, under locks; the functions beside this file turn it, with orders, reports and writes
by name, into verdicts and into changes, which a store writes as they are. Nothing here knows a database: providers
and consumers go by their public ids.
"""

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from bus.message import AggregateId, ConsumerId, GroupId, ProviderId
from bus.messages.administration import ConsumerAllocations
from bus.messages.placement import (
    NO_OWNER,
    ClaimResources,
    Holder,
    InventoryState,
    ReleaseClaim,
    ReportInventory,
    ResourceAmount,
    ServerGroup,
    SwapClaim,
)
from placement_worker.core.capacity import Terms

ClaimOrder = ClaimResources | SwapClaim | ReleaseClaim


class Asked(Struct, frozen=True, gc=False):
    """An order, and the one cell its sender may speak for; None if it may speak for all."""

    order: ClaimOrder
    speaks_for: str | None = None


class Reported(Struct, frozen=True):
    """A report, and the one cell its sender may speak for; None if it may speak for all."""

    report: ReportInventory
    speaks_for: str | None = None


class Consumer(Struct, frozen=True, gc=False):
    """Who holds something, or held it once: the row outlives the allocations, so that what is late is known as late.

    `attempt` is the highest seen, 0 when the row was made just now and nothing was seen yet. `ended_at` is set when
    the life of that attempt is over.
    """

    id: ConsumerId
    type: str = "INSTANCE"
    project: str = NO_OWNER
    user: str = NO_OWNER
    cell: str = ""
    generation: int = 0
    attempt: int = 0
    ended_at: datetime | None = None
    host: ProviderId | None = None
    group: GroupId | None = None


class ProviderRow(Struct, frozen=True, gc=False):
    """What claims must know of a provider. `shape` is that of its tree if it is a root, and None otherwise. `terms` are
    those of its inventories, by class; `used` is what is used of each of these. So many `consumers` live on it.
    """

    id: ProviderId
    root: ProviderId
    cell: str = ""
    generation: int = 0
    shape: int | None = None
    terms: Mapping[str, Terms] = {}
    used: Mapping[str, int] = {}
    consumers: int = 0


class Ledger(Struct, frozen=True):
    """The part of the books that a batch of claims touches, locked.

    `consumers` has every consumer that the batch names, those made just now too; `held` only those that hold
    something. `providers` has every provider that an order names or a consumer holds or lives on, and the roots that
    shapes name, as far as they exist. All of them by the integer of their id: a UUID hashes and compares in Python, which for a
    batch of claims would cost as much as deciding them. `classes` are the custom ones that exist of those that were asked
    for.
    """

    consumers: Mapping[int, Consumer]
    held: Mapping[int, tuple[ResourceAmount, ...]]
    providers: Mapping[int, ProviderRow]
    classes: frozenset[str] = frozenset()


class NamedShares(Struct, frozen=True):
    """Who is to hold what, by name: each once. Of the classes it must be known which of the custom ones exist. `wishes` are
    the last that is said of each consumer.
    """

    consumers: tuple[ConsumerId, ...] = ()
    providers: tuple[ProviderId, ...] = ()
    classes: tuple[str, ...] = ()
    wishes: tuple[ConsumerAllocations, ...] = ()


class Touched(Struct, frozen=True, gc=False):
    """A provider of which a claim took or gave back: its revision moves by one, and its generation is now this. So much is
    used of each of its inventories, and so many consumers live on it.
    """

    provider: ProviderId
    generation: int
    used: Mapping[str, int]
    consumers: int = 0


class ClaimChanges(Struct, frozen=True):
    """What a batch of claims writes. Everything is the value after the batch, not a difference.

    `consumers` are rows to be kept as they are here; `forgotten` are to go: made just now for nothing, or of consumers that
    no attempt can ask for. `held` replaces all that a consumer holds. `counted` are providers that are written with their
    trees, and how many consumers live on each.
    """

    consumers: tuple[Consumer, ...] = ()
    forgotten: tuple[ConsumerId, ...] = ()
    held: tuple[tuple[ConsumerId, tuple[ResourceAmount, ...]], ...] = ()
    touched: tuple[Touched, ...] = ()
    counted: tuple[tuple[ProviderId, int], ...] = ()
    groups: tuple[ServerGroup, ...] = ()
    claimed: tuple[Holder, ...] = ()
    ended: tuple[Holder, ...] = ()


class ProviderBook(Struct, frozen=True):
    """One provider, whole, as reports see it. Traits of an operator are kept apart: no report takes them away."""

    id: ProviderId
    name: str
    parent: ProviderId | None = None
    generation: int = 0
    inventories: Mapping[str, InventoryState] = {}
    traits: frozenset[str] = frozenset()
    operator_traits: frozenset[str] = frozenset()
    aggregates: frozenset[AggregateId] = frozenset()


class TreeBook(Struct, frozen=True):
    """One tree, whole and locked; `epoch` and `sequence` are those of the last report that was taken.

    Without providers it is a stump: what stays of a tree that was felled, root and all, so that one that is planted
    again under the same root never has a shape that the old one had, and a late report does not plant it. Its cell
    tells who felled it, and binds nobody.
    """

    root: ProviderId
    cell: str
    shape: int = 0
    epoch: int = 0
    sequence: int = 0
    providers: Mapping[ProviderId, ProviderBook] = {}


class Named(Struct, frozen=True):
    """What a batch of writes names, so that it can be locked and read: `trees` are providers whose whole trees it needs,
    of `providers` only where they stand. Of the names of providers it must know who bears them, of those of custom classes
    and traits whether they exist.
    """

    trees: frozenset[ProviderId] = frozenset()
    providers: frozenset[ProviderId] = frozenset()
    names: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()


class Forest(Struct, frozen=True):
    """The trees that a batch touches, by root, as far as they exist; stumps, as far as they are kept.

    `elsewhere` tells, of the providers that the batch names, those that stand in other trees: id to root. `names`
    tells who bears the names that it names. `classes` and `traits` are the custom ones that exist of those it names.
    """

    trees: Mapping[ProviderId, TreeBook]
    elsewhere: Mapping[ProviderId, ProviderId] = {}
    names: Mapping[str, ProviderId] = {}
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()


class TreeChanges(Struct, frozen=True):
    """What a batch writes: trees as they are now, whole; of these, `changed` are the providers to write.

    A provider in `changed` is new, stands in another tree, or differs from what is stored; its revision moves by one.
    `removed` are to be deleted, leaves first. The row of each root is written with the tree's shape, epoch and sequence; a
    tree without providers is kept as a stump, and one with providers leaves no stump of its root.

    `before` has those of `changed` that are stored and stay, as they are stored: their tree was locked when it was read, so
    that what did not change need not be looked at again.
    """

    trees: tuple[TreeBook, ...] = ()
    changed: tuple[ProviderId, ...] = ()
    removed: tuple[ProviderId, ...] = ()
    before: Mapping[ProviderId, ProviderBook] = {}


class NamedNames(Struct, frozen=True):
    """Custom names of classes and of traits that a batch is about."""

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()


class Names(Struct, frozen=True):
    """Those of them that exist, locked; each that is in use with one of the providers that use it."""

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    users_of_classes: Mapping[str, ProviderId] = {}
    users_of_traits: Mapping[str, ProviderId] = {}


class NameChanges(Struct, frozen=True):
    """What a batch about names writes."""

    new_classes: tuple[str, ...] = ()
    new_traits: tuple[str, ...] = ()
    gone_classes: tuple[str, ...] = ()
    gone_traits: tuple[str, ...] = ()
