"""The choice of a host for each instance of a batch.

Many requests of a batch are equal, and a cloud has many hosts. To look at every host for every instance would cost more
than all the rest of a boot. So equal specs are decided together, by one pass over the columns.

1. Filters leave the hosts that qualify, and weighers give each of them a score. Specs of a batch often differ in their
   amounts alone: answers that do not depend on these are kept (`Hosts.cached`).
2. n instances need no more than the n best hosts. Before the last instance is placed, at most n - 1 hosts have been
   touched. So one of the n best is untouched, and it is no worse than any host outside. These n hosts, and a few more for
   alternates, are the pool; a sample finds them without sorting the others (plugins.py).
3. Each instance takes the best host of the pool. That host then gets the score of a host with one instance more: higher,
   lower, or full. These scores are computed beforehand for the whole pool and the next few instances at once
   (`ScoresByCount`), since a column costs little more than a number. A heap keeps the best host on top.
4. The choices are written into the draft, so that the next specs of the batch find them taken.

Scores that differ by less than a band are equal. A hash of host and salt orders equal hosts: each worker has another
salt, so two workers that see the same picture choose different hosts, and their claims do not meet.

A compound host is searched when an instance takes it (compounds.py): its score says how good the host is, not whether
it has room. Even an untouched host may turn out to have none. Then the pool may run out of hosts that are as good as
any outside, and the instances that are left are decided by another pass.

The first passes rank hosts by their columns, with a few spare hosts in the pool, and then with more (`_SPARES`). If
these find too few hosts with room, the last passes search all compound hosts before they rank. Until then, the ends of
the weighers' scales and the number of hosts that qualified are those of all hosts that may have room. By their columns,
most hosts without room are left out already.

Alternates are the best hosts of the same cell after all choices. They hold nothing. Each instance gets the next ones in
rotation, so that the instances of a failed host do not all go to one other host.
"""

import heapq
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from msgspec import Struct, structs

from engine.candidates.columns import Flags, Rows
from engine.choosing.compounds import CompoundFill, Parts, ProviderAmount
from engine.choosing.explaining import explain
from engine.choosing.hosts import Draft, Hosts
from engine.choosing.plugins import (
    FULL,
    Plugins,
    ScoresByCount,
    Scoring,
    Weighing,
    alike,
    passing,
)
from engine.hosts import INSTANCES_MAX, UNLIMITED
from engine.inventories import ALTERNATES_MAX, Choice, ResourceAmount, ShapeSeen, Share
from engine.picture.picture import Picture
from engine.refusals import FunnelStep, NoValidHost, Shortfall
from engine.requests.spec import InstanceSpec, needs_of

ALTERNATES = 2
# How many hosts more than are needed are ranked before they are searched: some turn out to have no room. After that, all
# hosts are searched.
_SPARES = (6, 60)
# Before all scores in a heap, which are negated.
_ON_TOP = -(2**63)


class Chosen(Struct, frozen=True):
    """A host for one instance, and its alternates in the same cell."""

    cell: str
    choice: Choice
    alternates: tuple[Choice, ...] = ()
    # How many hosts there were, and how many of them qualified.
    hosts: int = 0
    qualified: int = 0


class _Batch(NamedTuple):
    """The arguments of one call of `choose`, and what is made from them once for all its specs."""

    draft: Draft
    plugins: Plugins
    salt: int
    alternates: int
    draw: int
    # By the name of a policy that specs ask for.
    weighings: dict[str, Weighing]

    def weighing(self, spec: InstanceSpec) -> Weighing:
        found = self.weighings.get(spec.policy)
        if found is None:
            metadata = self.draft.picture.aggregates
            found = self.weighings[spec.policy] = self.plugins.weighing(spec.policy, metadata)
        return found


def choose(
    cloud: Picture | Draft,
    specs: Sequence[InstanceSpec],
    plugins: Plugins,
    salt: int,
    alternates: int = ALTERNATES,
    *,
    draw: int = 0,
    explained_max: int | None = None,
) -> list[Chosen | NoValidHost]:
    """Choose a host for one instance of each spec, in their order; for several instances the caller repeats the spec.

    The picture is not changed: the caller that claims a choice holds it there. `draw` is a random number, needed only
    if plugins give an instance any of several best hosts. At most `explained_max` refusals of different specs are
    explained; other refusals have a funnel without steps. With a draft (`what_if`), hosts are chosen from that, and the choices
    are written into it.
    """
    draft = cloud if isinstance(cloud, Draft) else Draft(cloud, plugins.way_judges)
    picture = draft.picture
    batch = _Batch(draft, plugins, salt, alternates, draw, {})
    outcomes: dict[int, Chosen | NoValidHost] = {}
    explained = 0
    for spec, positions in alike(picture, specs, plugins).items():
        chosen = _choose_alike(batch, spec, len(positions))
        outcomes.update(zip(positions, chosen, strict=False))
        if len(chosen) < len(positions):
            if explained_max is None or explained < explained_max:
                refusal = explain(batch.draft, spec, plugins)
            else:
                refusal = NoValidHost(hosts=len(picture), steps=())
            explained += 1
            outcomes.update(dict.fromkeys(positions[len(chosen) :], refusal))
    return [outcomes[position] for position in range(len(specs))]


def more_alternates(
    picture: Picture,
    spec: InstanceSpec,
    plugins: Plugins,
    *,
    cell: str,
    salt: int,
    count: int,
    start: int,
) -> tuple[Choice, ...]:
    """Up to `count` of the best hosts of this cell, for an instance that has its host already. `start` says where among
    the best ones to begin, so that instances with different starts get different hosts.
    """
    draft = Draft(picture, plugins.way_judges)
    in_cell = np.equal(draft.columns.cell[: draft.columns.rows], draft.columns.cells.find(cell))
    rows = np.flatnonzero(plugins.able(draft, spec) & in_cell)
    if not len(rows):
        return ()
    hosts = Hosts(draft, rows)
    weighing = plugins.weighing(spec.policy, picture.aggregates)
    scoring = Scoring(hosts, spec, weighing, picture.preferences(salt))
    best = hosts.rows_at(scoring.best(ALTERNATE_POOL_MAX, None).positions).tolist()
    choices = Choices(draft, spec, draft.filling(spec), plugins.instances_max)
    first = start % len(best)
    # A host that qualified may have no way now: the search that gives its ways spends the same budget, and may be cut.
    rotated = choices.open_among([*best[first:], *best[:first]], count)
    return tuple([way for row in rotated for way in choices.ways(row)])[:ALTERNATES_MAX]


def other_way(
    picture: Picture,
    spec: InstanceSpec,
    plugins: Plugins,
    refused: Choice,
    shortfalls: Sequence[Shortfall],
) -> Choice | None:
    """The same host with other providers, after placement has refused the claim and said how much is free at single
    providers. None if there is no other way to take the amounts there.
    """
    row = picture.row_of(refused.share.host)
    if row < 0 or not picture.compound[row]:
        # Without other providers there is no other way.
        return None
    draft = Draft(picture, plugins.way_judges)
    needs = needs_of(spec)
    draft.searched(has_groups=bool(needs.groups))
    for short in shortfalls:
        draft.compounds.room.correct(short.provider, short.resource, short.free)
    ways = draft.compounds.search(needs)(row)
    if not ways:
        return None
    found = Choices(draft, spec, None, plugins.instances_max).given(row, ways[0])
    return None if set(found.share.amounts) == set(refused.share.amounts) else found


def _choose_alike(batch: _Batch, spec: InstanceSpec, instances: int) -> list[Chosen]:
    """Choose a host for each of these equal instances, as far as hosts have room."""
    chosen: list[Chosen] = []
    # Hosts are ranked first, and searched only when an instance takes them. If the request prefers traits or classes, or if weighers
    # compare hosts, the result of the search is a part of the rank.
    weighing = batch.weighing(spec)
    searches_late = batch.draft.must_search(spec) and not (spec.prefers_something or weighing.compares)
    spares: tuple[int, ...] = _SPARES if searches_late else ()
    while len(chosen) < instances:
        left = 1 if _one_by_one(batch, spec) else instances - len(chosen)
        more, is_over = _choose_in_pool(batch, spec, left, spares[0] if spares else None)
        chosen += more
        if more and (len(more) == left or not is_over):
            continue
        if not spares:
            break
        spares = spares[1:]
    return chosen


def _one_by_one(batch: _Batch, spec: InstanceSpec) -> bool:
    """Does the next choice change which hosts are good for the instances after it? The first member of an affinity group
    fixes the host of the others; with a soft policy, each member moves the weights; by a rule, a member counts on other hosts.
    """
    group = spec.server_group
    if group is None or (group.policy == "anti-affinity" and not group.rules):
        return False
    return bool(group.rules) or group.policy != "affinity" or not Hosts(batch.draft).has_members(group)


def _choose_in_pool(
    batch: _Batch, spec: InstanceSpec, instances: int, spare: int | None
) -> tuple[list[Chosen], bool]:
    """Choose hosts for these equal instances from one pool of the best hosts. Returns the choices, and whether no host
    outside of the pool could take the instances that are left.

    With `spare`, hosts are ranked by their columns: the pool has that many hosts more than are needed, and a compound
    host is searched only when an instance takes it.
    """
    draft, plugins, salt, alternates, draw, _ = batch
    weighing = batch.weighing(spec)
    hosts, among = Hosts(draft), None
    qualify = plugins.able(draft, spec) if spare is None else _may_qualify(draft, spec, plugins, hosts)
    qualified = int(np.count_nonzero(qualify))
    if not qualified:
        return [], True
    if qualified < len(hosts):
        # To leave out a few hosts costs more than to give each a score.
        if qualified > len(hosts) // 2 and not weighing.compares:
            among = qualify
        else:
            hosts = Hosts(draft, np.flatnonzero(qualify))
    scoring = Scoring(hosts, spec, weighing, draft.picture.preferences(salt), among)
    best = scoring.best(instances + alternates + plugins.subset - 1 + (spare or 0), among)
    pool = hosts.rows_at(best.positions)
    scores_by_count = (
        ScoresByCount(draft, scoring, plugins.per_instance, pool, instances) if instances > 1 else None
    )
    # Sorted, and so a heap already.
    heap = [(-score, place) for place, score in enumerate(best.scores.tolist())]
    filling = draft.filling(spec)
    subset = _Subset(plugins.subset, draw) if plugins.subset > 1 else None
    placings = _place(heap, pool.tolist(), scores_by_count, instances, filling, subset=subset)
    times = np.array(placings.taken, dtype=np.int64)
    takers = times.nonzero()[0]
    draft.take(pool[takers], times[takers], spec)
    still_open = pool[np.array([place for _, place in sorted(heap)], dtype=np.intp)]
    choices = Choices(draft, spec, filling, plugins.instances_max)
    pools = AlternatePools(choices, scoring, best.positions, still_open, alternates, instances=instances)
    chosen = pool[np.array(placings.places, dtype=np.intp)]
    counts = draft.hosts, qualified
    return _with_alternates(choices, chosen, placings.parts, pools, counts), not placings.is_cut_short


def _may_qualify(draft: Draft, spec: InstanceSpec, plugins: Plugins, hosts: Hosts) -> Flags:
    """The hosts that qualify by their columns, without those that were searched in this batch and had no way."""
    qualify = plugins.qualifying(hosts, spec)
    if full := draft.compounds.known_full(needs_of(spec)):
        qualify = qualify & ~np.isin(np.arange(len(qualify)), full)
    return qualify


def _with_alternates(
    choices: "Choices",
    chosen: Rows,
    parts: Mapping[int, Parts],
    pools: "AlternatePools",
    counts: tuple[int, int],
) -> list[Chosen]:
    columns = choices.columns
    names = columns.cells.names
    cells = columns.cell[chosen].tolist()
    return [
        Chosen(
            names[cell],
            choices.given(row, parts[number]) if number in parts else choices[row],
            tuple([way for other in pools.next_for(row, cell) for way in choices.ways(other)])[
                :ALTERNATES_MAX
            ],
            *counts,
        )
        for number, (row, cell) in enumerate(zip(chosen.tolist(), cells, strict=True))
    ]


class _Placings(NamedTuple):
    """Where the instances were placed: for each its host's position in the pool; for each position how many it took;
    and for instances on compound hosts the amounts from each provider.

    `is_cut_short`: some instances are not placed. Compound hosts turned out to be full, and no host of the pool was
    untouched any more.
    """

    places: list[int]
    taken: list[int]
    parts: dict[int, Parts]
    is_cut_short: bool


class _Subset(NamedTuple):
    """Gives each instance one of the `size` best hosts instead of the best one. Which one follows from the random
    number `draw`.
    """

    size: int
    draw: int

    def lead(self, heap: list[tuple[int, int]], number: int) -> None:
        """Draw one of the `size` best hosts of the heap for the instance with this number, and put it on top."""
        best = heapq.nsmallest(self.size, heap)
        mixed = (self.draw + number) * 0x9E3779B97F4A7C15 & 2**64 - 1
        score, place = best[(mixed >> 32) % len(best)]
        heap.remove((score, place))
        heapq.heapify(heap)
        heapq.heappush(heap, (_ON_TOP, place))


def _place(
    heap: list[tuple[int, int]],
    pool: Sequence[int],
    scores_by_count: ScoresByCount | None,
    instances: int,
    filling: CompoundFill | None,
    *,
    subset: _Subset | None = None,
) -> _Placings:
    """Assign the instances to hosts, the best score first. Afterwards the heap has the hosts that could take one more."""
    taken = [0] * len(heap)
    untouched = len(heap)
    places: list[int] = []
    parts: dict[int, Parts] = {}
    while heap and len(places) < instances:
        if subset is not None:
            subset.lead(heap, len(places))
        place = heap[0][1]
        untouched -= not taken[place]
        if filling is not None and filling.flags[pool[place]]:
            given = filling.take(pool[place])
            if given is None:
                heapq.heappop(heap)
                if untouched:
                    continue
                return _Placings(places, taken, parts, is_cut_short=True)
            parts[len(places)] = given
        places.append(place)
        taken[place] += 1
        # A single instance needs no other host's next score.
        score = scores_by_count.score(place, taken[place]) if scores_by_count else FULL
        if score == FULL:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (-score, place))
    return _Placings(places, taken, parts, is_cut_short=False)


# Chooses alternates for chosen hosts, and makes the choice of each host: its name, and the share that the cell and
# placement are told.


# Enough that no host is the alternate of too many instances; a larger pool would cost more than it helps.
ALTERNATE_POOL_MAX = 32
WAYS_OF_ALTERNATE = 2


def hosts_among(choices: Sequence[Choice]) -> int:
    """How many different hosts these choices name: two choices may be the same host with different providers."""
    return len({choice.share.host.int for choice in choices})


class AlternatePools:
    """The best hosts of each cell that could take one more instance. Each caller gets the next ones, in rotation.

    `pool` are the positions of the best hosts of all cells. If a cell has fewer of these than are needed, its best
    hosts outside of the pool follow.
    """

    def __init__(
        self,
        choices: "Choices",
        scoring: Scoring,
        pool: Rows,
        open_rows: Rows,
        alternates: int,
        *,
        instances: int,
    ) -> None:
        self._choices = choices
        self._cell = choices.columns.cell
        self._scoring = scoring
        self._pool = pool
        self._open_rows = open_rows
        self._alternates = alternates
        # Several instances take turns with the alternates, and may find their hosts among them. The host of a single one is
        # not open.
        self._enough = alternates + (instances > 1)
        self._most = ALTERNATE_POOL_MAX + alternates if instances > 1 else alternates
        self._pools: dict[int, list[int]] = {}
        self._next: dict[int, int] = {}

    def next_for(self, row: int, cell: int) -> list[int]:
        if cell not in self._next:
            self._next[cell] = 0
            self._pools[cell] = self._pool_of(cell)
        alternates = self._pools[cell]
        start = self._next[cell]
        if start + self._alternates >= len(alternates):
            start = 0
        end = start + self._alternates
        found = alternates[start:end]
        if row in found:
            found.remove(row)
            found += alternates[end : end + 1]
            end += 1
        self._next[cell] = end
        return found

    def _pool_of(self, cell: int) -> list[int]:
        rows = self._open_rows
        in_cell = rows[self._cell[rows] == cell][: ALTERNATE_POOL_MAX + self._alternates].tolist()
        pool = self._choices.open_among(in_cell, self._most)
        return pool if len(pool) >= self._enough else pool + self._best_outside(cell)

    def _best_outside(self, cell: int) -> list[int]:
        """The best hosts of this cell outside of the pool, for a cell of which the pool has too few hosts."""
        hosts, qualify = self._scoring.hosts, self._scoring.qualify
        outside = np.equal(hosts.of(self._cell), cell)
        outside[self._pool] = False
        if qualify is not None:
            outside &= qualify
        best = self._scoring.best(self._alternates + 1, outside)
        return self._choices.open_among(hosts.rows_at(best.positions).tolist(), self._alternates + 1)


class Choices(dict[int, Choice]):
    """For each host's row, the choice of that host for one spec: the host and the share that the spec takes there. Each
    is made when it is first needed. On a compound host it depends on what is free there at that moment.
    """

    def __init__(
        self, draft: Draft, spec: InstanceSpec, filling: CompoundFill | None, instances_max: int = 0
    ) -> None:
        super().__init__()
        self._instances_max = instances_max
        metadata, no_limit = draft.picture.aggregates, instances_max or UNLIMITED
        # By the code of a host's set of aggregates; None if no aggregate has a limit of its own.
        self._limits = metadata.numbers(INSTANCES_MAX, no_limit) if INSTANCES_MAX in metadata.keys else None
        self._draft = draft
        self.columns = draft.columns
        self._picture = draft.picture
        self._filling = filling
        self._spec = spec

    def open_among(self, rows: list[int], at_most: int) -> list[int]:
        """The first `at_most` of these hosts that could take one more instance. By their columns all of them could;
        compound hosts are searched.
        """
        filling = self._filling
        if filling is None:
            return rows[:at_most]
        return [*islice((row for row in rows if not filling.flags[row] or filling.ways(row)), at_most)]

    def ways(self, row: int) -> tuple[Choice, ...]:
        """The choices of this host as an alternate: one, or for a request with granular groups perhaps a second one,
        which takes from other providers. The cell cannot look for a second one, because it has no picture.
        """
        if self._filling is None or not self._spec.groups:
            return (self[row],)
        # Two ways may give the same amounts to other groups.
        found: dict[frozenset[ProviderAmount], Parts] = {}
        for parts in self._filling.ways(row):
            found.setdefault(frozenset(parts), parts)
        others = [*found.values()][1:WAYS_OF_ALTERNATE]
        return (self[row], *[self.given(row, parts) for parts in others])

    def take(self, row: int) -> Parts | None:
        """Take the amounts for one more instance from this host's providers; None if they have no room left."""
        filling, columns = self._filling, self.columns
        if filling is not None and filling.flags[row]:
            return filling.take(row)
        root = int(columns.root[row])
        parts = [(root, resource, amount) for resource, amount in self._spec.amounts]
        self._draft.compounds.take(parts)
        return parts

    def __missing__(self, row: int) -> Choice:
        if self._filling is not None and self._filling.flags[row]:
            found = self._filling.ways(row)
            assert found, "a host that is chosen has room"
            choice = self.given(row, found[0])
        else:
            host = self.columns.ids[row]
            choice = self._choice(
                row,
                [
                    ResourceAmount(provider=host, resource=resource, amount=amount)
                    for resource, amount in self._spec.amounts
                ],
            )
        self[row] = choice
        return choice

    def given(self, row: int, parts: Parts) -> Choice:
        """The choice of a compound host with these amounts from its providers. A provider that shares with the host
        belongs to another tree, so the choice names the shape of that tree, too.
        """
        state, host = self._picture.index.state, self.columns.ids[row]
        amounts, roots = [], [host]
        for number, resource, amount in parts:
            provider = state(number)
            amounts.append(ResourceAmount(provider=provider.id, resource=resource, amount=amount))
            if provider.root not in roots:
                roots.append(provider.root)
        trees = self._picture.trees.by_root
        shapes = [ShapeSeen(root, trees[root.int].shape) for root in roots[1:]]
        return self._choice(row, amounts, shapes)

    def _choice(
        self, row: int, amounts: Sequence[ResourceAmount], others: Sequence[ShapeSeen] = ()
    ) -> Choice:
        columns = self.columns
        host = columns.ids[row]
        shapes = (ShapeSeen(root=host, shape=columns.shapes[row]), *others)
        share = Share(host=host, amounts=tuple(amounts), shapes=shapes, instances_max=self._limit_at(row))
        return Choice(
            name=columns.names[row],
            share=share,
            fingerprint=columns.fingerprints[row],
            kind=columns.kinds[row],
        )

    def _limit_at(self, row: int) -> int:
        if self._limits is None:
            return self._instances_max
        limit = int(self._limits[self.columns.aggregates[row]])
        return 0 if limit == UNLIMITED else limit


# One host for several instances that move together, such as the members of an affinity group.
#
# The columns say which hosts may have room for all of them: each instance qualifies by itself, and the free amounts and the
# limits allow all. These hosts are ranked once, for the first instance. A host whose providers must be searched is filled with
# all instances in turn, the best host first, until enough hosts are found.


# So many instances are placed at most on hosts that must be searched: each takes about a twentieth of a millisecond.
PLACED_MAX = 40_000


def choose_together(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins, salt: int, alternates: int
) -> list[Chosen] | NoValidHost:
    """A choice for each of these instances: all have the same host, and the same hosts as alternates, in the same order."""
    draft = Draft(picture, plugins.way_judges)
    hosts = Hosts(draft)
    fits = hosts.present
    for spec in dict.fromkeys(specs):
        qualify = plugins.able(draft, spec)
        if not qualify.any():
            return explain(draft, spec, plugins)
        fits = fits & qualify
    for resource, amount in summed(specs).amounts:
        # A pool may give a part of it.
        fits = fits & ((hosts.free(resource) >= amount) | (hosts.shared(resource) >= 0))
    rows = np.flatnonzero(fits)
    with_others = Hosts(draft, rows, np.full(len(rows), len(specs) - 1))
    rows = rows[passing(with_others, specs[0], plugins.per_instance, with_others.everyone())]
    if not len(rows):
        return _none_together(picture, specs, plugins)
    weighing = plugins.weighing(specs[0].policy, picture.aggregates)
    scoring = Scoring(Hosts(draft, rows), specs[0], weighing, picture.preferences(salt))
    best = rows[scoring.best(len(rows), None).positions].tolist()
    turns = Turns(draft, specs, plugins)
    found = [*islice(((row, there) for row in best if (there := turns.on(row))), 1 + alternates)]
    if not found:
        return _none_together(picture, specs, plugins, is_cut=turns.left < 0)
    cell = draft.columns.cells.names[int(draft.columns.cell[found[0][0]])]
    return [
        Chosen(cell, choice, tuple(others[:ALTERNATES_MAX]), draft.hosts, len(rows))
        for choice, *others in zip(*(there for _, there in found), strict=True)
    ]


class Turns:
    """Puts all of these instances on a host in turn, to see whether it has room for them; nothing stays taken."""

    def __init__(self, draft: Draft, specs: Sequence[InstanceSpec], plugins: Plugins) -> None:
        self.left = PLACED_MAX
        self._draft = draft
        self._specs = specs
        self._choices = {
            spec: Choices(draft, spec, draft.filling(spec), plugins.instances_max)
            for spec in dict.fromkeys(specs)
        }

    def on(self, row: int) -> list[Choice]:
        """The choice of this host for each instance; empty if it has no room for all, or if enough was tried."""
        if not any(self._draft.must_search(spec) for spec in self._choices):
            return [self._choices[spec][row] for spec in self._specs]
        self.left -= len(self._specs)
        taken: list[Parts] = []
        found: list[Choice] = []
        for spec in self._specs if self.left >= 0 else ():
            parts = self._choices[spec].take(row)
            if not parts:
                break
            taken.append(parts)
            found.append(self._choices[spec].given(row, parts))
        for parts in taken:
            self._draft.compounds.take([(number, resource, -amount) for number, resource, amount in parts])
        return found if len(found) == len(self._specs) else []


def summed(specs: Sequence[InstanceSpec]) -> InstanceSpec:
    """The first of these specs, with the amounts of all."""
    sums: dict[str, int] = {}
    for spec in specs:
        for resource, amount in spec.amounts:
            sums[resource] = sums.get(resource, 0) + amount
    return structs.replace(specs[0], amounts=tuple(sums.items()))


def _none_together(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins, *, is_cut: bool = False
) -> NoValidHost:
    """The funnel of the amounts of all; the hosts that have these are removed because the instances do not fit one by one."""
    found = explain(Draft(picture, plugins.way_judges), summed(specs), plugins)
    left = found.hosts - sum(step.removed for step in found.steps)
    step, why = "capacity", f"they have room for each of the {len(specs)} instances, but not for all together"
    if is_cut:
        step, why = (
            "search",
            f"{PLACED_MAX} instances were tried: they may have room, to find out would cost too much",
        )
    return structs.replace(found, steps=(*found.steps, FunnelStep(step, left, why))) if left else found
