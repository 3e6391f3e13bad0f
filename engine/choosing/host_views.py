"""How each host looks to a spec at one moment: which filter removes it, and how good it is. It is kept until it is known which host
another scheduler chose, so that both choices are judged as of the same moment.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.candidates.columns import Rows, Scalar
from engine.choosing.draft import Draft, Leaving
from engine.choosing.explaining import failures
from engine.choosing.hosts import Hosts, OneHost
from engine.choosing.plugins import Plugins
from engine.choosing.ranking import BAND, Scoring, weighing_by
from engine.inventories import ProviderId
from engine.picture.picture import Picture
from engine.requests.spec import InstanceSpec

# A request for many instances: hosts are judged with up to so many of them.
COUNTS_MAX = 20
# For all counts together, so that views of large clouds stay small.
ENTRIES_MAX = 200_000

_Small = NDArray[np.int32]


class WeigherView(Struct, frozen=True):
    """What one weigher says of one host. `part` is what it adds to the host's score: 1 is the weigher's whole range."""

    weigher: str
    weight: float
    part: float


class _PartKept(NamedTuple):
    """A `WeigherPart` in half of its space."""

    weigher: str
    weights: NDArray[np.float32]
    bands: NDArray[np.float32]


class HostViews(Struct, frozen=True, eq=False):
    """All hosts, in the order of their rows. `removed_by` has the number of a filter, or the number of all filters if none removes
    the host. `below` says by how many bands the host is below the best one, with no instance of the request, with one, and so on.
    """

    hosts: Sequence[ProviderId]
    filters: tuple[str, ...]
    removed_by: _Small
    below: tuple[_Small, ...] = ()
    parts: tuple[_PartKept, ...] = ()

    def row_of(self, host: ProviderId) -> int:
        """The row that the host had; -1 if it was not known."""
        return self.hosts.index(host) if host in self.hosts else -1

    def filter_against(self, row: int) -> str:
        """The name of the filter that removes this host; empty if it qualifies."""
        number = int(self.removed_by[row])
        return self.filters[number] if number < len(self.filters) else ""

    def bands_below(self, row: int, taken: int) -> int:
        """How far the host is below the best one, with so many instances of the request on it."""
        return int(self.below[min(taken, len(self.below) - 1)][row])

    def weighed(self, row: int) -> tuple[WeigherView, ...]:
        return tuple(
            WeigherView(each.weigher, float(each.weights[row]), float(each.bands[row]) * BAND)
            for each in self.parts
        )


def views_of(
    picture: Picture,
    spec: InstanceSpec,
    plugins: Plugins,
    *,
    salt: int,
    instances: int = 1,
    leaving: Sequence[Leaving] = (),
) -> HostViews:
    """How each host looks to each of so many instances. The instances `leaving` count as gone from their hosts."""
    draft = _draft_without(picture, plugins, leaving)
    hosts = Hosts(draft)
    first, _ = failures(hosts, spec, plugins)
    qualify = np.flatnonzero(hosts.present & (first == len(plugins.filters)))
    ids, names = tuple(picture.columns.ids[: len(hosts)]), tuple(one.name for one in plugins.filters)
    removed_by = first.astype(np.int32)
    if not len(qualify):
        return HostViews(ids, names, removed_by)
    some = Hosts(draft, qualify)
    scoring = Scoring(
        some, spec, weighing_by(plugins.weighers, picture.aggregates), picture.preferences(salt)
    )
    counts = max(1, min(instances, COUNTS_MAX, ENTRIES_MAX // len(hosts)))
    amounts = dict(spec.amounts)
    below: list[_Small] = []
    for count in range(counts):
        with_some = Hosts(draft, qualify, np.full(len(qualify), count), amounts)
        below.append(_among_all(scoring.below(with_some).astype(np.int32), qualify, len(hosts)))
    parts = tuple(
        _PartKept(
            each.weigher,
            _among_all(each.weights.astype(np.float32), qualify, len(hosts)),
            _among_all(each.bands.astype(np.float32), qualify, len(hosts)),
        )
        for each in scoring.parts(some)
    )
    return HostViews(ids, names, removed_by, tuple(below), parts)


def reason_against(
    picture: Picture, spec: InstanceSpec, plugins: Plugins, row: int, leaving: Sequence[Leaving] = ()
) -> str:
    """Why the host in this row does not qualify, by the first filter that removes it; empty if it does."""
    hosts = Hosts(_draft_without(picture, plugins, leaving), np.array([row]))
    for one in plugins.filters:
        if not one.passes(hosts, spec)[0]:
            return one.reason(OneHost(hosts, 0), spec)
    return ""


def _draft_without(picture: Picture, plugins: Plugins, leaving: Sequence[Leaving]) -> Draft:
    draft = Draft(picture, plugins.way_judges)
    for each in leaving:
        draft.give_back(each)
    return draft


def _among_all(values: NDArray[Scalar], rows: Rows, hosts: int) -> NDArray[Scalar]:
    """The values of these rows among all rows; 0 elsewhere."""
    found = np.zeros(hosts, dtype=values.dtype)
    found[rows] = values
    return found
