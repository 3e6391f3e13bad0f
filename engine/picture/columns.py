"""The providers that a reader knows, their trees, and facts about hosts as columns: one row for each host, one array for each fact.

Arrays are longer than the number of rows, and are doubled when rows run out; readers cut them at `rows`. Facts that are
only read for single hosts are in lists, which are faster for that.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.candidates.columns import BitSets, Flags, Floats, Ints, Scalar, Stock, longer
from engine.candidates.provider_index import SHARES, ProviderIndex
from engine.hosts import NODE, HostState, Supported
from engine.inventories import (
    INTEGER_MAX,
    InventoryState,
    ProviderId,
    ProviderState,
    ProviderUsage,
    capacity_of,
)
from engine.places import domain_of

# The providers that a reader knows, and how their states are merged: the later state stays, and a deleted provider goes.
#
# States arrive in any order and more than once. The higher revision of one provider is later. One provider after another
# may have the same public id; then the higher internal id is later, since internal ids are never used again.
#
# Usage, which claims change, arrives by itself and is stored beside the provider's state. A later state replaces a state,
# and a later usage replaces a usage, whichever comes first. So nothing is lost when usage arrives before the state that it
# belongs to.
#
# A published state may be false: a placement worker has a bug, or somebody forged the message. By its revision such a
# state would win against all true ones for a long time. And a database that was restored from a backup counts from there
# again. Placement's answers are true. A provider's revision only grows, so a state that the reader had before it asked
# placement, and that is later than the one in the answer, was never written.


# Late messages about a deleted provider arrive within seconds; so many deleted providers are remembered.
GONE_MAX = 100_000


class KnownBefore(NamedTuple):
    """The reader's knowledge before it asked placement: the revisions of providers, by internal id, and the number of
    deletions that it had heard of.
    """

    revisions: Mapping[int, int]
    deletions: int


class KnownProviders:
    """The latest known state and usage of each provider.

    A subclass groups or names the providers as its readers need them: it is told of each change by `_changed`.
    """

    def __init__(self) -> None:
        self._index = ProviderIndex()
        # How many readers use the current index.
        self._readers = 0
        # Usages that the index does not have yet: nearly all are followed by a later one before the index is read.
        self._unindexed: dict[int, ProviderUsage] = {}
        # By internal id.
        self._states: dict[int, ProviderState] = {}
        # Only usages that are later than the state.
        self._usages: dict[int, ProviderUsage] = {}
        # The internal ids of deleted providers, in the order of their deletion, each with its number in that order.
        self._gone: dict[int, int] = {}
        self._deletions = 0

    def _changed(self, before: ProviderState | None, after: ProviderState | None) -> None:
        """A provider has another state. It is new if there is none `before`, and is gone if there is none `after`."""

    # Reading

    @property
    def index(self) -> ProviderIndex:
        """All providers as columns, for the search."""
        if self._unindexed:
            self._writable().use([(usage.internal, usage.used) for usage in self._unindexed.values()])
            self._unindexed.clear()
        return self._index

    @contextmanager
    def reading(self) -> Iterator[ProviderIndex]:
        """Keep the current index unchanged for a reader that lets other tasks run in between: writes during that time go
        into a copy.
        """
        index = self.index
        self._readers += 1
        try:
            yield index
        finally:
            if self._index is index:
                self._readers -= 1

    def internal_of(self, provider: ProviderId) -> int:
        """The internal id of the provider that has this id now; -1 if none is known."""
        row = self._index.row_of(provider)
        return -1 if row is None else self._index.state(row).internal

    def internals(self) -> frozenset[int]:
        """The internal ids of all known providers."""
        return frozenset(self._states)

    def gone(self) -> frozenset[int]:
        """The internal ids of providers that are known to be deleted."""
        return frozenset(self._gone)

    def behind(self, revisions: Mapping[int, int], known: Iterable[int]) -> list[int]:
        """The internal ids of providers about which a change was missed. `revisions` has all of placement's providers.
        Those that are older here are behind; so are those that were `known` before and are not in it, but still are here.
        """
        old = [internal for internal, revision in revisions.items() if self._lacks(internal, revision)]
        over = [internal for internal in known if internal not in revisions and internal in self._states]
        return old + over

    def _lacks(self, internal: int, revision: int) -> bool:
        """Is a provider, which is not known to be gone, older here than this revision?"""
        state, usage = self._states.get(internal), self._usages.get(internal)
        if state is None:
            return internal not in self._gone
        if usage is None:
            return state.revision < revision
        return usage.revision < revision or state.revision < usage.base

    # Changes, as they are published

    def merge(self, states: Iterable[ProviderState]) -> None:
        """Merge these states of providers; an older one, or one of a deleted provider, changes nothing."""
        for state in states:
            known = self._states.get(state.internal)
            if known is None:
                earlier = self.internal_of(state.id)
                if state.internal in self._gone or earlier > state.internal:
                    continue
                if earlier >= 0:
                    # The provider that had this id before is gone, though its deletion has not arrived yet.
                    self.delete((earlier,))
            # An internal id is never used again, so a message that gives it to another provider is wrong.
            elif state.revision <= known.revision or state.id.int != known.id.int:
                continue
            self._states[state.internal] = state
            self._put_in_index(state)
            self._changed(known, state)

    def merge_usages(self, usages: Iterable[ProviderUsage]) -> tuple[list[ProviderUsage], bool]:
        """Merge usages. Returns those that are new; and whether the states that all of them are based on are known, or
        their providers known to be gone.
        """
        news: list[ProviderUsage] = []
        has_all = True
        for usage in usages:
            internal, revision = usage.internal, usage.revision
            if internal in self._gone:
                continue
            known, before = self._states.get(internal), self._usages.get(internal)
            if known is None or known.revision < usage.base:
                has_all = False
            if (before is not None and revision <= before.revision) or (
                known is not None and revision <= known.revision
            ):
                continue
            self._usages[internal] = self._unindexed[internal] = usage
            news.append(usage)
        return news, has_all

    def delete(self, internals: Iterable[int]) -> None:
        """Remove providers that are deleted for good, and ignore late messages about them."""
        for internal in internals:
            self._deletions += 1
            self._gone[internal] = self._deletions
            if len(self._gone) > GONE_MAX:
                del self._gone[next(iter(self._gone))]
            self._drop(internal)

    def discard(self, internals: Iterable[int]) -> None:
        """Remove these providers. Messages about them count again: it is not certain that they existed."""
        for internal in internals:
            self._drop(internal)

    def undelete(self, internals: Iterable[int]) -> None:
        """Accept messages about these providers again: contrary to an earlier message, they are not deleted."""
        for internal in internals:
            self._gone.pop(internal, None)

    # Answers of placement, which are true

    def known_now(self) -> KnownBefore:
        """The latest known revision of each provider, also of those of which only usage is known."""
        usages = {internal: usage.revision for internal, usage in self._usages.items()}
        states = {internal: state.revision for internal, state in self._states.items()}
        return KnownBefore(states | usages, self._deletions)

    def deleted_now(self) -> KnownBefore:
        """As `known_now`, without revisions."""
        return KnownBefore({}, self._deletions)

    def merge_read(self, states: Iterable[ProviderState], before: KnownBefore) -> None:
        """Merge these states, which placement has answered. States that the reader had `before` it asked, and that
        contradict the answer, are false: they are dropped.
        """
        states = tuple(states)
        for state in states:
            self._drop_false(state, before)
        self.merge(states)

    def end_reading_of_all(self, there: AbstractSet[int], before: KnownBefore) -> None:
        """Placement has answered with all providers there are. Those that were known `before` and are not among them go."""
        last = max(there, default=0)
        over = [internal for internal in before.revisions if internal not in there]
        self.delete(internal for internal in over if internal < last)
        # Placement may never have given these numbers: the next new providers may get them.
        self.discard(internal for internal in over if internal > last)

    def _drop_false(self, read: ProviderState, before: KnownBefore) -> None:
        if self._gone.get(read.internal, before.deletions + 1) <= before.deletions:
            del self._gone[read.internal]
        known = self._states.get(read.internal)
        is_other = known is not None and (
            known.id.int != read.id.int or (known.revision == read.revision and known != read)
        )
        if is_other or before.revisions.get(read.internal, 0) > read.revision:
            self._drop(read.internal)
        namesake = self.internal_of(read.id)
        if namesake > read.internal and namesake in before.revisions:
            # Internal ids grow, so it would be the id's later provider. But placement has the earlier one.
            self._drop(namesake)

    def _drop(self, internal: int) -> None:
        self._usages.pop(internal, None)
        state = self._states.pop(internal, None)
        if state is not None:
            self._writable().drop(internal)
            self._changed(state, None)

    # The index

    def _writable(self) -> ProviderIndex:
        if self._readers:
            self._index, self._readers = self._index.copy(), 0
        return self._index

    def _put_in_index(self, state: ProviderState) -> None:
        self._writable().put(state)
        self._unindexed.pop(state.internal, None)
        usage = self._usages.get(state.internal)
        if usage is None:
            return
        if usage.revision > state.revision:
            self._unindexed[state.internal] = usage
        else:
            del self._usages[state.internal]


# The trees of the providers that a scheduler knows: which root each belongs to, and what a tree has in all.


class Tree:
    """A root provider and all providers below it, by internal id. `row` is the tree's row in the picture's columns (-1:
    none), and `classes` are its resource classes there.
    """

    __slots__ = ("classes", "providers", "root", "row")

    def __init__(self, root: ProviderId) -> None:
        self.root = root
        self.row = -1
        self.providers: dict[int, ProviderState] = {}
        self.classes: frozenset[str] = frozenset()

    @property
    def top(self) -> ProviderState | None:
        """The state of the root provider; None while only children are known."""
        return next((state for state in self.providers.values() if state.id.int == self.root.int), None)

    @property
    def is_host(self) -> bool:
        """Is this tree a host? A root that shares its inventories by aggregates is none."""
        top = self.top
        return top is not None and SHARES not in top.traits

    @property
    def traits(self) -> tuple[str, ...]:
        """The traits of all providers in this tree."""
        return tuple(dict.fromkeys(trait for state in self.providers.values() for trait in state.traits))

    @property
    def shape(self) -> int:
        # A child's state may arrive before its root's; both name the shape of the tree.
        return max([state.shape for state in self.providers.values()], default=0)


class Trees(KnownProviders):
    """All provider trees. Ids are looked up by their integers, since the hash of a UUID is computed in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.by_root: dict[int, Tree] = {}
        # By the internal id of each of its providers.
        self.with_provider: dict[int, Tree] = {}
        # Trees of which more than usage changed since the picture was last written, in this order; and providers of which
        # only usage changed, with their trees.
        self._unwritten: dict[Tree, None] = {}
        self._used: list[tuple[Tree, ProviderState]] = []

    def take_changes(self) -> tuple[Iterable[Tree], list[tuple[Tree, ProviderState]]]:
        """The trees of which more than usage changed since the last call, and the providers of which only usage did."""
        taken = self._unwritten, self._used
        self._unwritten, self._used = {}, []
        return taken

    def _changed(self, before: ProviderState | None, after: ProviderState | None) -> None:
        if (
            before is not None
            and after is not None
            and before.shape == after.shape
            and before.root.int == after.root.int
            and before.name == after.name
        ):
            # Only its usage.
            tree = self.with_provider[after.internal]
            tree.providers[after.internal] = after
            self._used.append((tree, after))
            return
        left = None if before is None else self._leave_tree(before)
        if after is not None:
            self._join_tree(after)
        if left is not None and not left.providers:
            del self.by_root[left.root.int]

    def _leave_tree(self, state: ProviderState) -> Tree:
        tree = self.with_provider.pop(state.internal)
        del tree.providers[state.internal]
        self._unwritten[tree] = None
        return tree

    def _join_tree(self, state: ProviderState) -> None:
        tree = self.by_root.get(state.root.int)
        if tree is None:
            tree = self.by_root[state.root.int] = Tree(state.root)
        self.with_provider[state.internal] = tree
        tree.providers[state.internal] = state
        self._unwritten[tree] = None

    def used(self, state: ProviderState) -> Mapping[str, int]:
        """The latest known used amount of each class at this provider."""
        usage = self._usages.get(state.internal)
        if usage is not None:
            return usage.used
        return {resource: inventory.used for resource, inventory in state.inventories.items()}

    def generation_of(self, root: ProviderId) -> int:
        """The latest known generation of this root provider."""
        top = self.by_root[root.int].top
        assert top is not None, "the root is known"
        usage = self._usages.get(top.internal)
        return top.generation if usage is None else max(top.generation, usage.generation)

    def consumers_of(self, state: ProviderState) -> int:
        """The number of consumers in the latest known usage of this provider."""
        usage = self._usages.get(state.internal)
        return state.consumers if usage is None else usage.consumers

    def stocked(self, tree: Tree) -> dict[str, tuple[InventoryState, int]]:
        """For each class in the tree, the inventory and the used amount. If the tree has children, both are sums over
        all providers; such an inventory lacks the limits of single providers, such as max_unit.
        """
        if tree.top is None:
            return {}
        if len(tree.providers) == 1:
            used = self.used(tree.top)
            # The usage may be later, and lack a class that is gone by now.
            return {
                resource: (inventory, used.get(resource, 0))
                for resource, inventory in tree.top.inventories.items()
            }
        capacities: dict[str, int] = {}
        for state in tree.providers.values():
            for resource, inventory in state.inventories.items():
                capacities[resource] = capacities.get(resource, 0) + capacity_of(inventory)
        return {
            resource: (InventoryState(total=capacity, max_unit=INTEGER_MAX), self.used_in_all(tree, resource))
            for resource, capacity in capacities.items()
        }

    def used_in_all(self, tree: Tree, resource: str) -> int:
        """How much of the class is used in the tree. A provider counts as full at most: what one has used beyond its capacity takes no
        room from another.
        """
        return sum(
            min(self.used(state).get(resource, 0), capacity_of(state.inventories[resource]))
            for state in tree.providers.values()
            if resource in state.inventories
        )


# Which hosts have which images cached, as they told last; hosts are named by their rows.


class ImageCaches:
    def __init__(self) -> None:
        self._rows: dict[str, set[int]] = {}
        self._of_row: dict[int, frozenset[str]] = {}

    def put(self, row: int, images: Iterable[str]) -> bool:
        """Replace the cached images of the host in this row. Returns whether they are others than before."""
        before, now = self._of_row.pop(row, frozenset()), frozenset(images)
        for image in before - now:
            self._rows[image].discard(row)
            if not self._rows[image]:
                del self._rows[image]
        for image in now - before:
            self._rows.setdefault(image, set()).add(row)
        if now:
            self._of_row[row] = now
        return now != before

    def knows(self, image: str) -> bool:
        """Does any host have this image in its cache?"""
        return image in self._rows

    def having(self, image: str, length: int) -> Flags:
        """A flag for each of `length` rows: does this host have the image in its cache?"""
        flags = np.zeros(length, dtype=np.bool_)
        flags[list(self._rows.get(image, ()))] = True
        return flags


ROWS_AT_FIRST = 64

# Codes of profiles that no host has any more are given up when there are more than twice as many as hosts, and this many.
PROFILES_KEPT = 256
# Metrics by other names are not kept: each name is a column over all hosts.
METRIC_NAMES_MAX = 256

Named = TypeVar("Named", bound=Hashable)


class PictureStock(Stock):
    """One resource class on all hosts; a compound host has the sums of its tree.

    `held` are the amounts of this scheduler's choices that placement has not answered yet: they are not free either.
    """

    __slots__ = ("held",)

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.held = np.zeros(length, dtype=np.int64)

    def grow(self, length: int) -> None:
        super().grow(length)
        self.held = longer(self.held, length)

    def clear(self, row: int) -> None:
        """Remove the host's inventory of this class; unanswered choices stay counted."""
        super().clear(row)
        self.use(row, 0)

    def use(self, rows: int | Ints, used: int | Ints) -> None:
        self.used[rows] = used
        self.free[rows] = self.capacity[rows] - used - self.held[rows]

    def hold(self, rows: Ints, amounts: Ints) -> None:
        """Add these amounts to those that unanswered choices hold; a row may be named several times."""
        np.add.at(self.held, rows, amounts)
        np.subtract.at(self.free, rows, amounts)


class Codes(Generic[Named]):
    """Small numbers for names, so that columns hold and compare numbers."""

    def __init__(self) -> None:
        self.names: list[Named] = []
        self._codes: dict[Named, int] = {}

    def code(self, name: Named) -> int:
        """The code of a name; a new one if it has none yet."""
        code = self._codes.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
        return code

    def find(self, name: Named) -> int:
        """The code of a name; -1, which no row has, if no host has had this name."""
        return self._codes.get(name, -1)


class HostProfile(NamedTuple):
    """The kind and the capabilities of a host, as it describes itself. Many hosts have the same, so plugins judge each profile once."""

    hypervisor_type: str = ""
    hypervisor_version: int = 0
    supports: tuple[Supported, ...] = ()
    capabilities: tuple[tuple[str, str], ...] = ()


class Column(Generic[Scalar]):
    """One fact about hosts: an array of numbers of this kind, with an entry for each host's row. A new row has 0.

    `told` gives the entry of a host in the host registry, if the registry tells this fact.
    """

    def __init__(self, kind: type[Scalar], told: Callable[[HostState], int] | None = None) -> None:
        self.kind = kind
        self.told = told

    def __get__(self, columns: object, owner: type) -> NDArray[Scalar]:
        raise AttributeError("an instance of PictureColumns has the array under this name")


class PictureColumns:
    """The facts about all hosts. A new fact is one line here; if the registry does not tell it, the picture writes it."""

    # The row belongs to a host.
    present = Column(np.bool_)
    # The host registry knows the host.
    registered = Column(np.bool_, lambda _: True)
    up = Column(np.bool_, lambda host: host.up)
    enabled = Column(np.bool_, lambda host: host.setting.mode == "up")
    # Placement has its provider tree, with or without children.
    provided = Column(np.bool_)
    nested = Column(np.bool_)
    # The host registry and placement name the same cell for it.
    consistent = Column(np.bool_)
    # It is a bare-metal node.
    node = Column(np.bool_, lambda host: host.kind == NODE)
    # The row of its root in the provider index; -1 without a provider.
    root = Column(np.intp)
    cell = Column(np.int64)
    # The zone of its aggregates; else the one that the host reports.
    zone = Column(np.int64)
    # The code of the set of its root provider's aggregates.
    aggregates = Column(np.int64)
    # The code of its place.
    place = Column(np.int64)
    # The code of the set of projects that may use it; the empty set stands for all.
    projects = Column(np.int64)
    # The code of its `HostProfile`.
    profile = Column(np.int64)
    hypervisor_version = Column(np.int64, lambda host: host.hypervisor_version)
    # How many instances placement counts there.
    consumers = Column(np.int64)
    # How many choices of this scheduler for it are unanswered.
    holding = Column(np.int64)
    io_ops = Column(np.int64, lambda host: host.io_ops)
    failed_builds = Column(np.int64, lambda host: host.failed_builds)

    def __init__(self) -> None:
        self.rows = 0
        self._length = ROWS_AT_FIRST
        for name, each in _ARRAYS.items():
            setattr(self, name, np.zeros(self._length, dtype=each.kind))
        # NaN where a host does not report the metric.
        self.metrics: dict[str, Floats] = {}
        self.images = ImageCaches()
        self.ids: list[ProviderId] = []
        self.names: list[str] = []
        self.kinds: list[str] = []
        self.shapes: list[int] = []
        self.fingerprints: list[str] = []
        self.stocks: dict[str, PictureStock] = {}
        self.cells = Codes[str]()
        # By their codes: the cells that are down, and why.
        self.cells_down: Mapping[int, str] = {}
        self.zones = Codes[str]()
        self.project_sets = Codes[tuple[str, ...]]()
        self.project_sets.code(())
        self.profiles = Codes[HostProfile]()
        self.profiles.code(HostProfile())
        self.places, self.domains = Codes[str](), Codes[str]()
        self.places.code("")
        self.domains.code("")
        # By level: the code of the domain in which each place is, by the place's code.
        self._domains_of: dict[int, Ints] = {}
        self.traits = BitSets(self._length)
        self.traits_of: list[tuple[str, ...]] = []
        self._free_rows: list[int] = []

    def add(self, host: ProviderId) -> int:
        row = self._free_rows.pop() if self._free_rows else self._append(host)
        self.ids[row] = host
        self.present[row] = True
        return row

    def give_back(self, row: int) -> None:
        """Clear the row of a host that is gone, and on which nothing is held: the next new host may get the row."""
        for name in _ARRAYS:
            getattr(self, name)[row] = 0
        self.put_metrics(row, {})
        self.images.put(row, ())
        self.put_traits(row, ())
        self._free_rows.append(row)

    def stock(self, resource: str) -> PictureStock:
        stock = self.stocks.get(resource)
        if stock is None:
            stock = self.stocks[resource] = PictureStock(self._length)
        return stock

    def domain(self, level: int) -> Ints:
        """The code of the domain of this level for each row; 0: none. A level is worked out when something first asks for it."""
        known, places = self._domains_of.get(level), self.places.names
        if known is None or len(known) < len(places):
            known = np.array([self.domains.code(domain_of(place, level)) for place in places], dtype=np.int64)
            self._domains_of[level] = known
        return known[self.place]

    def put_traits(self, row: int, traits: tuple[str, ...]) -> None:
        if traits != self.traits_of[row]:
            self.traits.put(row, self.traits_of[row], traits)
            self.traits_of[row] = traits

    def put_host(self, row: int, host: HostState | None) -> None:
        """Write what the host registry tells of the host in this row; None if the registry does not have it."""
        for name, told in _TOLD:
            getattr(self, name)[row] = 0 if host is None else told(host)
        self.kinds[row] = host.kind if host else ""
        self.projects[row] = self.project_sets.code(host.projects if host and host.kind == NODE else ())
        self.profile[row] = self.profiles.code(_profile_of(host) if host else HostProfile())
        if len(self.profiles.names) > max(PROFILES_KEPT, 2 * self.rows):
            self._recode_profiles()

    def _recode_profiles(self) -> None:
        """Drop profiles that no host has any more: a host that describes itself anew each time would else fill the memory."""
        old = self.profiles
        self.profiles = Codes[HostProfile]()
        self.profiles.code(HostProfile())
        self.profile[: self.rows] = [
            self.profiles.code(old.names[code]) for code in self.profile[: self.rows].tolist()
        ]

    def put_metrics(self, row: int, values: Mapping[str, float]) -> None:
        """Replace all metrics of the host in this row."""
        # In the order in which the host tells them: which names fit must not depend on the order of a set.
        for name in values:
            if name not in self.metrics and len(self.metrics) < METRIC_NAMES_MAX:
                self.metrics[name] = np.full(self._length, np.nan)
        for name, column in self.metrics.items():
            column[row] = values.get(name, np.nan)

    def _append(self, host: ProviderId) -> int:
        if self.rows == self._length:
            self._grow()
        self.ids.append(host)
        self.names.append("")
        self.kinds.append("")
        self.shapes.append(0)
        self.fingerprints.append("")
        self.traits_of.append(())
        self.rows += 1
        return self.rows - 1

    def _grow(self) -> None:
        length = self._length = 2 * self._length
        for name in _ARRAYS:
            setattr(self, name, longer(getattr(self, name), length))
        for name, column in self.metrics.items():
            self.metrics[name] = np.concatenate((column, np.full(length - len(column), np.nan)))
        self.traits.grow(length)
        for stock in self.stocks.values():
            stock.grow(length)


_ARRAYS = {name: each for name, each in vars(PictureColumns).items() if isinstance(each, Column)}
_TOLD = [(name, each.told) for name, each in _ARRAYS.items() if each.told is not None]

# All that a host's row has from the registry. Two states of a host that are equal in this are written alike.
written_of = attrgetter(
    *("up", "setting.mode", "io_ops", "failed_builds", "kind", "projects", "availability_zone"),
    *("hypervisor_type", "hypervisor_version", "supports", "capabilities"),
)


def _profile_of(host: HostState) -> HostProfile:
    return HostProfile(
        host.hypervisor_type,
        host.hypervisor_version,
        host.supports,
        tuple(sorted(host.capabilities.items())),
    )
