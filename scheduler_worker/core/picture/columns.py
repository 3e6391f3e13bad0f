"""Facts about hosts as columns: one row for each host, one array for each fact.

Arrays are longer than the number of rows, and are doubled when rows run out; readers cut them at `rows`. Facts that are
only read for single hosts are in lists, which are faster for that.
"""

from collections.abc import Callable, Hashable, Mapping
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bus.message import ProviderId
from bus.messages.hosts import NODE, HostState, Supported
from placement_worker.core.candidates.columns import BitSets, Floats, Ints, Scalar, Stock, longer
from scheduler_worker.core.picture.image_caches import ImageCaches

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
