"""The order of hosts that are equally good. It follows from the hosts and a salt: each worker prefers other hosts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bus.message import ProviderId
from placement_worker.core.candidates.columns import Ints, Rows, Words, longer

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
