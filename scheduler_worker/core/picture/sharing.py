"""Which hosts may take from which sharing providers. It changes only when a tree, a cell or an aggregate's members do."""

from typing import NamedTuple

import numpy as np

from placement_worker.core.candidates.columns import Flags, Rows
from placement_worker.core.candidates.provider_index import ProviderIndex
from scheduler_worker.core.picture.columns import PictureColumns


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
