"""Why nowhere, or why not there? Asked once everything else is over: slow, and thorough."""

import numpy as np

from bus.messages.build import FunnelStep, Miss, NoValidHost
from placement_worker.core.candidates.columns import Flags, Floats
from scheduler_worker.core.hosts import Draft, Hosts
from scheduler_worker.core.picture import Picture
from scheduler_worker.core.plugins import Plugins
from scheduler_worker.core.requests import Wish

NEAREST = 3


def explain(draft: Draft, wish: Wish, plugins: Plugins) -> NoValidHost:
    """The funnel: each step removes the hosts that passed all before it. Steps that remove nobody are not told."""
    hosts = Hosts(draft)
    left = hosts.present.copy()
    failed = np.zeros(len(hosts), dtype=np.int64)
    steps = []
    for one in plugins.filters:
        passed = one.passes(hosts, wish)
        removed = np.flatnonzero(left & ~passed)
        if len(removed):
            first = int(removed[0])
            example = f"{hosts.name(first)}: {one.reason(hosts, wish, first)}"
            steps.append(FunnelStep(step=one.name, removed=len(removed), example=example))
        left &= passed
        failed += ~passed
    nearest = _nearest(hosts, failed + _shortfall(hosts, wish))
    misses = [Miss(host=hosts.name(at), reason=_reasons(hosts, wish, plugins, at)) for at in nearest]
    return NoValidHost(hosts=int(np.count_nonzero(hosts.present)), steps=tuple(steps), nearest=tuple(misses))


def why_not(picture: Picture, wish: Wish, plugins: Plugins) -> tuple[Miss, ...]:
    """Every host that does not qualify, and the first reason for it. Nothing is chosen, nothing held."""
    hosts = Hosts(Draft(picture))
    left = hosts.present.copy()
    misses: list[Miss] = []
    for one in plugins.filters:
        passed = one.passes(hosts, wish)
        misses += [
            Miss(host=hosts.name(at), reason=f"{one.name}: {one.reason(hosts, wish, at)}")
            for at in np.flatnonzero(left & ~passed).tolist()
        ]
        left &= passed
    return tuple(sorted(misses, key=lambda miss: miss.host))


def _nearest(hosts: Hosts, distance: Floats) -> list[int]:
    """Those that failed the fewest filters, and of these those that were short of the least."""
    present = np.flatnonzero(hosts.present & (distance > 0))
    nearest: list[int] = present[np.argsort(distance[present], kind="stable")[:NEAREST]].tolist()
    return nearest


def _shortfall(hosts: Hosts, wish: Wish) -> Floats:
    """What part of all that is asked is not there: less than 1, so that it only decides between equals."""
    short = np.zeros(len(hosts))
    for resource, amount in wish.amounts:
        short += np.clip(amount - hosts.free(resource), 0, amount) / amount
    return short / (len(wish.amounts) + 1)


def _reasons(hosts: Hosts, wish: Wish, plugins: Plugins, at: int) -> str:
    failed = [one for one in plugins.filters if not _passes(one.passes(hosts, wish), at)]
    return "; ".join(one.reason(hosts, wish, at) for one in failed)


def _passes(passed: Flags, at: int) -> bool:
    return bool(passed[at])
