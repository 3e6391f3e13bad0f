"""The specs of the instances that wait for a host, as this process knows them, and the hosts that may have room for
each.

Instances of one spec fit on the same hosts, so one look at the hosts that changed answers for all of them. When a spec
becomes known, every host is checked against it, which covers changes between the search that failed and the commit of
the row. After that, only hosts that changed are checked.

A request that accepts several flavors has a spec for each of them, and waits for a host for any. They are learned, judged
and forgotten together.

A move waits in the same list, with the spec of what it needs of its next host. It is tried, too, when its source is not as it
must be any more: a host that is evacuated is up again, or another one is down. Then the try ends the move.

No host is chosen here. A spec keeps its possible hosts until a search for it succeeds or fails, so no change is lost by
a worker that may not search just now. The digest of a spec stands for it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from engine.choosing.choosing import hosts_with_room, room_for
from engine.choosing.plugins import Plugins
from engine.flavors import InstanceId
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from kit.parts import grown
from scheduler_worker.core.instances.history import specs_in
from scheduler_worker.core.instances.rows import WAITING, InstanceRow

# After a search that failed although a host seemed to have room, the next one waits: at first so long, then longer.
PAUSE_S_FIRST, PAUSE_S_MAX = 0.2, 10.0
HEARD_MAX = 10_000
# How many moves end at once that are not possible any more.
ENDED_AT_ONCE = 100


class MoveSource(Struct, frozen=True):
    """The host that instances leave whose moves wait; without a name if they are offloaded. `may_stay`: a resize that may get
    room on this host, which then counts what the instance has there as free.
    """

    cell: str
    host: str
    is_evacuated: bool = False
    may_stay: bool = False


class _Waiting(Struct):
    specs: Sequence[InstanceSpec]
    source: MoveSource | None = None
    # The hosts that may have room for any of them.
    rows: set[int] = set()
    # It is to be judged by all hosts.
    is_unjudged: bool = True
    # How many times it was learned: a spec that is learned while it is forgotten stays.
    learned: int = 1
    failures: int = 0
    not_before_s: float = 0.0


class WaitingSpecs:
    def __init__(self, picture: Picture, plugins: Plugins) -> None:
        self._picture = picture
        self._plugins = plugins
        self._specs: dict[bytes, _Waiting] = {}
        # Rows that other workers wrote, and whose specs are to be read; None: all rows.
        self.unread: set[InstanceId] | None = None
        # Rows that this worker wrote itself: it will hear of them, and knows them already.
        self._own: set[InstanceId] = set()
        self._tell: Callable[[], None] = lambda: None

    def tell(self, listener: Callable[[], None]) -> None:
        """Set the listener that is called when waiting rows must be read, or hosts may have room."""
        self._tell = listener
        self._picture.touched.tell(listener)

    def __bool__(self) -> bool:
        return bool(self._specs)

    # What waits

    def wrote(self, rows: Iterable[InstanceRow]) -> None:
        """Learn the specs of the waiting rows that this worker has committed."""
        for row in rows:
            if row.told.state == WAITING and row.kept is not None:
                specs = specs_in(row.spec)
                assert specs, "a row that waits was written by this release"
                self._own.add(row.id)
                self.learn(row.kept.digest, specs)
                self._tell()
        if len(self._own) > HEARD_MAX:
            self._own.clear()

    def heard(self, instance: InstanceId) -> None:
        """A worker has reported that this instance waits for a host. If another worker wrote its row, remember to read it."""
        if instance in self._own:
            self._own.discard(instance)
        elif self.unread is not None:
            self.unread.add(instance)
            self._tell()

    def doubt(self) -> None:
        """Have all waiting rows read again: some may have been written without a message about them."""
        self.unread = None
        self._tell()

    def wrote_moves(self, waits: Iterable[tuple[InstanceId, bytes, InstanceSpec, MoveSource]]) -> None:
        """Learn what moves need that this worker has committed as waiting, each with its instance and its digest."""
        for instance, digest, spec, source in waits:
            self._own.add(instance)
            self.learn(digest, (spec,), source)
            self._tell()

    def learn(self, digest: bytes, specs: Sequence[InstanceSpec], source: MoveSource | None = None) -> None:
        if not self._specs:
            self._picture.touched.watch(watches=True)
        known = self._specs.get(digest)
        if known is None:
            self._specs[digest] = _Waiting(specs, source)
        else:
            known.is_unjudged = True
            known.learned += 1

    def learned(self) -> Mapping[bytes, int]:
        """How often each spec was learned, by its digest. A spec is learned each time an instance that needs it begins
        to wait for a host. The caller passes this to `forget` later, which leaves a spec that was learned once more
        meanwhile.
        """
        return {digest: known.learned for digest, known in self._specs.items()}

    def forget(self, digest: bytes, learned: Mapping[bytes, int]) -> None:
        """Forget a spec, of which no instance waited when the database was read; but keep it if it was learned again
        since `learned` was taken.
        """
        known = self._specs.get(digest)
        if known is not None and known.learned == learned.get(digest):
            del self._specs[digest]
            if not self._specs:
                self._picture.touched.watch(watches=False)

    # Where there may be room

    def room(self) -> dict[bytes, int]:
        """How many more instances of each spec might fit, by digest. Only specs that have some room are in it, and
        whose pause after a failed search is over.
        """
        self._judge()
        now_s = _now_s()
        return {
            digest: count
            for digest, known in self._specs.items()
            if known.not_before_s <= now_s
            and (count := ENDED_AT_ONCE if self._may_not_leave(known) else self._room_for(known))
        }

    def rest_s(self) -> float:
        """The seconds until the next spec with possible hosts has ended its pause after a failed search."""
        waiting = [
            known.not_before_s for known in self._specs.values() if known.rows or self._may_not_leave(known)
        ]
        return max(min(waiting) - _now_s(), 0.0) if waiting else PAUSE_S_MAX

    def succeeded(self, digest: bytes) -> None:
        if (known := self._specs.get(digest)) is not None:
            known.failures, known.not_before_s = 0, 0.0

    def failed(self, digest: bytes, *, may_pass: bool) -> None:
        """Note that a search for this spec found no host: from now on, only hosts that change are candidates. With
        `may_pass`, the search gave up before it had tried all hosts, so all are checked again after a pause.
        """
        if (known := self._specs.get(digest)) is not None:
            known.rows.clear()
            known.is_unjudged = may_pass or known.is_unjudged
            known.failures += 1
            known.not_before_s = _now_s() + grown(PAUSE_S_FIRST, PAUSE_S_MAX, known.failures)

    def _judge(self) -> None:
        if not self._specs:
            return
        touched = self._picture.touched.take()
        for judged_by_all in (True, False):
            judged = [
                known
                for known in self._specs.values()
                if (known.is_unjudged or touched is None) is judged_by_all
            ]
            among = None if judged_by_all else touched
            if judged and (judged_by_all or touched):
                asked = [(known, spec) for known in judged for spec in known.specs]
                specs = [spec for _, spec in asked]
                found = hosts_with_room(self._picture, specs, self._plugins, among)
                for (known, _), rows in zip(asked, found, strict=True):
                    known.rows |= rows
                for known in judged:
                    own = self._own_rows(known)
                    known.rows |= own if among is None else own & among
        for known in self._specs.values():
            known.is_unjudged = False

    def _room_for(self, known: _Waiting) -> int:
        # Hosts for one flavor may be hosts for another, too: the sum would count them twice.
        if not known.rows:
            return 0
        count = max(room_for(self._picture, spec, self._plugins, known.rows) for spec in known.specs)
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

    def _may_not_leave(self, known: _Waiting) -> bool:
        source = known.source
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
