"""How many more instances of a spec fit on each host.

A filter that is called again after every choice (`is_per_instance`) passes a host up to some number of instances, and no
longer. So that number is found by bisection, for all hosts at once. Compound hosts, and hosts that share a pool, must be
filled one instance after another: they take turns, and stop at a limit.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from placement_worker.core.candidates.columns import Ints, Rows
from scheduler_worker.core.choosing.draft import Draft
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Plugins, passing
from scheduler_worker.core.requests import InstanceSpec

FIT_MAX = 1_000_000
# Each may cost a search of one tree, some hundredths of a millisecond.
TURNS_MAX = 500


class Room(NamedTuple):
    """How many more instances fit on each host. It is cut if the count ended before all compound hosts were full."""

    counts: Ints
    is_cut: bool


def room_on(draft: Draft, spec: InstanceSpec, plugins: Plugins, rows: Rows) -> Room:
    """How many instances fit on each of the hosts in `rows`, which all qualify. Instances that are tried on compound
    hosts stay taken in the draft.
    """
    counts = _by_columns(draft, spec, plugins, rows)
    filling = draft.filling(spec)
    if filling is None:
        return Room(counts, is_cut=False)
    compound = np.flatnonzero(filling.flags[rows]).tolist()
    taken = dict.fromkeys(compound, 0)
    waiting = deque(compound)
    turns = 0
    while waiting and turns < TURNS_MAX:
        turns += 1
        at = waiting.popleft()
        if taken[at] < counts[at] and filling.take(int(rows[at])) is not None:
            taken[at] += 1
            waiting.append(at)
    counts[compound] = [*taken.values()]
    return Room(counts, is_cut=bool(waiting))


def together(counts: Ints, spec: InstanceSpec) -> int:
    """How many instances fit on all of these hosts, where `counts` says how many fit on each. An affinity group must be
    on one host, so for it the largest count is the answer.
    """
    if spec.server_group is not None and spec.server_group.policy == "affinity":
        # The first member of an affinity group fixes the host of all.
        return int(counts.max(initial=0))
    return int(counts.sum())


def _by_columns(draft: Draft, spec: InstanceSpec, plugins: Plugins, rows: Rows) -> Ints:
    amounts = dict(spec.amounts)
    least = np.ones(len(rows), dtype=np.int64)
    most = np.full(len(rows), FIT_MAX, dtype=np.int64)
    while (least < most).any():
        middle = (least + most + 1) // 2
        hosts = Hosts(draft, rows, middle - 1, amounts)
        passed = passing(hosts, spec, plugins.per_instance, hosts.everyone())
        least = np.where(passed, middle, least)
        most = np.where(passed, most, middle - 1)
    return least
