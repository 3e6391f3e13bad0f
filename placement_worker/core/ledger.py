"""Placement's data as the deciding functions see it, and the changes that they return.

A store reads what a batch needs, under locks. The functions beside this file turn it, with orders, reports and
administrators' writes, into verdicts and changes. The store writes the changes as they are. Nothing here knows a
database: providers and consumers have their public ids.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Generic, TypeVar

from msgspec import Struct

from bus.message import AggregateId, ConsumerId, GroupId, ProviderId
from bus.messages.administration import KindOfNames
from bus.messages.placement import (
    NO_OWNER,
    ClaimResources,
    GroupMember,
    Holder,
    InventoryState,
    ReleaseClaim,
    ReportInventory,
    ResourceAmount,
    ServerGroup,
    SwapClaim,
)
from placement_worker.core.capacity import InventoryLimits

ClaimOrder = ClaimResources | SwapClaim | ReleaseClaim


Verdict = TypeVar("Verdict")
Changes = TypeVar("Changes")


# Types of consumers that hold what an instance gave up by a swap. On the instance's own host they have no place of their own:
# their rows name no host.
BESIDE_INSTANCES = ("CLEANUP", "MIGRATION")


class SentOrder(Struct, frozen=True, gc=False):
    """An order, and the one cell its sender may act for; None if it may act for all."""

    order: ClaimOrder
    speaks_for: str | None = None


class SentReport(Struct, frozen=True):
    """A report, and the one cell its sender may act for; None if it may act for all."""

    report: ReportInventory
    speaks_for: str | None = None


class Decision(Struct, Generic[Verdict, Changes], frozen=True):
    """One verdict for each order, report or write, in order, and everything they write together."""

    verdicts: tuple[Verdict, ...]
    changes: Changes


class Consumer(Struct, frozen=True, gc=False):
    """Something that holds resources, or held them once. Its row outlives its allocations, so that late messages are
    recognised.

    `attempt` is the highest one seen; 0 if the row was just made and nothing was seen yet. `ended_at` is set when that
    attempt has ended.
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
    """The columns of a provider that claims need. `shape` is the shape of its tree if it is a root, otherwise None.

    `limits` and `used` are those of its inventories, by class. `consumers` counts the consumers that have it as their host.
    """

    id: ProviderId
    root: ProviderId
    cell: str = ""
    generation: int = 0
    shape: int | None = None
    limits: Mapping[str, InventoryLimits] = {}
    used: Mapping[str, int] = {}
    consumers: int = 0


class GroupBook(Struct, frozen=True):
    """A locked server group. `members` are the consumers that live on a host as its members; a soft group needs none
    here, since it refuses nobody.
    """

    definition: ServerGroup
    members: tuple[tuple[ConsumerId, ProviderId], ...] = ()


class Ledger(Struct, frozen=True):
    """The locked rows that a batch of claims needs.

    `consumers` has each consumer that the batch names, also those just made. `held` has only those that hold something.
    `providers` has each existing provider that an order names, that a consumer holds or lives on, and the roots of the
    shapes that were seen. All keys are the integers of the ids: a UUID is hashed and compared in Python, which would cost
    as much as deciding the batch. `classes` are those of the requested custom classes that exist. `groups` are
    those of the named server groups that exist.
    """

    consumers: Mapping[int, Consumer]
    held: Mapping[int, tuple[ResourceAmount, ...]]
    providers: Mapping[int, ProviderRow]
    classes: frozenset[str] = frozenset()
    groups: Mapping[int, GroupBook] = {}


class Touched(Struct, frozen=True, gc=False):
    """A provider from which a claim took or to which it gave back. Its revision moves by one; the other fields are its
    new values.
    """

    provider: ProviderId
    generation: int
    used: Mapping[str, int]
    consumers: int = 0


class ClaimChanges(Struct, frozen=True):
    """Everything that a batch of claims writes. All values are those after the batch, not differences.

    `consumers` are rows to keep as they are here. `forgotten` are rows to delete: they were made and not used, or no
    attempt can ask for them. `held` replaces all that a consumer holds. `counted` has the number of consumers on
    providers that are written together with their trees. `groups` are server groups that did not exist; `joined` and
    `left` are for the feed: their members' rows are among `consumers`.
    """

    consumers: tuple[Consumer, ...] = ()
    forgotten: tuple[ConsumerId, ...] = ()
    held: tuple[tuple[ConsumerId, tuple[ResourceAmount, ...]], ...] = ()
    touched: tuple[Touched, ...] = ()
    counted: tuple[tuple[ProviderId, int], ...] = ()
    groups: tuple[ServerGroup, ...] = ()
    claimed: tuple[Holder, ...] = ()
    ended: tuple[Holder, ...] = ()
    joined: tuple[GroupMember, ...] = ()
    left: tuple[Holder, ...] = ()


class ProviderBook(Struct, frozen=True):
    """One provider with all its contents, as reports see it. An operator's traits are separate: no report removes them."""

    id: ProviderId
    name: str
    parent: ProviderId | None = None
    generation: int = 0
    inventories: Mapping[str, InventoryState] = {}
    traits: frozenset[str] = frozenset()
    operator_traits: frozenset[str] = frozenset()
    aggregates: frozenset[AggregateId] = frozenset()


class TreeBook(Struct, frozen=True):
    """One whole tree, locked. `epoch` and `sequence` are those of the last accepted report.

    Without providers it is a tombstone: it stays when a tree is deleted with its root. A new tree under the same root
    then never has a shape that the old one had, and a late report does not recreate the old one. Its cell tells which
    cell deleted the tree; it binds no one.
    """

    root: ProviderId
    cell: str
    shape: int = 0
    epoch: int = 0
    sequence: int = 0
    providers: Mapping[ProviderId, ProviderBook] = {}


class ForestKeys(Struct, frozen=True):
    """The keys that a batch of writes must lock and read: the whole trees of `trees`; of `providers` only which tree each is in.
    Of `names` it must know which provider has each, of custom `classes` and `traits` whether they exist.
    """

    trees: frozenset[ProviderId] = frozenset()
    providers: frozenset[ProviderId] = frozenset()
    names: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()


class Forest(Struct, frozen=True):
    """The trees that a batch touches, by root, as far as they exist, and their tombstones.

    `elsewhere` has the root of each named provider that is in another tree. `names` has the provider of each named
    provider name. `classes` and `traits` are those of the named custom ones that exist.
    """

    trees: Mapping[ProviderId, TreeBook]
    elsewhere: Mapping[ProviderId, ProviderId] = {}
    names: Mapping[str, ProviderId] = {}
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()


class TreeChanges(Struct, frozen=True):
    """Everything that a batch of tree writes writes: `trees` as they are now, and their providers to write (`changed`).

    A provider in `changed` is new, is now in another tree, or differs from what is stored. Its revision moves by one.
    `removed` are to be deleted, leaves first. Each root's row is written with the tree's shape, epoch and sequence. A
    tree without providers is kept as a tombstone; one with providers removes the tombstone of its root.

    `before` has the stored state of those in `changed` that stay. Their tree was locked before it was read, so columns
    that did not change need no second look.
    """

    trees: tuple[TreeBook, ...] = ()
    changed: tuple[ProviderId, ...] = ()
    removed: tuple[ProviderId, ...] = ()
    before: Mapping[ProviderId, ProviderBook] = {}


# Custom names of classes and of traits that a batch writes.
NameKeys = Mapping[KindOfNames, frozenset[str]]


class NamesInUse(Struct, frozen=True):
    """Those of the names of one kind that exist, locked; and for each name in use, one provider that uses it."""

    existing: frozenset[str] = frozenset()
    users: Mapping[str, ProviderId] = {}


class NameChange(Struct, frozen=True):
    """The names of one kind (traits, or resource classes) that a batch of writes makes, and those that it deletes."""

    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


StoredNames = Mapping[KindOfNames, NamesInUse]
NameChanges = Mapping[KindOfNames, NameChange]
