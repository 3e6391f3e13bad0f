"""Placement's data as the deciding functions see it, and the changes that they return.

A store reads what a batch needs, under locks. The functions beside this file turn it, with orders, reports and
administrators' writes, into verdicts and changes. The store writes the changes as they are. Nothing here knows a
database: providers and consumers have their public ids.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Generic, TypeVar

from msgspec import Struct

from bus.messages.audit import MendedClaim
from bus.messages.books import ConsumerAllocations, KindOfNames
from bus.messages.placement import (
    NO_OWNER,
    ClaimResources,
    ReleaseClaim,
    SwapClaim,
)
from engine.inventories import (
    AggregateId,
    ConsumerId,
    GroupId,
    GroupMember,
    Holder,
    InventoryState,
    ProviderId,
    ResourceAmount,
    ServerGroup,
    capacity_of,
)

ClaimOrder = ClaimResources | SwapClaim | ReleaseClaim


class InventoryLimits(Struct, frozen=True, gc=False):
    """The limits of one inventory. Together with its usage they decide whether a claim fits."""

    capacity: int
    min_unit: int
    max_unit: int
    step_size: int
    reserved: int = 0


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


Order_co = TypeVar("Order_co", covariant=True)
Verdict = TypeVar("Verdict")
Changes = TypeVar("Changes")


class Sent(Struct, Generic[Order_co], frozen=True, gc=False):
    """A claim, swap, release, report or reshape, and the one cell its sender may act for (`speaks_for`; None if all cells)."""

    order: Order_co
    speaks_for: str | None = None


class BatchDecision(Struct, Generic[Verdict, Changes], frozen=True):
    """The result of judging a batch: a verdict for each order, report or write, in their order, and the changes to store."""

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
    # A MIGRATION counts these amounts of its project's quota: its instance gave them up by the move, and gets them back by a revert.
    kept: tuple[tuple[str, int], ...] = ()


class Quota(Struct, frozen=True):
    """The limits of a project, and what its consumers use: by resource class, and their number by `INSTANCES`.

    `used` has all classes, not only those that are limited: so another limit needs no new count.
    """

    project: str
    limits: Mapping[str, int] = {}
    used: Mapping[str, int] = {}


class QuotaBook(Struct, frozen=True):
    """The locked quotas that a batch of orders names. A project without limits has none stored, and one here that counts what
    it uses. `classes` are the custom resource classes that the batch names and that exist.
    """

    quotas: Mapping[str, Quota] = {}
    classes: frozenset[str] = frozenset()


# The project of a server group that consumers of all projects may join.
SHARED = ""


class GroupRow(Struct, frozen=True):
    """A server group: how its members are placed, and the project for which the API level has claimed a member. None: only
    cells have.
    """

    definition: ServerGroup
    project: str | None = None


class GroupBook(Struct, frozen=True):
    """A locked server group: its row, and its members with the host of each. The members of a soft group are not read, since
    it refuses nobody.
    """

    row: GroupRow
    members: tuple[tuple[ConsumerId, ProviderId], ...] = ()


class Ledger(Struct, frozen=True):
    """The locked rows that a batch of claims, swaps, releases or allocation writes needs.

    `consumers` has each consumer that the batch names, also those whose rows the store has just inserted. `held` has only
    consumers that hold something. `providers` has the existing ones among these: providers and roots that the batch names,
    providers that a consumer holds something of, and hosts of consumers. These are found by the integers of their ids: a UUID
    is hashed in Python (0.48 us a lookup instead of 0.11), which would cost as much as deciding the batch. `classes` are the custom resource
    classes, and `groups` the server groups, that the batch names and that exist. `quotas` are those of its projects: only a
    project with a limit has one. `places` are those of the hosts that the batch names and of groups' members, as far as a group has hard
    rules.
    """

    consumers: Mapping[int, Consumer]
    held: Mapping[int, tuple[ResourceAmount, ...]]
    providers: Mapping[int, ProviderRow]
    classes: frozenset[str] = frozenset()
    groups: Mapping[GroupId, GroupBook] = {}
    quotas: Mapping[str, Quota] = {}
    places: Mapping[ProviderId, str] = {}


class Touched(Struct, frozen=True, gc=False):
    """A provider whose usage, generation or number of consumers a batch of claims changes; the fields are its new values.
    The store also raises its revision by one.
    """

    provider: ProviderId
    generation: int
    used: Mapping[str, int]
    consumers: int = 0


class HolderChanges(Struct, frozen=True):
    """The claims that began and ended, and the members that joined and left groups: for the log."""

    claimed: tuple[Holder, ...] = ()
    ended: tuple[Holder, ...] = ()
    joined: tuple[GroupMember, ...] = ()
    left: tuple[Holder, ...] = ()


class ClaimChanges(HolderChanges, frozen=True, kw_only=True):
    """Everything that the store writes after a batch of claims. All values are those after the batch, not differences.

    `consumers` are the changed rows. `forgotten` are the ids of rows to delete: they were inserted and not used, or no
    later message can refer to them. `held` replaces all that a consumer holds. After a reshape, `counted` has the numbers of
    consumers of the providers that `TreeChanges` writes; all others are in `touched`. `groups` are new or changed server groups.
    `quotas` are those of which another amount is used now.
    """

    consumers: tuple[Consumer, ...] = ()
    forgotten: tuple[ConsumerId, ...] = ()
    held: tuple[tuple[ConsumerId, tuple[ResourceAmount, ...]], ...] = ()
    touched: tuple[Touched, ...] = ()
    counted: tuple[tuple[ProviderId, int], ...] = ()
    groups: tuple[GroupRow, ...] = ()
    quotas: tuple[Quota, ...] = ()


class ProviderBook(Struct, frozen=True):
    """One provider with all that reports and administrators write of it. No report removes `operator_traits`.

    `made_by_name`: it was written by name, and no report has named its inventories: no report removes it. `operator_place` counts
    before the reported place, if it is not empty.
    """

    id: ProviderId
    name: str
    parent: ProviderId | None = None
    generation: int = 0
    inventories: Mapping[str, InventoryState] = {}
    traits: frozenset[str] = frozenset()
    operator_traits: frozenset[str] = frozenset()
    aggregates: frozenset[AggregateId] = frozenset()
    made_by_name: bool = False
    reported_place: str = ""
    operator_place: str = ""

    @property
    def place(self) -> str:
        return self.operator_place or self.reported_place


class TreeBook(Struct, frozen=True):
    """One whole tree, locked. `epoch` and `sequence` are those of the last accepted report.

    A `TreeBook` without providers is a tombstone: it stays when a tree is deleted with its root. A new tree under the same
    root then never has a shape that the old one had, and a late report does not recreate the old one. A tombstone's `cell`
    is that of the deleted tree; another cell may still create a new tree under this root.
    """

    root: ProviderId
    cell: str
    shape: int = 0
    epoch: int = 0
    sequence: int = 0
    providers: Mapping[ProviderId, ProviderBook] = {}


class ForestKeys(Struct, frozen=True):
    """The keys of all rows that a batch of reports or provider writes must lock and read.

    The trees that contain the providers in `trees` are locked and read whole. Of `providers` only the root of each is read.
    `names` are names of providers, and it is read which provider has each name. `classes` and `traits` are names too, and it
    is read which of the custom ones exist.
    """

    trees: frozenset[ProviderId] = frozenset()
    providers: frozenset[ProviderId] = frozenset()
    names: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()


class Forest(Struct, frozen=True):
    """The existing trees that a batch of reports or provider writes needs, by root, and the tombstones of deleted ones.

    `elsewhere` has the root of each provider that the batch names and that is in none of `trees`. `names` tells which
    provider has a name that the batch wants to give. `classes` and `traits` are the custom ones that the batch names and
    that exist.
    """

    trees: Mapping[ProviderId, TreeBook]
    elsewhere: Mapping[ProviderId, ProviderId] = {}
    names: Mapping[str, ProviderId] = {}
    # The cells of the trees that `names` lead to.
    cells: Mapping[ProviderId, str] = {}
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()


class TreeChanges(Struct, frozen=True):
    """Everything that the store writes after a batch of reports or provider writes.

    `trees` are the changed trees in their new state, and `changed` are those of their providers that must be written.

    A provider in `changed` is new, is now in another tree, or differs from what is stored. Its revision moves by one.
    `removed` are to be deleted, leaves first. Each root's row is written with the tree's shape, epoch and sequence. A
    tree without providers is kept as a tombstone; one with providers removes the tombstone of its root. The store writes only what
    differs from what it has read under the trees' locks.
    """

    trees: tuple[TreeBook, ...] = ()
    changed: tuple[ProviderId, ...] = ()
    removed: tuple[ProviderId, ...] = ()


# Custom names of classes and of traits that a batch writes.
NameKeys = Mapping[KindOfNames, frozenset[str]]


class NamesInUse(Struct, frozen=True):
    """Which of the classes (or of the traits) that a batch names exist, locked; and one provider for each that is in use."""

    existing: frozenset[str] = frozenset()
    users: Mapping[str, ProviderId] = {}


class NameChange(Struct, frozen=True):
    """The custom traits (or the custom resource classes) that a batch of writes creates, and those that it deletes."""

    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


StoredNames = Mapping[KindOfNames, NamesInUse]
NameChanges = Mapping[KindOfNames, NameChange]


Owned = ClaimOrder | ConsumerAllocations | MendedClaim


class ClaimKeys(Struct, frozen=True):
    """The rows that a batch must lock and read. Each is named once; consumers and groups are in the order of locking.

    `owned` are the orders and writes that may give something to a project: each of a batch, since a later one may be refused. They are
    read only if some project has a limit.

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
    owned: Sequence[Owned] = ()

    def projects(self) -> set[str]:
        """The projects for which the batch may make new consumers. A swap makes none for another project than its instance's."""
        return {
            one.project or NO_OWNER for one in self.owned if not isinstance(one, SwapClaim | ReleaseClaim)
        }

    def maybe_known(self) -> list[ConsumerId]:
        """The consumers that the batch does not merely claim for: their rows say of which projects they are."""
        return [one for one in self.consumers if one.int not in self.claims]


def keys_of_shares(
    consumers: Iterable[ConsumerId],
    providers: Iterable[ProviderId],
    classes: Iterable[str] = (),
    groups: Iterable[ServerGroup] = (),
    allocations: Sequence[ConsumerAllocations] = (),
    *,
    owned: Iterable[Owned] = (),
) -> ClaimKeys:
    """The rows to lock for writes that name consumers and providers. The arguments may contain duplicates."""
    return ClaimKeys(
        consumers=sorted(set(consumers)),
        providers=list(dict.fromkeys(providers)),
        groups=[one for _, one in sorted({one.id: one for one in groups}.items())],
        claims={},
        allocations={one.consumer.int: one for one in allocations},
        classes=frozenset(classes),
        owned=(*allocations, *owned),
    )


def limits_in(inventories: Mapping[str, InventoryState]) -> dict[str, InventoryLimits]:
    return {resource: _limits_of(inventory) for resource, inventory in inventories.items()}


def _limits_of(inventory: InventoryState) -> InventoryLimits:
    return InventoryLimits(
        capacity_of(inventory),
        inventory.min_unit,
        inventory.max_unit,
        inventory.step_size,
        inventory.reserved,
    )


def used_in(inventories: Mapping[str, InventoryState]) -> dict[str, int]:
    return {resource: inventory.used for resource, inventory in inventories.items()}
