"""Answers what would fit where, and why not: it filters and counts hosts as the choice does, but chooses none."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import structs

from engine.choosing.choosing import Chosen, choose, choose_together
from engine.choosing.draft import Draft
from engine.choosing.explaining import explain, failures
from engine.choosing.hosts import Hosts, OneHost, Searching
from engine.choosing.plugins import Plugins, room_on, together
from engine.choosing.relaxing import relaxations
from engine.inventories import INSTANCES, QuotaState
from engine.picture.picture import Picture
from engine.refusals import (
    TOGETHER_MAX,
    ExhaustedPool,
    FunnelStep,
    HostVerdict,
    NoValidHost,
    OverLimit,
    PlannedCell,
    PlannedFlavor,
    QuotaRoom,
)
from engine.requests import Alternative, InstanceSpec

# The step that stands for hosts which no step removes.
QUALIFY = "qualify"
# Of the instances that would not leave a host, the refusals of so many specs are explained: each costs passes over all hosts.
DRAIN_EXPLAINED_MAX = 10


def plan_flavors(
    picture: Picture, alternatives: Sequence[Alternative], plugins: Plugins, quota: QuotaState | None = None
) -> tuple[PlannedFlavor, ...]:
    """The plan for each flavor that a request accepts, with what its project's quota allows of it."""
    return tuple([plan(picture, each.spec, plugins, quota, each.name) for each in alternatives])


def plan(
    picture: Picture, spec: InstanceSpec, plugins: Plugins, quota: QuotaState | None = None, name: str = ""
) -> PlannedFlavor:
    """How many hosts qualify for the spec, how many instances fit on them, and what each filter removed. `name` is the
    flavor's.
    """
    draft = Draft(picture, plugins.way_judges)
    rows = np.flatnonzero(plugins.qualifying(Hosts(draft, search=Searching.TOGETHER), spec))
    funnel = explain(draft, spec, plugins)
    pools = tuple(_exhausted_pools(draft, spec))
    # Before the draft takes what is tried.
    relaxed = relaxations(draft, spec, plugins, len(rows))
    room = room_on(draft, spec, plugins, rows)
    cells = draft.columns.cell[rows]
    return PlannedFlavor(
        flavor=name,
        qualify=len(rows),
        fit=together(room.counts, spec),
        is_cut=room.is_cut,
        cells=tuple(
            sorted(
                [
                    PlannedCell(
                        cell=draft.columns.cells.names[cell],
                        hosts=int(np.count_nonzero(cells == cell)),
                        fit=together(room.counts[cells == cell], spec),
                    )
                    for cell in np.unique(cells).tolist()
                ],
                key=lambda each: each.cell,
            )
        ),
        funnel=funnel,
        relaxations=relaxed,
        pools=pools,
        quota=None if quota is None else _quota_room(spec, quota),
    )


def _quota_room(spec: InstanceSpec, quota: QuotaState) -> QuotaRoom | None:
    """How many more instances of the spec the quota allows; None if it limits nothing that they ask for."""
    asked = {**dict(spec.amounts), INSTANCES: 1}
    limits = [
        OverLimit(name=name, limit=limit, used=quota.used.get(name, 0), asked=asked[name])
        for name, limit in sorted(quota.limits.items())
        if asked.get(name)
    ]
    if not limits:
        return None
    fits = [max(0, each.limit - each.used) // each.asked for each in limits]
    least = min(fits)
    return QuotaRoom(
        fit=least, limits=tuple([each for each, fit in zip(limits, fits, strict=True) if fit == least])
    )


def reasons(
    picture: Picture,
    alternatives: Sequence[Alternative],
    plugins: Plugins,
    *,
    step: str,
    after: str,
    limit: int,
) -> tuple[list[HostVerdict], bool]:
    """A page of hosts, ordered by name, each with the filter that removes it and why, or how many instances fit; and
    whether there are more after it. The verdict on a host is about the first flavor for which it qualifies.
    """
    draft = Draft(picture, plugins.way_judges)
    hosts = Hosts(draft)
    first, _ = failures(hosts, alternatives[0].spec, plugins)
    flavors = np.zeros(len(hosts), dtype=np.intp)
    for number, other in enumerate(alternatives[1:], 1):
        passed, _ = failures(hosts, other.spec, plugins)
        newly = (passed == len(plugins.filters)) & (first < len(plugins.filters))
        first[newly], flavors[newly] = len(plugins.filters), number
    steps = [*(one.name for one in plugins.filters), QUALIFY]
    wanted = hosts.present
    if step:
        wanted = wanted & np.isin(first, [at for at, name in enumerate(steps) if name == step])
    names = picture.columns.names
    named = sorted((name, at) for at in np.flatnonzero(wanted).tolist() if (name := names[at]) > after)
    end = limit
    # Hosts of one name stay on one page: the next page begins behind the name.
    while 0 < end < len(named) and named[end][0] == named[end - 1][0]:
        end += 1
    page = [at for _, at in named[:end]]
    fit: dict[int, int] = {}
    for number, each in enumerate(alternatives):
        qualify = [at for at in page if first[at] == len(steps) - 1 and flavors[at] == number]
        room = room_on(draft, each.spec, plugins, np.array(qualify, dtype=np.intp))
        fit.update(zip(qualify, room.counts.tolist(), strict=True))
    verdicts = []
    for at in page:
        flavor = alternatives[flavors[at]]
        host = OneHost(hosts, at)
        verdict = HostVerdict(host=host.name, cell=host.cell, fit=fit.get(at, 0))
        if (number := int(first[at])) < len(plugins.filters):
            reason = plugins.filters[number].reason(host, flavor.spec)
            verdict = structs.replace(verdict, step=steps[number], reason=reason)
        if len(alternatives) > 1:
            verdict = structs.replace(verdict, flavor=flavor.name)
        verdicts.append(verdict)
    return verdicts, end < len(named)


def drain(
    picture: Picture, host: str, specs: Sequence[InstanceSpec], plugins: Plugins, salt: int
) -> list[Chosen | NoValidHost]:
    """Choose another host for each instance of this host (`c1/h1`), as if all left it together. Their shares on this host and in
    pools count as used still.
    """
    elsewhere = _not_on(host, specs)
    return choose(picture, elsewhere, plugins, salt, alternates=0, explained_max=DRAIN_EXPLAINED_MAX)


def drain_together(
    picture: Picture, host: str, specs: Sequence[InstanceSpec], plugins: Plugins, salt: int
) -> Sequence[Chosen | NoValidHost]:
    """Choose one host, instead of this one, for instances that leave it together; if there is none, the same reason for all."""
    if len(specs) > TOGETHER_MAX:
        why = f"at most {TOGETHER_MAX} instances move together"
        step = FunnelStep(step="together", removed=len(picture), example=why)
        return [NoValidHost(hosts=len(picture), steps=(step,))] * len(specs)
    chosen = choose_together(picture, _not_on(host, specs), plugins, salt, alternates=0)
    return [chosen] * len(specs) if isinstance(chosen, NoValidHost) else chosen


def _not_on(host: str, specs: Sequence[InstanceSpec]) -> list[InstanceSpec]:
    return [structs.replace(spec, ignore_hosts=(*spec.ignore_hosts, host.lower())) for spec in specs]


def has_other_hosts(picture: Picture, cell: str, host: str) -> bool:
    """Has the cell a host beside this one?"""
    columns = picture.columns
    there = columns.present[: columns.rows] & (columns.cell[: columns.rows] == columns.cells.find(cell))
    there[picture.rows_in(cell, host)] = False
    return bool(there.any())


def _exhausted_pools(draft: Draft, spec: InstanceSpec) -> Iterator[ExhaustedPool]:
    for resource, amount in spec.amounts:
        for state, free, capacity, users in draft.compounds.pools.of_class(resource):
            lacking = int(np.count_nonzero(Hosts(draft, users).free(resource) < amount))
            if free < amount and lacking:
                yield ExhaustedPool(
                    pool=state.name,
                    resource=resource,
                    asked=amount,
                    free=free,
                    capacity=capacity,
                    hosts=lacking,
                )
