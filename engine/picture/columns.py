"""Facts about hosts as columns: one row for each host, one array for each fact.

Arrays are longer than the number of rows, and are doubled when rows run out; readers cut them at `rows`. Facts that are
only read for single hosts are in lists, which are faster for that.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.candidates.columns import BitSets, Flags, Floats, Ints, Rows, Scalar, Stock, Words, longer
from engine.candidates.provider_index import SHARES, ProviderIndex
from engine.capacity import capacity_of
from engine.hosts import NODE, HostState, Supported
from engine.inventories import INTEGER_MAX, InventoryState, ProviderId, ProviderState
from engine.providers import KnownProviders

# The hosts that changed so that they may have room where they had none: more is free, or other facts are known.
#
# Nothing is recorded while no instance waits for room. A host that only took something is not recorded either.


class TouchedHosts:
    """Hosts by their rows in the picture. `everything`: a change that may concern any host."""

    def __init__(self) -> None:
        self.is_watched = False
        self.rows: set[int] = set()
        self.everything = False
        self._tell: Callable[[], None] = lambda: None

    def tell(self, listener: Callable[[], None]) -> None:
        """Set the listener that is called after each recorded change."""
        self._tell = listener

    def watch(self, *, watches: bool) -> None:
        """Begin to record changes, or stop. The changes recorded so far are forgotten."""
        self.is_watched = watches
        self.rows.clear()
        self.everything = False

    def add(self, rows: Iterable[int]) -> None:
        if self.is_watched:
            before = len(self.rows)
            self.rows.update(row for row in rows if row >= 0)
            if len(self.rows) > before:
                self._tell()

    def add_all(self) -> None:
        if self.is_watched and not self.everything:
            self.everything = True
            self._tell()

    def take(self) -> set[int] | None:
        """The rows that are recorded, which are then forgotten; None if any host may have changed."""
        taken = None if self.everything else set(self.rows)
        self.rows.clear()
        self.everything = False
        return taken


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
        if before is not None and after is not None and _is_usage_alone(before, after):
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
        return sum(
            self.used(state).get(resource, 0)
            for state in tree.providers.values()
            if resource in state.inventories
        )


def _is_usage_alone(before: ProviderState, after: ProviderState) -> bool:
    return before.shape == after.shape and before.root.int == after.root.int and before.name == after.name


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


# Which hosts may take from which sharing providers. It changes only when a tree, a cell or an aggregate's members do.


class Sharing(NamedTuple):
    """Which hosts may take from which pools. `is_shared_with` has a flag for each host: does any pool share with its
    tree? `users` has the rows of the hosts that may take from each pool, by the pool's row in the provider index. Hosts
    take from no pool of another cell.
    """

    is_shared_with: Flags
    users: dict[int, Rows]


def sharing_of(columns: PictureColumns, index: ProviderIndex) -> Sharing:
    index.attach_trees()
    sharing = Sharing(np.zeros(columns.rows, dtype=np.bool_), {})
    if not index.sharing:
        return sharing
    roots = columns.root[: columns.rows]
    hosts = np.flatnonzero(columns.present[: columns.rows] & (roots >= 0))
    host_of = np.full(index.rows, -1, dtype=np.intp)
    host_of[roots[hosts]] = hosts
    for pool in sorted(index.sharing):
        reached = np.unique(host_of[index.reached_from(pool)])
        reached = reached[reached >= 0]
        sharing.is_shared_with[reached] = True
        if cell := index.state(pool).cell:
            reached = reached[np.equal(columns.cell[reached], columns.cells.find(cell))]
        sharing.users[pool] = reached
    return sharing


# The order of hosts that are equally good. It follows from the hosts and a salt: each worker prefers other hosts.


_WORD = 2**64 - 1


class HostPreferences(NamedTuple):
    """A number of 32 bits for each row, higher is preferred; and the rows in this order."""

    values: Ints
    order: Rows


def preferences_of(hosts: Sequence[ProviderId], salt: int) -> HostPreferences:
    values = _values_of(hosts, salt)
    return HostPreferences(values, (-values).argsort(kind="stable"))


def with_new_hosts(
    known: HostPreferences, hosts: Sequence[ProviderId], rows: Sequence[int], salt: int
) -> HostPreferences:
    """The preferences of all these hosts, if those in `rows` are new and the others are known."""
    values = longer(known.values, len(hosts))
    new = np.unique(np.array(rows, dtype=np.intp))
    values[new] = _values_of([hosts[row] for row in new.tolist()], salt)
    new = new[(-values[new]).argsort(kind="stable")]
    at = np.searchsorted(-known.values, -values[new], side="right", sorter=known.order)
    order = np.insert(known.order, at, new)
    if new.min() < len(known.values):
        # It has the row of a host that is gone.
        order = order[np.insert(~np.isin(known.order, new), at, True)]
    return HostPreferences(values, order)


def _values_of(hosts: Sequence[ProviderId], salt: int) -> Ints:
    ids = [(host.int ^ host.int >> 64) & _WORD for host in hosts]
    return _mixed(np.array(ids, dtype=np.uint64), salt).astype(np.int64)


def _mixed(ids: Words, salt: int) -> Words:
    """Ids mixed so that ids which differ little get very different numbers (the finish of splitmix64)."""
    mixed = ids + np.uint64(salt * 0x9E3779B97F4A7C15 & _WORD)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(32)
