"""The hosts that this process knows: their rows, the reports and heartbeats heard since, and which hosts are up.

Heartbeats are kept in memory and not written, but that a host fell silent is, and that it is heard again. A host whose row
was read at start counts as up for one period, since a host that is alive has sent a heartbeat by then; unless the row says
that it is silent: then it is down until it is heard.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import structs

from bus.message import Message
from bus.messages.hosts import (
    HostChanged,
    HostMetrics,
    HostsAlive,
    HostsMeasured,
    HostsReported,
    ImagesCached,
)
from bus.workers.connections import Station
from bus.workers.handlers import Received
from bus.workers.heartbeats import is_silent
from engine.hosts import NODE, HostFacts, HostState
from engine.inventories import ProviderId
from engine.picture.picture import Picture
from kit.clock import EPOCH
from kit.metrics import Labels, Readings, limited
from kit.parts import Periodic
from scheduler_worker.core.hosts import (
    HostLoad,
    is_untold,
    load_of,
    may_be_up,
    reported,
    rewritten,
    with_load,
    word_for_cell,
)
from scheduler_worker.metrics import HOST_NAME_CLASHES
from scheduler_worker.store_sql import HostQuery, HostVersion, SchedulerStore

log = logging.getLogger(__name__)

# A pause in all that is heard of a cell is long if it is longer than this share of the time after which a host is silent.
LONG_PAUSE = 1 / 3


# States of hosts that are no mode of an operator.
MUST_CLEAN, SILENT = "must clean up", "silent"


def state_of(host: HostState) -> str:
    """The reason why a host is not used, the orders of operators first; `up` if it is used."""
    match host.setting.mode:
        case "dead" | "down" as mode:
            return mode
        case mode if host.must_clean:
            return MUST_CLEAN
        case mode if not host.up:
            return SILENT
    return mode


def count_by_state(hosts: Iterable[HostState]) -> Counter[tuple[str, str, str]]:
    """The number of hosts by cell, kind (empty for hypervisors) and state (`state_of`)."""
    return Counter((host.cell, host.kind, state_of(host)) for host in hosts)


class KnowsHosts(Protocol):
    """Tells of hosts by the ids of their root providers."""

    def get(self, host: ProviderId) -> HostState | None: ...

    def name_of(self, host: ProviderId) -> str:
        """The name of this host, or its id if it is not known."""


class _KnownHost:
    """A host's row, and the facts about it that only this process's memory has, since they are not written."""

    __slots__ = ("cached", "heard", "is_presumed", "measured", "row", "written")

    def __init__(self, row: HostState, heard: datetime, *, is_presumed: bool = False) -> None:
        self.row = row
        self.heard = heard
        # This process has not heard it since: it began then, or another one has heard it.
        self.is_presumed = is_presumed
        # Its row in the database, as this process knows it; None before one is known. `row` may be of a later report.
        self.written: HostState | None = None
        # The sequences of its last metrics and of its last list of images.
        self.measured = 0
        self.cached = 0


class HostRegistry:
    def __init__(
        self,
        picture: Picture,
        down_after: timedelta,
        clock: Callable[[], datetime],
        *,
        failed_builds_max: int = 0,
        excuses: Callable[[str, timedelta], bool] = lambda _cell, _for_long: False,
    ) -> None:
        """`excuses` is asked about a cell before its silent hosts are marked down: do they go on counting as up?

        They may, for instance, if the cell itself is down.
        """
        self.failed_builds_max = failed_builds_max
        # The cell that placement names for a host; empty if placement does not have it.
        self.placed_in = picture.placed_in
        self._excuses = excuses
        self._picture = picture
        self.down_after = down_after
        self._clock = clock
        # By integers: a UUID's hash runs in Python, and every report and heartbeat looks its host up.
        self._hosts: dict[int, _KnownHost] = {}
        # The hosts that operators have deleted, with the number of the last setting of each. A row that was read before may be learnt
        # later; a host that comes back has a later number.
        self._deleted: dict[int, int] = {}
        # For each cell: since when something of it is heard without a long pause, and when it was last heard.
        self.heard_of: dict[str, tuple[datetime, datetime]] = {}
        # Called when a row is learnt whose cell does not know the host's mode yet.
        self.when_untold: list[Callable[[], None]] = []
        # The names that hosts of several cells have, each with its cells, and how often that was new.
        self._clashes: Mapping[str, Sequence[str]] = {}
        self._clashes_seen: Counter[str] = Counter()

    @property
    def readings(self) -> Readings:
        names = limited([*self._clashes_seen])
        seen = Counter[Labels]()
        for name, count in self._clashes_seen.items():
            seen[(names[name],)] += count
        return (HOST_NAME_CLASHES.numbers(seen),)

    def learn(self, rows: Iterable[HostState]) -> None:
        """Take over rows of hosts, which were read at start, or written by this worker or another."""
        changed = []
        now = self._clock()
        for row in rows:
            if row.setting.number <= self._deleted.get(row.id.int, -1):
                continue
            known = self._hosts.get(row.id.int)
            if known is None:
                heard = now if row.silent_since is None else min(row.silent_since, now - self.down_after)
                known = self._hosts[row.id.int] = _KnownHost(row, heard, is_presumed=True)
            elif row.sequence > known.row.sequence:
                if known.row.silent_since is not None and row.silent_since is None:
                    # Another worker has heard it.
                    known.heard, known.is_presumed = now, True
                elif row.silent_since is not None and known.is_presumed:
                    # Another worker has listened for longer.
                    known.heard = min(row.silent_since, now - self.down_after)
                known.row = rewritten(known.row, row)
            else:
                continue
            known.written = row
            changed.append(known)
        self._tell(changed, now)
        if any(is_untold(known.row) for known in changed):
            for do in self.when_untold:
                do()

    def load_of(self, facts: HostFacts, report: HostsReported) -> HostLoad | None:
        """The load of a reported host, if by the host's row nothing else has changed; otherwise None."""
        known = self._hosts.get(facts.id.int)
        written = None if known is None else known.written
        return None if written is None else load_of(written, facts, report, self.failed_builds_max)

    def learn_loads(self, loads: Iterable[HostLoad]) -> None:
        """Take over loads that were written beside rows of hosts, by this worker or another."""
        changed = []
        for load in loads:
            known = self._hosts.get(load.host.int)
            if known is None or (row := known.written) is None or known.row.sequence != load.row:
                continue
            if (known.row.report_epoch, known.row.report_sequence) < load.number:
                known.row = with_load(row, load)
                changed.append(known)
        self._tell(changed, self._clock())

    def hear(self, heard: Received[Message]) -> None:
        """Take over what a message of the feed says about hosts; any other message is ignored."""
        match heard.message:
            case HostsReported() as report:
                self.hear_facts(report, heard.cell)
            case HostChanged(host=host, deleted=True) if heard.cell is None:
                self.hear_deleted(host)
            case HostChanged(host=host) if heard.cell is None:
                self.learn((host,))
            case HostsAlive(cell=cell, hosts=hosts):
                self.hear_beats(cell, hosts, heard.cell)
            case HostsMeasured() | ImagesCached() as told:
                self.hear_unwritten(told, heard.cell)

    def hear_facts(self, report: HostsReported, speaks_for: str | None = None) -> None:
        """Take over a report about hosts. Every scheduler hears it, and one of them writes it into the database.
        `speaks_for` is the only cell that the sender may name; None if it may name any.
        """
        now = self._clock()
        self.hear_of_cell(report.cell, speaks_for)
        changed = []
        gone = []
        for each in report.hosts:
            known = self._hosts.get(each.id.int)
            if each.is_gone and known is None:
                continue
            row = None if known is None else known.row
            host = reported(
                row,
                each,
                report,
                now,
                speaks_for=speaks_for,
                failed_builds_max=self.failed_builds_max,
                placed_in=self.placed_in,
            )
            if host is None:
                log.warning("cell %s reports host %s of another cell", report.cell, each.name)
                continue
            if host is row:
                continue
            if each.is_gone:
                gone.append(each.id)
                continue
            if known is None:
                known = self._hosts[each.id.int] = _KnownHost(host, now)
            known.row, known.heard, known.is_presumed = host, now, False
            changed.append(known)
        self._tell(changed, now)
        self.forget(gone)

    def hear_beats(self, cell: str, hosts: Iterable[ProviderId], speaks_for: str | None = None) -> None:
        """Note the heartbeats of these hosts. Beats that name another cell than the host's are ignored, except those of
        a bare-metal node: it may have gone to another cell before its daemon knows.
        """
        if speaks_for not in (None, cell):
            return
        now = self._clock()
        self.hear_of_cell(cell, speaks_for)
        back = []
        for each in hosts:
            known = self._hosts.get(each.int)
            if known is None:
                continue
            host = known.row
            if host.cell != cell and not (speaks_for is None and host.kind == NODE):
                continue
            known.heard, known.is_presumed = now, False
            if not host.up and may_be_up(host):
                back.append(known)
        self._tell(back, now)

    def hear_of_cell(self, cell: str, speaks_for: str | None = None) -> None:
        """Note that something was heard of this cell, from a sender that may speak for it. What is heard after a long pause
        tells that this process could not hear its hosts either.
        """
        if speaks_for not in (None, cell):
            return
        now = self._clock()
        since, last = self.heard_of.get(cell, (now, now))
        self.heard_of[cell] = (now if now - last > self.down_after * LONG_PAUSE else since), now

    def unwritten_silences(self) -> dict[ProviderId, datetime | None]:
        """The hosts whose rows do not say yet that they fell silent, with the time when they were last heard, or that
        they are heard again (None). The silence of a host counts only while other parts of its cell are heard.
        """
        now = self._clock()
        found: dict[ProviderId, datetime | None] = {}
        silent = {known.row.id.int for known in self._silent(now)}
        for number, known in self._hosts.items():
            host, heard = known.row, known.heard
            if (number in silent) is (host.silent_since is not None):
                continue
            if host.silent_since is not None:
                found[host.id] = None
            elif (of_cell := self.heard_of.get(host.cell)) is not None:
                since, last = of_cell
                has_heard_long = is_silent(now - max(since, heard), self.down_after)
                if has_heard_long and now - last <= self.down_after * LONG_PAUSE:
                    found[host.id] = heard
        return found

    def hear_unwritten(self, told: HostsMeasured | ImagesCached, speaks_for: str | None = None) -> None:
        """Take over hosts' metrics, or which images they have cached. Neither is written into the database: metrics are
        old when the next ones come, and all hosts tell their images again now and then.

        Both count only for known hosts, if they come from the host's own cell and are no older than the last ones.
        """
        for each in told.hosts:
            known = self._hosts.get(each.id.int)
            if known is None or known.row.cell != told.cell or speaks_for not in (None, told.cell):
                continue
            if isinstance(each, HostMetrics):
                if told.sequence >= known.measured:
                    known.measured = told.sequence
                    self._picture.measure(each.id, each.values)
            elif told.sequence >= known.cached:
                known.cached = told.sequence
                self._picture.cache_images(each.id, each.images)

    def get(self, host: ProviderId) -> HostState | None:
        known = self._hosts.get(host.int)
        return None if known is None else known.row

    def rows(self) -> Iterator[HostState]:
        return (known.row for known in self._hosts.values())

    def name_of(self, host: ProviderId) -> str:
        """The name of this host, or its id if it is not known."""
        known = self._hosts.get(host.int)
        return str(host) if known is None else known.row.name

    def count_by_cell(self) -> tuple[Counter[str], Counter[str]]:
        """The number of hosts in each cell, and the number of those that are up."""
        hosts = tuple(self.rows())
        return Counter(host.cell for host in hosts), Counter(host.cell for host in hosts if host.up)

    def doubted(self) -> tuple[ProviderId, ...]:
        """The hosts of which another worker may just have written a row that this process has not read. They are those
        that placement has and that have no row here, and those whose mode forbids to use them: they may have been set
        up again.
        """
        not_up = [host.id for host in self.rows() if host.setting.mode != "up" or host.must_clean]
        return (*self._picture.unregistered(), *not_up)

    def untold(self) -> list[HostState]:
        """The hosts whose cell may not know yet in which mode they are."""
        return [host for host in self.rows() if is_untold(host)]

    def unheard_since(self, before: datetime) -> list[HostState]:
        """The hosts from which this process has heard nothing since `before`. A host whose row was read at start counts
        as heard at that moment.
        """
        return [known.row for known in self._hosts.values() if known.heard < before]

    def unheard(self, host: ProviderId) -> timedelta | None:
        """For how long this host has not been heard; None if it is silent, or unknown."""
        known = self._hosts.get(host.int)
        unheard = None if known is None else self._clock() - known.heard
        return None if unheard is None or is_silent(unheard, self.down_after) else unheard

    def forget(self, hosts: Iterable[ProviderId]) -> None:
        """Remove hosts whose rows were deleted. If such a host reports again, it counts as a new host."""
        self._picture.remove_hosts([host for host in hosts if self._hosts.pop(host.int, None) is not None])

    def rows_written(self) -> dict[ProviderId, int]:
        """The sequences of the hosts' rows in the database, as this process knows them."""
        return {
            known.row.id: known.written.sequence
            for known in self._hosts.values()
            if known.written is not None
        }

    def hear_deleted(self, host: HostState) -> None:
        """Forget a host that was deleted, unless it has come back meanwhile. `host` is its last state."""
        self._deleted[host.id.int] = host.setting.number
        known = self.get(host.id)
        if known is not None and known.setting.number <= host.setting.number:
            self.forget((host.id,))

    def look(self) -> None:
        """Mark the hosts down that were not heard for too long, and raise an alarm about names that are in several cells."""
        clashes = self._picture.clashes()
        for name, cells in clashes.items():
            if self._clashes.get(name) != cells:
                self._clashes_seen[name] += 1
                log.error(
                    "hosts of cells %s are called %s: give the name with its cell", ", ".join(cells), name
                )
        self._clashes = clashes
        now = self._clock()
        fallen = [known for known in self._silent(now) if known.row.up and not self._is_up(known, now)]
        self._tell(fallen, now)

    def _silent(self, now: datetime) -> list[_KnownHost]:
        """The hosts for which `is_silent` holds. All are looked at every few seconds, so without a call for each."""
        since = now - self.down_after
        return [known for known in self._hosts.values() if known.heard <= since]

    def may_be_down(self, after: str, limit: int) -> tuple[ProviderId, ...]:
        """The hosts that are not known to be up, in the order of their names: the first ones after this name, with all that have the last name."""
        since = self._clock() - self.down_after
        rows = [known.row for known in self._hosts.values() if not known.row.up or known.heard <= since]
        found = sorted([(row.name, row.id) for row in rows if row.name > after])
        last = found[limit - 1][0] if len(found) > limit else ""
        return tuple([id_ for name, id_ in found if not last or name <= last])

    def as_heard(self, row: HostState) -> HostState:
        """This row of the database, with what only this process knows. That is whether the host is up, when it was heard, its zone, its place, its
        aggregates, and which other cells have a host of its name.
        """
        known = self._hosts.get(row.id.int)
        return structs.replace(
            row,
            up=known is not None and may_be_up(row) and self._is_heard(known, self._clock()),
            heard_at=row.heard_at if known is None else known.heard,
            availability_zone=self._picture.zone_of(row.id) or row.availability_zone,
            place=self._picture.place_of(row.id),
            aggregates=self._picture.aggregate_names_of(row.id),
            also_in=tuple(cell for cell in self._picture.cells_named(row.name) if cell != row.cell),
        )

    def _is_up(self, known: _KnownHost, now: datetime) -> bool:
        return may_be_up(known.row) and self._is_heard(known, now)

    def _is_heard(self, known: _KnownHost, now: datetime) -> bool:
        if not is_silent(now - known.heard, self.down_after):
            return True
        return known.row.up and self._excuses(known.row.cell, self.down_after)

    def _tell(self, changed: Sequence[_KnownHost], now: datetime) -> None:
        for known in changed:
            if known.row.up is not (is_up := self._is_up(known, now)):
                known.row = structs.replace(known.row, up=is_up)
        self._picture.put_hosts([known.row for known in changed])


# Hosts that placement has had for a moment only, and that have told the registry nothing of themselves yet.
#
# A compute that starts reports its trees to placement and its facts to schedulers at the same time. If placement is faster, a
# request that waited for the start of the whole cloud would be told that no host fits.


# A host that has not told of itself after this time is not waited for: it may be a provider that only placement knows.
TOLD_WITHIN_S = 2.0
LOOK_S = 0.1


class Newcomers:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        # When each host that has told nothing was first missed.
        self._missed_at_s = dict[ProviderId, float]()

    async def until_told(self) -> bool:
        """Wait until each newcomer has told of itself, but not longer than `TOLD_WITHIN_S`. Returns whether it waited."""
        for look in range(int(TOLD_WITHIN_S / LOOK_S)):
            if not self._are_any():
                return look > 0
            await asyncio.sleep(LOOK_S)
        return True

    def _are_any(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        self._missed_at_s = {
            host: self._missed_at_s.get(host, now_s) for host in self._picture.unregistered()
        }
        return any(now_s < missed_s + TOLD_WITHIN_S for missed_s in self._missed_at_s.values())


# The rows of hosts, read at start and whenever another worker may have written one; their loads, which are written beside the
# rows; and the hosts that fell silent.


# Clocks differ, and a write is committed after its time was taken.
OVERLAP = timedelta(seconds=60)
# Every worker hears the loads of hosts, and which hosts were deleted. All are read for the case that it has missed some.
ALL_READ_AFTER = timedelta(seconds=60)


class HostWatch(Periodic):
    def __init__(
        self,
        store: SchedulerStore,
        registry: HostRegistry,
        poll_s: float,
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("read hosts", self._look, poll_s, is_needed=True, chance=chance)
        self._store = store
        self._registry = registry
        self._clock = clock
        self._since = EPOCH
        # The rows that were written lately, as they were read: each look finds them again for the time of the overlap.
        self._versions: dict[int, HostVersion] = {}
        self._all_read_at = clock()

    async def look_again(self) -> None:
        """On return, the registry has every row of its doubted hosts that was written before the call."""
        if doubted := self._registry.doubted():
            self._registry.learn(await self._store.hosts(HostQuery(ids=doubted)))

    async def refresh(self) -> None:
        """Read changed hosts from the database. On return, the registry has every row that was written before the call."""
        now = self._clock()
        if self._since == EPOCH:
            self._registry.learn(await self._store.hosts(HostQuery()))
        else:
            versions = await self._store.host_versions(self._since)
            news = tuple([host for host, version in versions if self._versions.get(host.int) != version])
            if news:
                self._registry.learn(await self._store.hosts(HostQuery(ids=news)))
            self._versions = {host.int: version for host, version in versions}
        self._since = now - OVERLAP

    async def _read_all(self) -> None:
        now = self._clock()
        if now - self._all_read_at >= ALL_READ_AFTER:
            await self._forget_deleted()
            self._registry.learn_loads(await self._store.host_loads())
            self._all_read_at = now

    async def _forget_deleted(self) -> None:
        """Forget the hosts whose rows another worker has deleted. One that has a new row since is a new host."""
        known = self._registry.rows_written()
        stored = {host: sequence for host, (_, sequence) in await self._store.host_versions(EPOCH)}
        gone = [host for host, sequence in known.items() if stored.get(host, -1) < sequence]
        self._registry.forget(gone)
        if back := tuple([host for host in gone if host in stored]):
            self._registry.learn(await self._store.hosts(HostQuery(ids=back)))

    async def _look(self) -> None:
        try:
            await self.refresh()
            await self._read_all()
        finally:
            # A host may fall silent while the database cannot be read.
            self._registry.look()
        await self._save_silences()

    async def _save_silences(self) -> None:
        """Write which hosts fell silent, and which are heard again: a scheduler that starts needs it. Every scheduler finds
        the same, and the first one writes it.
        """
        silences = self._registry.unwritten_silences()
        if not silences:
            return
        async with self._store.transaction() as transaction:
            rows = await transaction.lock_hosts(sorted(silences), ())
            changed = [
                structs.replace(row, silent_since=silences[row.id], sequence=row.sequence + 1)
                for row in rows
                if (row.silent_since is None) is not (silences[row.id] is None)
            ]
            await transaction.save_hosts(changed, self._clock())
        self._registry.learn(changed)


# Tells the cells in which mode each of their hosts is (up, draining, down, dead). A host's row says which setting its
# cell was told, so a message that was lost is sent again.


class ModeTeller(Periodic):
    """Tells the cells on one broker in which mode their hosts are. There is one for each broker, so a broker that is
    away holds up no cells on others.
    """

    def __init__(
        self,
        station: Station,
        store: SchedulerStore,
        registry: HostRegistry,
        is_there: Callable[[str], bool],
        *,
        every_s: float,
        clock: Callable[[], datetime],
    ) -> None:
        """`is_there` says whether a cell uses the broker of this station."""
        super().__init__(
            "tell cells how hosts are set", self.tell, every_s, is_cut_short=True, chance=station.chance
        )
        self._publisher = station.publisher
        self._word_s = every_s
        self._store = store
        self._registry = registry
        self._is_there = is_there
        self._clock = clock
        registry.when_untold.append(self.wake)

    async def tell(self) -> None:
        """Tell the cells; on return, the rows of those hosts whose cell could be told say so."""
        untold = [host.id for host in self._registry.untold() if self._is_there(host.cell)]
        if not untold:
            return
        # What this process knows may be older than the rows, or newer: then a report is not written yet.
        rows = [host for host in await self._store.hosts(HostQuery(ids=tuple(untold))) if is_untold(host)]
        words = [word_for_cell(host) for host in rows]
        if words and await self._publisher.send_within(self._word_s, words):
            await self._note_told(rows)

    async def _note_told(self, told: list[HostState]) -> None:
        numbers = {host.id: host.setting.number for host in told}
        async with self._store.transaction() as transaction:
            rows = await transaction.lock_hosts(sorted(numbers), ())
            noted = [
                structs.replace(host, told=numbers[host.id], sequence=host.sequence + 1)
                for host in rows
                if host.told < numbers[host.id]
            ]
            await transaction.save_hosts(noted, self._clock())
        self._registry.learn(noted)
