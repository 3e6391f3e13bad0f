"""The specs of the instances that wait for a host, as this process knows them, and the hosts that may have room for
each.

Thousands may wait, each for another thing, and hosts change all the time. So a change costs what it can help, and no more:

- Specs that differ only in the hosts and groups that they name are of one kind. By one number for each resource class, a
  kind that asks for more than any changed host has free is left out; another one is judged once for all its specs.
- Specs are judged in the order of their turns, by priority and then by age, and no further than there is room: as soon as
  those found may take all of it, they are tried. What is left then is judged for those after them.
- A piece judges a limited number of specs; then other tasks of the process get their turn.

When a spec becomes known, every host is checked against it, which covers changes between the search that failed and the
commit of the row. After that, only hosts that changed are checked; and all of them when its server group loses a member.

A request that accepts several flavors has a spec for each of them, and waits for a host for any. They are learned, judged
and forgotten together.

A move waits in the same list, with the spec of what it needs of its next host. It is tried, too, when its source is not as it
must be any more: a host that is evacuated is up again, or another one is down. Then the try ends the move.

The row of what waits has its needs, encoded (`WaitingNeeds`), whoever wrote it. Specs are learned and forgotten by one task alone,
that of the waker (requests/waking.py).

No host is chosen here. A spec keeps its possible hosts until a search for it succeeds or fails, so no change is lost by
a worker that may not search just now. The digest of a spec stands for it.
"""

import asyncio
import heapq
import logging
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import Struct, structs

from engine.candidates.columns import Floats, Rows
from engine.choosing.hosts import Draft, Hosts
from engine.choosing.plugins import Plugins, passing, room_on, together
from engine.flavors import InstanceId
from engine.inventories import GroupId
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from engine.requests.spec import needs_of
from kit.parts import grown
from scheduler_worker.core.instances.rows import Turn
from scheduler_worker.store_sql import WaitingInstance

log = logging.getLogger(__name__)

# After a search that failed although a host seemed to have room, the next one waits: at first so long, then longer.
PAUSE_S_FIRST, PAUSE_S_MAX = 0.2, 10.0
HEARD_MAX = 10_000
# How many moves end at once that are not possible any more.
ENDED_AT_ONCE = 100
JUDGED_AT_ONCE = 100
# Without these a spec qualifies for more hosts, never for fewer: what names hosts or a group, and what only ranks hosts.
_NAMING = {
    "hosts": (),
    "ignore_hosts": (),
    "different_hosts": (),
    "same_hosts": (),
    "server_group": None,
    "mover": None,
    "image": "",
}


class MoveSource(Struct, frozen=True):
    """The host that instances leave whose moves wait; without a name if they are offloaded. `may_stay`: a resize that may get
    room on this host, which then counts what the instance has there as free.
    """

    cell: str
    host: str
    is_evacuated: bool = False
    may_stay: bool = False


class WaitingNeeds(Struct, frozen=True, array_like=True):
    """What waits for a host for any of these specs, as its row keeps it; for a move also the host that the instance leaves."""

    specs: tuple[InstanceSpec, ...]
    source: MoveSource | None = None


encoded_needs = msgspec.msgpack.Encoder().encode
_needs = msgspec.msgpack.Decoder(WaitingNeeds).decode


def needs_in(kept: bytes | None) -> WaitingNeeds | None:
    """The needs in these bytes of a row. None if there are none, as in rows of release 0.1.0, or if they cannot be read."""
    try:
        return _needs(kept) if kept else None
    except msgspec.DecodeError:
        return None


class _Kind(NamedTuple):
    """What equals in many specs. `own` is the host on which instances may stay that wait to be resized: that host has more
    room for them than its columns say.
    """

    specs: tuple[InstanceSpec, ...]
    own: MoveSource | None


class _Waiting(Struct):
    specs: Sequence[InstanceSpec]
    source: MoveSource | None
    kind: _Kind
    # That of the first instance with this digest.
    turn: Turn
    # The hosts that may have room for any of them.
    rows: set[int] = set()
    failures: int = 0
    not_before_s: float = 0.0


# A place in the order of turns: the digest decides between equal turns.
_Place = tuple[Turn, bytes]
_BEFORE_ALL: _Place = ((-(2**31), datetime.min.replace(tzinfo=UTC)), b"")


class _Walk(NamedTuple):
    """The specs up to this place, in the order of turns, were judged by these hosts; None: by all."""

    rows: set[int] | None
    place: _Place


class WaitingSpecs:
    def __init__(self, picture: Picture, plugins: Plugins) -> None:
        self._picture = picture
        self._plugins = plugins
        self._specs: dict[bytes, _Waiting] = {}
        self._places: dict[_Kind, list[_Place]] = {}
        self._in_group = dict[GroupId, set[bytes]]()
        self._leaving: dict[MoveSource, set[bytes]] = {}
        # Those to be judged by all hosts; those that have possible hosts; and how far the others are judged by changed hosts.
        self._unjudged: dict[bytes, None] = {}
        self._with_rows: dict[bytes, None] = {}
        self._walk: _Walk | None = None
        # The rows that are to be read; None: all rows.
        self.unread: set[InstanceId] | None = None
        self._tell: Callable[[], None] = lambda: None

    def tell(self, listener: Callable[[], None]) -> None:
        """Set the listener that is called when waiting rows must be read, or hosts may have room."""
        self._tell = listener
        self._picture.touched.tell(listener)

    def __bool__(self) -> bool:
        return bool(self._specs)

    # What waits

    def heard(self, instance: InstanceId) -> None:
        """A worker, perhaps this one, has reported that the instance waits for a host: remember to read its row."""
        if self.unread is not None:
            self.unread.add(instance)
            self._tell()

    def doubt(self) -> None:
        """Have all waiting rows read again: some may have been written without a message about them."""
        self.unread = None
        self._tell()

    def learn(
        self, digest: bytes, specs: Sequence[InstanceSpec], turn: Turn, source: MoveSource | None = None
    ) -> None:
        """An instance waits for a host for any of these specs, and this is its turn."""
        if not self._specs:
            self._picture.touched.watch(watches=True)
        self._unjudged[digest] = None
        if (known := self._specs.get(digest)) is not None:
            self._put(digest, known, min(turn, known.turn))
            return
        naming = _NAMING.keys() - self._plugins.read_by_others
        plain = {field: _NAMING[field] for field in naming}
        kind = _Kind(
            tuple([structs.replace(spec, **plain) for spec in specs]),
            source if source is not None and source.may_stay else None,
        )
        known = self._specs[digest] = _Waiting(specs, source, kind, turn)
        insort(self._places.setdefault(kind, []), (turn, digest))
        for named in self._sets_of(known):
            named.add(digest)

    def _sets_of(self, known: _Waiting) -> Iterator[set[bytes]]:
        for spec in known.specs:
            if spec.server_group is not None:
                yield self._in_group.setdefault(spec.server_group.id, set())
        if known.source is not None:
            yield self._leaving.setdefault(known.source, set())

    def _put(self, digest: bytes, known: _Waiting, turn: Turn) -> None:
        places = self._places[known.kind]
        del places[bisect_left(places, (known.turn, digest))]
        insort(places, (turn, digest))
        known.turn = turn

    def read(self, first: Iterable[WaitingInstance]) -> None:
        """These instances are the first ones in the database, in the order of their turns. So what is known of earlier ones
        with the same digest is over.
        """
        for one in {each.digest: each for each in reversed([*first])}.values():
            self._put(one.digest, self._specs[one.digest], one.turn)

    def may_be_tried(self, turn: Turn) -> bool:
        """Were all specs judged whose turn is earlier?"""
        return self._walk is None or turn <= self._walk.place[0]

    def forget(self, digest: bytes) -> None:
        """Forget a spec for which no instance waits any more. Of one that begins to wait meanwhile the worker hears later."""
        known = self._specs.pop(digest)
        self._unjudged.pop(digest, None)
        self._with_rows.pop(digest, None)
        places = self._places[known.kind]
        del places[bisect_left(places, (known.turn, digest))]
        if not places:
            del self._places[known.kind]
        for named in self._sets_of(known):
            named.discard(digest)
        if not self._specs:
            for index in (self._in_group, self._leaving):
                index.clear()
            self._walk = None
            self._picture.touched.watch(watches=False)

    # Where there may be room

    @property
    def is_judging(self) -> bool:
        """Are there specs that a change may have helped, and that were not judged yet?"""
        return bool(self._unjudged) or self._walk is not None

    def room(self) -> dict[bytes, int]:
        """How many more instances of each spec might fit, by digest, as far as they were judged: each call judges one piece.
        Only specs that have some room are in it, and whose pause after a failed search is over.
        """
        self._judge()
        if self._unjudged:
            return {}
        now_s, found = _now_s(), dict[bytes, int]()
        for digest, known in self._possible():
            count = ENDED_AT_ONCE if self._may_not_leave(known.source) else 0
            if known.not_before_s <= now_s and (count := count or self._room_for(known)):
                found[digest] = count
            elif not known.rows:
                self._with_rows.pop(digest, None)
        return found

    def rest_s(self) -> float:
        """The seconds until the next spec with possible hosts has ended its pause after a failed search."""
        waiting = [known.not_before_s for _, known in self._possible()]
        return max(min(waiting) - _now_s(), 0.0) if waiting else PAUSE_S_MAX

    def _possible(self) -> list[tuple[bytes, _Waiting]]:
        """Those that have possible hosts, and those that may not move any more."""
        ended = [
            each for source, named in self._leaving.items() if self._may_not_leave(source) for each in named
        ]
        return [(digest, self._specs[digest]) for digest in dict.fromkeys((*self._with_rows, *ended))]

    def succeeded(self, digest: bytes) -> None:
        if (known := self._specs.get(digest)) is not None:
            known.failures, known.not_before_s = 0, 0.0

    def failed(self, digest: bytes, *, may_pass: bool) -> None:
        """Note that a search for this spec found no host: from now on, only hosts that change are candidates. With
        `may_pass`, the search gave up before it had tried all hosts, so all are checked again after a pause.
        """
        if (known := self._specs.get(digest)) is not None:
            known.rows.clear()
            if may_pass:
                self._unjudged[digest] = None
            known.failures += 1
            known.not_before_s = _now_s() + grown(PAUSE_S_FIRST, PAUSE_S_MAX, known.failures)

    def _judge(self) -> None:
        """Judge one piece: first those that are to be judged by all hosts, then the others by the hosts that changed."""
        if self._walk is None:
            rows, groups = self._picture.touched.take()
            self._unjudged |= {digest: None for group in groups for digest in self._in_group.get(group, ())}
            self._walk = _Walk(rows, _BEFORE_ALL) if rows is None or rows else None
        kinds: dict[_Kind, set[int]] = {}
        for digest in [*islice(self._unjudged, JUDGED_AT_ONCE)]:
            del self._unjudged[digest]
            self._judge_one(digest, None, kinds)
        if self._walk is not None and not kinds:
            self._walk = self._go_on(self._walk)

    def _go_on(self, walk: _Walk) -> _Walk | None:
        """Judge the next specs in the order of their turns, until those found may take all the room; None after the last."""
        free = most_free(self._picture, walk.rows)
        heap = [
            (places[at], kind, at)
            for kind, places in self._places.items()
            if (at := bisect_right(places, walk.place)) < len(places)
            and (kind.own or any(all(free(*each) for each in spec.amounts) for spec in kind.specs))
        ]
        heapq.heapify(heap)
        kinds: dict[_Kind, set[int]] = {}
        found, least, place = 0, JUDGED_AT_ONCE, walk.place
        for _ in range(JUDGED_AT_ONCE):
            if not heap:
                return None
            place, kind, at = heapq.heappop(heap)
            room = self._judge_one(place[1], walk.rows, kinds)
            places = self._places[kind]
            if at + 1 < len(places) and (kinds[kind] or kind.own):
                heapq.heappush(heap, (places[at + 1], kind, at + 1))
            if room:
                found, least = found + 1, min(least, room)
                if found >= least:
                    break
        return _Walk(walk.rows, place)

    def _judge_one(self, digest: bytes, rows: set[int] | None, kinds: dict[_Kind, set[int]]) -> int:
        """Find possible hosts among these rows for this spec. Returns how many instances might be tried there now. `kinds` keeps
        the possible hosts of each kind.
        """
        known = self._specs[digest]
        if known.kind not in kinds:
            kinds[known.kind] = self._among(known.kind.specs, rows)
        among = kinds[known.kind]
        if among and known.specs != known.kind.specs:
            among = self._among(known.specs, among)
        own = self._own_rows(known)
        known.rows |= among | (own if rows is None else own & rows)
        if not known.rows:
            return 0
        self._with_rows[digest] = None
        return self._room_for(known) if known.not_before_s <= _now_s() else 0

    def _among(self, specs: Sequence[InstanceSpec], rows: set[int] | None) -> set[int]:
        found = set[int]()
        for spec in specs:
            near = rows if rows is None else self._near(spec, rows)
            if near is None or near:
                try:
                    found.update(*hosts_with_room(self._picture, [spec], self._plugins, near))
                except Exception:
                    # Its instances are tried, and set aside one by one if they meet the bug, too.
                    log.exception("the hosts with room for a spec that waits could not be judged")
                    found.update(range(self._picture.columns.rows) if near is None else near)
        return found

    def _near(self, spec: InstanceSpec, rows: set[int]) -> set[int]:
        """Those of these rows that the spec names, or on which the others of its affinity group are."""
        picture, group = self._picture, spec.server_group
        if spec.hosts:
            rows = rows & {row for name in spec.hosts for row in picture.rows_named(name)}
        if group is not None and group.policy == "affinity" and (there := picture.groups.of_group(group.id)):
            rows = rows & {picture.row_of(each.host) for each in there}
        return rows

    def _room_for(self, known: _Waiting) -> int:
        # Hosts for one flavor may be hosts for another, too: the sum would count them twice.
        if not known.rows:
            return 0
        try:
            count = max(room_for(self._picture, spec, self._plugins, known.rows) for spec in known.specs)
        except Exception:
            log.exception("the room for a spec that waits could not be judged: its instances are tried")
            return 1
        if not count and self._own_rows(known) & known.rows:
            count = 1
        if not count:
            known.rows.clear()
            known.failures = 0
        return count

    def _own_rows(self, known: _Waiting) -> set[int]:
        """The rows of the host on which an instance may stay that waits to be resized."""
        source = known.source
        if source is None or not source.may_stay:
            return set()
        return {*self._picture.rows_in(source.cell, source.host.lower())}

    def _may_not_leave(self, source: MoveSource | None) -> bool:
        if source is None or not source.host:
            return False
        return self._picture.is_up(source.cell, source.host) is source.is_evacuated


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def first_that_fit(waiting: Sequence[bytes], room: Mapping[bytes, int]) -> int:
    """How many of these waiting instances are tried together; `waiting` has their specs' digests, in the order of their
    turns.

    Several of them may want the same room. So there are no more of them than the smallest room among their specs: each
    is likely to fit, and none takes the room of an instance whose turn is earlier.
    """
    least = 0
    for taken, digest in enumerate(waiting):
        least = room[digest] if not taken else min(least, room[digest])
        if least <= taken:
            return taken
    return len(waiting)


# Finds which waiting instances might fit now. Only hosts that changed are checked, so that this costs no search of all
# hosts.


# So many hosts are searched alone before all are.
SEARCHED_FIRST = 64


def hosts_with_room(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins, among: Collection[int] | None
) -> list[set[int]]:
    """For each spec, the rows of the hosts that may have room, as far as their columns say; no provider is searched
    yet. `among` names the rows to look at; None stands for all.
    """
    draft = Draft(picture, plugins.way_judges)
    rows = np.arange(draft.columns.rows) if among is None else np.array(sorted(among), dtype=np.intp)
    return [set(_by_columns(draft, spec, plugins, rows).tolist()) for spec in specs]


def most_free(picture: Picture, among: Collection[int] | None) -> Callable[[str, int], bool]:
    """A function that says whether any of the hosts in these rows (None: any at all) may have this amount of a class free."""
    rows = None if among is None else np.array(sorted(among), dtype=np.intp)
    hosts = Hosts(Draft(picture), rows)
    most = cache(lambda resource: np.maximum(hosts.free(resource), hosts.shared(resource)).max(initial=0))
    return lambda resource, amount: bool(most(resource) >= amount)


def room_for(picture: Picture, spec: InstanceSpec, plugins: Plugins, rows: Collection[int]) -> int:
    """How many instances of the spec fit on these hosts together, as far as the picture says. That may be too few,
    since not all compound hosts are searched; 0 only if none fits.
    """
    draft = Draft(picture, plugins.way_judges)
    found = _qualifying_rows(draft, spec, plugins, np.array(sorted(rows), dtype=np.intp))
    return together(draft, found, room_on(draft, spec, plugins, found).counts, spec)


def _by_columns(draft: Draft, spec: InstanceSpec, plugins: Plugins, rows: Rows) -> Rows:
    """Those of these hosts that may have room, as far as their columns say. The amounts are compared first: that is
    cheap, and most hosts that changed are still full.
    """
    rows = rows[room_by_sums(Hosts(draft, rows), spec) >= 1]
    if not len(rows):
        return rows
    hosts = Hosts(draft, rows)
    return rows[passing(hosts, spec, plugins.filters, hosts.everyone())]


def _qualifying_rows(draft: Draft, spec: InstanceSpec, plugins: Plugins, rows: Rows) -> Rows:
    """Those of these hosts that qualify. Compound hosts with the most room by their columns are searched first, one by
    one; all are searched only if none of the first ones qualifies.
    """
    rows = _by_columns(draft, spec, plugins, rows)
    filling = draft.filling(spec)
    if filling is None or not len(rows):
        return rows
    searched = rows[filling.flags[rows]]
    most_first = (-room_by_sums(Hosts(draft, searched), spec)).argsort(kind="stable")
    likely = searched[most_first[:SEARCHED_FIRST]].tolist()
    with_room = [*rows[~filling.flags[rows]].tolist(), *(row for row in likely if filling.ways(row))]
    if with_room or len(likely) == len(searched):
        return np.array(with_room, dtype=np.intp)
    among = np.zeros(draft.columns.rows, dtype=np.bool_)
    among[rows] = True
    return np.flatnonzero(draft.compounds.able(needs_of(spec), among))


def room_by_sums(hosts: Hosts, spec: InstanceSpec) -> Floats:
    """How many times the amounts fit into the sums of each host, or into its pools; -1 for a row without a host."""
    room = [np.maximum(hosts.free(each), hosts.shared(each)) / amount for each, amount in spec.amounts]
    return np.where(hosts.present, np.min(room, axis=0), -1)
