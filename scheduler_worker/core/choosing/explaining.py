"""Why nowhere, or why not there? Asked once everything else is over: slow, and thorough."""

from collections.abc import Iterator

import numpy as np

from bus.messages.build import FunnelStep, Miss, NoValidHost
from placement_worker.core.candidates.columns import Flags, Floats, Ints, Rows
from scheduler_worker.core.choosing.host_columns import Draft, Hosts
from scheduler_worker.core.choosing.plugins import Filter, Plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec

NEAREST = 3
# Of the hosts that a request names itself.
ASKED_MAX = 10


def explain(draft: Draft, spec: InstanceSpec, plugins: Plugins) -> NoValidHost:
    """The funnel: each step removes the hosts that passed all before it. Steps that remove nobody are not told. A request that asks for hosts by name is told about these, and about no others."""
    hosts = Hosts(draft)
    left = hosts.present.copy()
    failed = np.zeros(len(hosts), dtype=np.int64)
    removed_by = []
    for one in plugins.filters:
        passed = one.passes(hosts, spec)
        removed = np.flatnonzero(left & ~passed)
        if len(removed):
            removed_by.append((one, removed))
        left &= passed
        failed += ~passed
    lacking = np.zeros(len(hosts), dtype=np.int64)
    for resource, _ in spec.amounts:
        lacking += ~_has(hosts, resource)
    steps = [_step(hosts, spec, one, removed, lacking) for one, removed in removed_by]
    if spec.hosts:
        misses = list(_asked(hosts, spec, plugins))[:ASKED_MAX]
    else:
        nearest = _nearest(hosts, failed + _shortfall(hosts, spec, lacking))
        misses = [_miss(hosts, spec, plugins, at) for at in nearest]
    return NoValidHost(hosts=int(np.count_nonzero(hosts.present)), steps=tuple(steps), nearest=tuple(misses))


def _step(hosts: Hosts, spec: InstanceSpec, one: Filter, removed: Rows, lacking: Ints) -> FunnelStep:
    """Its example is the first that it removed, of those that lack the fewest classes altogether."""
    first = int(removed[np.argmin(lacking[removed])])
    example = f"{hosts.name(first)}: {one.reason(hosts, spec, first)}"
    return FunnelStep(step=one.name, removed=len(removed), example=example)


def _asked(hosts: Hosts, spec: InstanceSpec, plugins: Plugins) -> Iterator[Miss]:
    for name in spec.hosts:
        places = hosts.places_named(name)
        if not places:
            yield Miss(host=name, reason="no host of this name is known")
        for at in places:
            yield _miss(hosts, spec, plugins, at)


def _miss(hosts: Hosts, spec: InstanceSpec, plugins: Plugins, at: int) -> Miss:
    return Miss(host=hosts.name(at), reason=_reasons(hosts, spec, plugins, at))


def why_not(picture: Picture, spec: InstanceSpec, plugins: Plugins) -> tuple[Miss, ...]:
    """Every host that does not qualify, and the first reason for it. Nothing is chosen, nothing held."""
    hosts = Hosts(Draft(picture))
    left = hosts.present.copy()
    misses: list[Miss] = []
    for one in plugins.filters:
        passed = one.passes(hosts, spec)
        misses += [
            Miss(host=hosts.name(at), reason=f"{one.name}: {one.reason(hosts, spec, at)}")
            for at in np.flatnonzero(left & ~passed).tolist()
        ]
        left &= passed
    return tuple(sorted(misses, key=lambda miss: miss.host))


def _nearest(hosts: Hosts, distance: Floats) -> list[int]:
    """Those that failed the fewest filters, and of these those that were short of the least."""
    present = np.flatnonzero(hosts.present)
    nearest: list[int] = present[np.argsort(distance[present], kind="stable")[:NEAREST]].tolist()
    return nearest


def _has(hosts: Hosts, resource: str) -> Flags:
    """Which have an inventory of this class, of their own or shared with them, however much is left of it."""
    has: Flags = hosts.stocked(resource) | (hosts.shared(resource) >= 0)
    return has


def _shortfall(hosts: Hosts, spec: InstanceSpec, lacking: Ints) -> Floats:
    """What part of all that is asked is not there: less than 1, so that it only decides between equals. A host that lacks a
    class altogether is farther away than one where that ran out.
    """
    short = lacking.astype(np.float64)
    for resource, amount in spec.amounts:
        free = np.maximum(hosts.free(resource), hosts.shared(resource))
        short += np.clip(amount - free, 0, amount) / amount
    return short / (2 * len(spec.amounts) + 1)


def _reasons(hosts: Hosts, spec: InstanceSpec, plugins: Plugins, at: int) -> str:
    failed = [one for one in plugins.filters if not _passes(one.passes(hosts, spec), at)]
    return "; ".join(one.reason(hosts, spec, at) for one in failed)


def _passes(passed: Flags, at: int) -> bool:
    return bool(passed[at])
