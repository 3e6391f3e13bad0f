"""Explains why no host qualifies for a request. This is slow and thorough: it runs only for a refusal or a plan."""

from collections.abc import Iterator

import numpy as np

from bus.messages.build import FunnelStep, Miss, NoValidHost
from placement_worker.core.candidates.columns import Floats, Ints, Rows
from scheduler_worker.core.choosing.draft import Draft
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Filter, Plugins
from scheduler_worker.core.requests import InstanceSpec

NEAREST = 3
# A refusal explains so many of the hosts that a request names.
ASKED_MAX = 10


def explain(draft: Draft, spec: InstanceSpec, plugins: Plugins) -> NoValidHost:
    """The funnel: each step removes hosts that passed all steps before it; a step that removes none is left out. A request
    that names hosts is told why these do not qualify; any other request is told the nearest misses.
    """
    hosts = Hosts(draft)
    first, failed = failures(hosts, spec, plugins)
    removed_by = [
        (one, removed)
        for number, one in enumerate(plugins.filters)
        if len(removed := np.flatnonzero(hosts.present & (first == number)))
    ]
    lacking = np.zeros(len(hosts), dtype=np.int64)
    for resource, _ in spec.amounts:
        # An inventory counts, its own or shared with it, even if nothing is free.
        lacking += ~(hosts.stocked(resource) | (hosts.shared(resource) >= 0))
    steps = [_step(hosts, spec, one, removed, lacking) for one, removed in removed_by]
    if spec.hosts:
        misses = list(_asked(hosts, spec, plugins))[:ASKED_MAX]
    else:
        nearest = _nearest(hosts, failed, _shortfall(hosts, spec, lacking))
        misses = [_miss(hosts, spec, plugins, at) for at in nearest]
    return NoValidHost(hosts=int(np.count_nonzero(hosts.present)), steps=tuple(steps), nearest=tuple(misses))


def failures(hosts: Hosts, spec: InstanceSpec, plugins: Plugins) -> tuple[Ints, Ints]:
    """For each host, the number of the first filter that removes it (the number of all filters if none does), and how
    many filters would remove it.
    """
    first = np.full(len(hosts), len(plugins.filters), dtype=np.int64)
    failed = np.zeros(len(hosts), dtype=np.int64)
    for number, one in enumerate(plugins.filters):
        passed = one.passes(hosts, spec)
        first[~passed & (failed == 0)] = number
        failed += ~passed
    return first, failed


def _step(hosts: Hosts, spec: InstanceSpec, one: Filter, removed: Rows, lacking: Ints) -> FunnelStep:
    """The funnel's step for this filter, with one of the hosts that it removed as an example: the first of those that
    lack the fewest resource classes.
    """
    first = int(removed[np.argmin(lacking[removed])])
    host = OneHost(hosts, first)
    example = f"{host.name}: {one.reason(host, spec)}"
    return FunnelStep(step=one.name, removed=len(removed), example=example)


def _asked(hosts: Hosts, spec: InstanceSpec, plugins: Plugins) -> Iterator[Miss]:
    for name in spec.hosts:
        places = np.flatnonzero(hosts.named((name,))).tolist()
        if not places:
            yield Miss(host=name, reason="no host of this name is known")
        for at in places:
            miss = _miss(hosts, spec, plugins, at)
            if miss.reason:
                yield miss


def _miss(hosts: Hosts, spec: InstanceSpec, plugins: Plugins, at: int) -> Miss:
    """The reasons of all filters that remove this host; empty if it qualifies."""
    failed = [one for one in plugins.filters if not one.passes(hosts, spec)[at]]
    host = OneHost(hosts, at)
    return Miss(host=host.name, reason="; ".join(one.reason(host, spec) for one in failed))


def _nearest(hosts: Hosts, failed: Ints, shortfall: Floats) -> list[int]:
    """The hosts that failed the fewest filters; among these, the hosts with the smallest shortfall."""
    lost = np.flatnonzero(hosts.present & (failed > 0))
    nearest: list[int] = lost[np.argsort((failed + shortfall)[lost], kind="stable")[:NEAREST]].tolist()
    return nearest


def _shortfall(hosts: Hosts, spec: InstanceSpec, lacking: Ints) -> Floats:
    """The part of the request that a host cannot give: below 1, so that it only decides between equals. A host without a
    class is farther away than a host where that class is used up.
    """
    short = lacking.astype(np.float64)
    for resource, amount in spec.amounts:
        free = np.maximum(hosts.free(resource), hosts.shared(resource))
        short += np.clip(amount - free, 0, amount) / amount
    return short / (2 * len(spec.amounts) + 1)
