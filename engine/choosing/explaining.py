"""Explains why no host qualifies for a request. This is slow and thorough: it runs only for a refusal or a plan."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from engine.candidates.columns import Floats, Ints, Rows
from engine.choosing.draft import Draft
from engine.choosing.hosts import Hosts, OneHost
from engine.choosing.plugins import Filter, Plugins
from engine.flavors import Flavor, FlavorPassedOver
from engine.inventories import Choice, ProviderId
from engine.refusals import FunnelStep, Miss, NoValidHost
from engine.requests.spec import InstanceSpec

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


# The outcomes of a search for a host. The row of an instance after each of them: scheduler_worker/core/instances/placing.py.


class Holds(Struct, frozen=True):
    """The outcome of a search that found a host: placement has granted the share of `choice` for this attempt. `is_new`
    is false if the instance held the share already, by an earlier claim.
    """

    cell: str
    attempt: int
    choice: Choice
    alternates: tuple[Choice, ...] = ()
    is_new: bool = False
    # How many hosts there were, and how many of them qualified; 0 for a claim of an earlier try.
    hosts: int = 0
    qualified: int = 0
    # The flavors of alternates that are for another flavor than the choice, by host.
    other_flavors: Mapping[ProviderId, Flavor] = {}


class SearchRefused(Struct, frozen=True):
    """The outcome of a search that ends without a host, except `NoValidHost`: that says that no host qualifies.

    A request that wants all of its instances placed or none is refused if some of them find no host. Then
    `no_valid_host` is the funnel of one of these. With `may_pass`, the same search may find a host later. `over_quota`: the
    project's quota forbids it.
    """

    reason: str
    no_valid_host: NoValidHost | None = None
    may_pass: bool = False
    over_quota: bool = False


class EndedElsewhere(Struct, frozen=True):
    """The outcome of a search whose instance another worker has ended: placement refuses the claim as released."""

    reason: str = "its claim had been released before it was granted"


Outcome = Holds | NoValidHost | SearchRefused | EndedElsewhere


class FlavorFound(NamedTuple):
    """The flavor that an instance gets of several that its request accepts; `spec` is what it needs, encoded. If there is no
    host, it is the last one that was tried.
    """

    flavor: Flavor
    spec: bytes
    passed_over: tuple[FlavorPassedOver, ...]


def in_words(refusal: NoValidHost) -> str:
    steps = [f"{step.removed} removed by {step.step} ({step.example})" for step in refusal.steps]
    return f"no host among {refusal.hosts}" + (f": {', '.join(steps)}" if steps else "")
