"""Which host for which instance?

A batch often asks many times for the same, and a cloud has many hosts; to look at every host for every instance would
cost more than all the rest of a boot. So specs that are equal are decided together, by one pass over the columns:

1. Filters leave the hosts that qualify, weighers give each of them a worth. The hosts are cut down to these before
   anything is sorted.
2. Of n instances none can land outside the n best hosts: before the last of them is placed at most n - 1 hosts have
   been touched, so one of the n best stands untouched, and is no worse than any host outside. These n, and a few more
   for alternates, are the pool; a partition finds them without sorting the others.
3. Each instance takes the best of the pool, which is then worth what a host with one instance more is worth: more,
   less, or nothing any longer. What that is was asked beforehand for the whole pool and the next few instances at once
   (the ladders), since a column costs little more than a number. A heap keeps the best on top.
4. What was chosen is written into the draft, so that the next specs of the batch find it taken.

Worths that differ by less than a band are equal. Equals are told apart by a hash of host and salt: each worker has
another salt, so that two of them that see the same picture do not choose the same host, and claim past each other.

A compound host is searched when it is its turn (compounds.py), since its ladder only says what it would be worth. It may
have no room by then, even untouched, where several take from one pool. Then the pool may run out of hosts that are as
good as any outside, and what is left of the spec is decided by another pass.

Alternates are the best of the same cell as the hosts stand after all choices. They hold nothing; each instance gets the
next ones in turn, so that a host that fails with all that it was given does not send them all to one other.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from bus.messages.build import NoValidHost
from bus.messages.cell import Choice
from placement_worker.core.candidates.columns import Flags, Rows
from scheduler_worker.core.choosing.alternates import BENCH, Benches, Choices, Ranked, the_best
from scheduler_worker.core.choosing.compounds import Filling, Gift
from scheduler_worker.core.choosing.explaining import explain
from scheduler_worker.core.choosing.host_columns import Draft, Hosts
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.choosing.ranking import FULL, Ladders, Order
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec

ALTERNATES = 2


class Chosen(Struct, frozen=True):
    """A host for one instance, and where else in its cell it could be built."""

    cell: str
    choice: Choice
    alternates: tuple[Choice, ...] = ()


class _Batch(NamedTuple):
    """What is the same for all specs of a batch."""

    draft: Draft
    plugins: Plugins
    salt: int
    alternates: int


def choose(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins, salt: int, alternates: int = ALTERNATES
) -> list[Chosen | NoValidHost]:
    """A host for one instance of each spec, in their order; whoever wants `count` of them repeats the spec.

    The picture stays as it is: whoever goes on to claim what was chosen holds it there.
    """
    batch = _Batch(Draft(picture), plugins, salt, alternates)
    alike: dict[InstanceSpec, list[int]] = {}
    for position, spec in enumerate(specs):
        alike.setdefault(spec, []).append(position)
    outcomes: dict[int, Chosen | NoValidHost] = {}
    for spec, positions in alike.items():
        chosen = _choose_alike(batch, spec, len(positions))
        outcomes.update(zip(positions, chosen, strict=False))
        if len(chosen) < len(positions):
            refusal = explain(batch.draft, spec, plugins)
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
    """Up to `count` hosts of this cell for an instance that has its host already, from the best there. Callers with
    another `start` get others of these, where there are more.
    """
    draft = Draft(picture)
    everyone = Hosts(draft)
    in_cell = np.equal(draft.columns.cell[: len(everyone)], draft.columns.cells.find(cell))
    rows = np.flatnonzero(_qualify(everyone, spec, plugins) & in_cell)
    if not len(rows):
        return ()
    order = Order(Hosts(draft, rows), spec, plugins.weighers, picture.preferences(salt))
    best = rows[the_best(order.worths_at_first, BENCH)].tolist()
    choices = Choices(draft, spec, draft.filling(spec), plugins.instances_max)
    first = start % len(best)
    return tuple([choices[row] for row in (*best[first:], *best[:first])[:count]])


def _choose_alike(batch: _Batch, spec: InstanceSpec, instances: int) -> list[Chosen]:
    """As many as find a host, up to so many."""
    chosen: list[Chosen] = []
    while len(chosen) < instances:
        more, is_over = _choose_in_pool(batch, spec, instances - len(chosen))
        chosen += more
        if is_over or not more:
            break
    return chosen


def _choose_in_pool(batch: _Batch, spec: InstanceSpec, instances: int) -> tuple[list[Chosen], bool]:
    """The same of one pool; and whether nobody outside could do better."""
    draft, plugins, salt, alternates = batch
    everyone = Hosts(draft)
    rows = np.flatnonzero(_qualify(everyone, spec, plugins))
    if not len(rows):
        return [], True
    hosts = everyone if len(rows) == len(everyone) else Hosts(draft, rows)
    order = Order(hosts, spec, plugins.weighers, draft.picture.preferences(salt))
    worths = order.worths_at_first
    best = the_best(worths, instances + alternates)
    pool = rows[best]
    ladders = Ladders(draft, order, plugins.filters, pool, instances) if instances > 1 else None
    # Sorted, and so a heap already.
    heap = [(-worth, place) for place, worth in enumerate(worths[best].tolist())]
    filling = draft.filling(spec)
    turns = _take_turns(heap, pool.tolist(), ladders, instances, filling)
    draft.take(pool, np.bincount(turns.places, minlength=len(pool)), dict(spec.amounts))
    still_open = pool[np.array([place for _, place in sorted(heap)], dtype=np.intp)]
    choices = Choices(draft, spec, filling, plugins.instances_max)
    benches = Benches(choices, Ranked(rows, worths, best), still_open, alternates)
    chosen = pool[np.array(turns.places, dtype=np.intp)]
    return _told(choices, chosen, turns.gifts, benches), not turns.is_cut_short


def _told(
    choices: Choices, chosen: Rows, gifts: Mapping[int, Sequence[Gift]], benches: Benches
) -> list[Chosen]:
    columns = choices.columns
    names = columns.cells.names
    cells = columns.cell[chosen].tolist()
    return [
        Chosen(
            names[cell],
            choices.given(row, gifts[turn]) if turn in gifts else choices[row],
            tuple([choices[other] for other in benches.next_for(row, cell)]),
        )
        for turn, (row, cell) in enumerate(zip(chosen.tolist(), cells, strict=True))
    ]


def _qualify(hosts: Hosts, spec: InstanceSpec, plugins: Plugins) -> Flags:
    qualify = hosts.present
    for one in plugins.filters:
        qualify = qualify & one.passes(hosts, spec)
    return qualify


class _Turns(NamedTuple):
    """The place in the pool that each instance took, and what it is given there, if that is a compound host. Cut short:
    the pool had no untouched host any more when there was no room in one that was thought to have some.
    """

    places: list[int]
    gifts: dict[int, tuple[Gift, ...]]
    is_cut_short: bool


def _take_turns(
    heap: list[tuple[int, int]],
    pool: Sequence[int],
    ladders: Ladders | None,
    instances: int,
    filling: Filling | None,
) -> _Turns:
    """The heap is left with those that could take one more."""
    taken = [0] * len(heap)
    untouched = len(heap)
    places: list[int] = []
    gifts: dict[int, tuple[Gift, ...]] = {}
    while heap and len(places) < instances:
        place = heap[0][1]
        untouched -= not taken[place]
        if filling is not None and filling.flags[pool[place]]:
            given = filling.take(pool[place])
            if given is None:
                heapq.heappop(heap)
                if untouched:
                    continue
                return _Turns(places, gifts, is_cut_short=True)
            gifts[len(places)] = given
        places.append(place)
        taken[place] += 1
        # A lone instance is never its own alternate: nobody asks what its host would be worth.
        worth = ladders.worth(place, taken[place]) if ladders else FULL
        if worth == FULL:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (-worth, place))
    return _Turns(places, gifts, is_cut_short=False)
