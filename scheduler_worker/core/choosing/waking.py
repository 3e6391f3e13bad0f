"""Finds which waiting instances might fit now. Only hosts that changed are checked, so that this costs no search of all
hosts.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from placement_worker.core.candidates.columns import Floats, Rows
from scheduler_worker.core.choosing.draft import Draft
from scheduler_worker.core.choosing.hosts.host_columns import Hosts, Searching
from scheduler_worker.core.choosing.hosts.room import room_on, together
from scheduler_worker.core.choosing.plugins import Plugins, passing
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec

# So many hosts are searched alone before all are.
SEARCHED_FIRST = 64


def hosts_with_room(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins, among: Collection[int] | None
) -> list[set[int]]:
    """For each spec, the rows of the hosts that may have room, as far as their columns say; no provider is searched
    yet. `among` names the rows to look at; None stands for all.
    """
    draft = Draft(picture, plugins.way_judges)
    rows = np.arange(draft.columns.rows) if among is None else np.array(sorted(among), dtype=np.intp)
    return [set(_by_columns(draft, spec, plugins, rows).tolist()) for spec in specs]


def room_for(picture: Picture, spec: InstanceSpec, plugins: Plugins, rows: Collection[int]) -> int:
    """How many instances of the spec fit on these hosts together, as far as the picture says. That may be too few,
    since not all compound hosts are searched; 0 only if none fits.
    """
    draft = Draft(picture, plugins.way_judges)
    found = _qualifying_rows(draft, spec, plugins, np.array(sorted(rows), dtype=np.intp))
    return together(room_on(draft, spec, plugins, found).counts, spec) if len(found) else 0


def first_that_fit(waiting: Sequence[bytes], room: Mapping[bytes, int]) -> int:
    """How many of these waiting instances are tried together; `waiting` has their specs' digests, in the order of their
    turns.

    Several of them may want the same room. So there are no more of them than the smallest room among their specs: each
    is likely to fit, and none takes the room of an instance whose turn is earlier.
    """
    least = 0
    for taken, digest in enumerate(waiting):
        least = room[digest] if not taken else min(least, room[digest])
        if least <= taken:
            return taken
    return len(waiting)


def _by_columns(draft: Draft, spec: InstanceSpec, plugins: Plugins, rows: Rows) -> Rows:
    """Those of these hosts that may have room, as far as their columns say. The amounts are compared first: that is
    cheap, and most hosts that changed are still full.
    """
    rows = rows[room_by_sums(Hosts(draft, rows), spec) >= 1]
    if not len(rows):
        return rows
    hosts = Hosts(draft, rows, search=Searching.LATER)
    return rows[passing(hosts, spec, plugins.filters, hosts.everyone())]


def _qualifying_rows(draft: Draft, spec: InstanceSpec, plugins: Plugins, rows: Rows) -> Rows:
    """Those of these hosts that qualify. Compound hosts with the most room by their columns are searched first, one by
    one; all are searched only if none of the first ones qualifies.
    """
    rows = _by_columns(draft, spec, plugins, rows)
    filling = draft.filling(spec)
    if filling is None or not len(rows):
        return rows
    searched = rows[filling.flags[rows]]
    most_first = (-room_by_sums(Hosts(draft, searched), spec)).argsort(kind="stable")
    likely = searched[most_first[:SEARCHED_FIRST]].tolist()
    with_room = [*rows[~filling.flags[rows]].tolist(), *(row for row in likely if filling.ways(row))]
    if with_room or len(likely) == len(searched):
        return np.array(with_room, dtype=np.intp)
    hosts = Hosts(draft, rows, search=Searching.TOGETHER)
    return rows[passing(hosts, spec, plugins.filters, hosts.everyone())]


def room_by_sums(hosts: Hosts, spec: InstanceSpec) -> Floats:
    """How many times the amounts fit into the sums of each host, or into its pools; -1 for a row without a host."""
    room = [np.maximum(hosts.free(each), hosts.shared(each)) / amount for each, amount in spec.amounts]
    return np.where(hosts.present, np.min(room, axis=0), -1)
