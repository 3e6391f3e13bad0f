"""Notices which hosts of the cell are lost, and which dead ones come back.

If a host is lost, the instances that wait for it go on without it. If a dead host comes back, it is asked for a list of what it
runs. It is ordered to destroy the attempts that the cell has given up, until it has none of them. The list is needed because
the rows of ended instances are deleted. A host that was only silent sends that list by itself.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from math import inf

from msgspec import structs

from bus.message import EVENTS, Message
from bus.messages.cloud import SILENT_TOLD_MAX, ConductorAlive
from bus.messages.hosts import (
    CheckHost,
    HeldAttempt,
    HostCleaned,
    HostHolds,
    HostsAlive,
    HostsNotHere,
    SetHostInCell,
)
from bus.queues import Grant
from bus.topology import destination_of_like
from bus.workers.connections import FeedListener, Station
from bus.workers.handlers import Handlers, Received, Said, Tell
from bus.workers.heartbeats import is_silent
from cell_conductor.core.decide import HostsLost
from cell_conductor.core.rows import (
    ALL_UP,
    CellHost,
    Destroy,
    HeardHost,
    HostStates,
    Instance,
    awaited,
    concerns,
    foreign,
    newer,
)
from cell_conductor.core.transition import destroy_order
from cell_conductor.handlers import Decider, Timers, of_cell
from cell_conductor.settings import ConductorPace
from cell_conductor.store_sql import ConductorStore, ConductorTransaction
from engine.hosts import NODE
from engine.inventories import CellName, ProviderId
from kit.errors import Operational
from kit.parts import PartGroup, PartState, Periodic

log = logging.getLogger(__name__)

# Handles the orders that set the mode of a host, and what a compute says of hosts: the list of what one has after it was silent
# or dead, or that it has none of a name.


def host_handlers(
    cell: CellName, expect_setting: Callable[[], None], lose: Callable[[Iterable[ProviderId]], None]
) -> Handlers:
    """The handlers of messages about hosts, by message type.

    `expect_setting` is called in each transaction that saves modes of hosts, so that the host watch reads them right
    after the commit; `lose` with the hosts that the cell's compute does not have.
    """

    async def on_settings(
        received: Sequence[Received[SetHostInCell]], tx: ConductorTransaction
    ) -> list[Said]:
        ours, said = of_cell(cell, received)
        hosts = dict(await tx.lock_hosts([each.message.host for each in ours]))
        changed: dict[ProviderId, CellHost] = {}
        for each in ours:
            word = each.message
            if (host := newer(hosts.get(word.host), word)) is not None:
                changed[word.host] = hosts[word.host] = host
        await tx.save_hosts([*changed.values()])
        expect_setting()
        return said

    async def on_holds(received: Sequence[Received[HostHolds]], tx: ConductorTransaction) -> list[Said]:
        ours, said = of_cell(cell, received)
        rows = await tx.load([each.instance for item in ours for each in item.message.attempts])
        hosts = await tx.lock_hosts([each.message.host for each in ours])
        for item in ours:
            holds = item.message
            host = hosts.get(holds.host)
            # Of a host that was dead everything is elsewhere by now.
            must_clean = host is not None and host.must_clean
            gone = foreign(rows, holds.host, holds.attempts, destroys_unknown=must_clean)
            said += [
                Tell(_order_to_remove(rows.get(each.instance), each, item.message), item) for each in gone
            ]
            if gone and must_clean:
                # From the first page, until it has nothing that is not its own.
                log.debug("a host that was dead has what is not its own: it is asked again")
                continue
            if holds.next is not None:
                again = CheckHost(cell=cell, host=holds.host, number=holds.number, after=holds.next)
                said.append(Tell(again, item))
            elif host is not None and host.is_cleaned_by(holds.number):
                await tx.save_hosts([structs.replace(host, cleaned=holds.number)])
                said.append(Tell(HostCleaned(cell=cell, host=holds.host, number=holds.number), item))
        return said

    async def on_not_here(received: Sequence[Received[HostsNotHere]], _: ConductorTransaction) -> list[Said]:
        ours, said = of_cell(cell, received)
        lose(host for each in ours for host in each.message.hosts)
        return said

    return {SetHostInCell: on_settings, HostHolds: on_holds, HostsNotHere: on_not_here}


def _order_to_remove(row: Instance | None, held: HeldAttempt, holds: HostHolds) -> Destroy:
    """An instance that is given back leaves its guest on the host."""
    is_left = row is not None and row.given_back
    return destroy_order(holds.cell, held.instance, held.attempt, holds.host, "", keeps_guest=is_left)


# Hears the heartbeats of the cell's hosts, and knows which hosts are silent. It needs nothing of the API level.
#
# Silence counts only while this process listens: after it has connected again, or was suspended, each host counts as heard
# just now. A host that was found silent before that, by this process or by one before it, stays silent until it is heard: by
# a third of the usual time a host that lives has sent several heartbeats.


# A silent host is remembered, however long: an order may still name it. Beyond so many hosts, which is more than a cell has,
# those that have been silent for longest are forgotten: they have left the cell.
HOSTS_KEPT_MAX = 100_000
# Hosts that were found silent before this process listened are silent if they are not heard within this share of the time.
STILL_SILENT_AFTER = 1 / 3


class HeardHosts(FeedListener):
    """Hears the heartbeats of the cell's hosts. `clock_s` never jumps; by default it is the event loop's."""

    def __init__(self, station: Station, cell: CellName, clock_s: Callable[[], float] | None = None) -> None:
        grant = Grant(EVENTS, (destination_of_like(HostsAlive, cell).routing_key,))
        super().__init__("hear the heartbeats of hosts", station, (grant,), self._take)
        self._cell = cell
        self._clock_s = clock_s or (lambda: asyncio.get_running_loop().time())
        self._down_after = timedelta(seconds=station.settings.host_down_s)
        self._still_silent_after_s = station.settings.host_down_s * STILL_SILENT_AFTER
        # When each host was heard last; -inf for one that is needed, and was not heard.
        self._heard: dict[ProviderId, float] = {}
        # Hosts that were found silent, and were not heard since.
        self._silent: set[ProviderId] = set()
        # Those of them of which their compute has said that it does not have them: nothing need be listened for.
        self._lost: set[ProviderId] = set()
        # The hosts that are heard, and those that are silent, as the database has them.
        self._saved_heard: set[ProviderId] = set()
        self._saved_silent: set[ProviderId] = set()
        self._since_s = 0.0
        self._judged_s = 0.0

    def _take(self, batch: Sequence[Received[Message]]) -> None:
        if batch == ():
            self._begin_again()
        for each in batch:
            if isinstance(each.message, HostsAlive) and each.message.cell == self._cell:
                self.hear(each.message.hosts)

    def hear(self, hosts: Iterable[ProviderId]) -> None:
        # A dict and a set that are made of a dict take its hashes over: Python computes that of a UUID at each lookup. The hosts that
        # are known stay the same objects, which are compared at once.
        heard = dict.fromkeys(hosts, self._clock_s())
        self._heard |= heard
        if self._silent:
            ids = set(heard)
            self._silent -= ids
            self._lost -= ids
        if (too_many := len(self._heard) - HOSTS_KEPT_MAX) > 0:
            for gone in sorted(self._heard, key=self._heard.__getitem__)[:too_many]:
                del self._heard[gone]
                for known in (self._silent, self._lost, self._saved_heard, self._saved_silent):
                    known.discard(gone)

    def lose(self, hosts: Iterable[ProviderId]) -> None:
        """These hosts are silent until they are heard: nothing of the cell has them."""
        lost = dict.fromkeys(hosts, -inf)
        self._heard |= lost
        self._silent |= set(lost)
        self._lost |= set(lost)

    def remember(self, hosts: Sequence[HeardHost]) -> None:
        """Take over what the database says of the hosts that conductors have heard, at the start of this process."""
        self.saved(hosts)
        unheard = {host.id for host in hosts} - self._heard.keys()
        self.miss(unheard)
        self._silent |= unheard & self._saved_silent

    def unsaved(self, now: datetime) -> list[HeardHost]:
        """The hosts of which the database does not say yet what this process knows."""
        silent = self._silent - self._saved_silent
        heard = set(self._heard) - self._silent - self._saved_heard
        return [HeardHost(host, now if host in silent else None) for host in sorted(silent | heard)]

    def saved(self, hosts: Sequence[HeardHost]) -> None:
        """The database says this of these hosts now."""
        silent = {host.id for host in hosts if host.silent_since is not None}
        heard = {host.id for host in hosts} - silent
        self._saved_heard = self._saved_heard - silent | heard
        self._saved_silent = self._saved_silent - heard | silent

    def is_heard(self, host: ProviderId) -> bool:
        """Was this host heard, and is it not silent now?"""
        heard_s = self._heard.get(host, -inf)
        return heard_s > -inf and host not in self._silent and not self._is_silent(heard_s)

    @property
    def has_listened_long(self) -> bool:
        """Has this process listened for long enough that hosts which it never heard are silent?"""
        return self._is_silent(self._since_s)

    def miss(self, hosts: Iterable[ProviderId]) -> None:
        """These hosts are needed: one that was never heard is silent as soon as this process has listened for long."""
        self._heard |= dict.fromkeys(sorted({*hosts} - self._heard.keys()), -inf)

    def silent(self) -> Collection[ProviderId]:
        """The hosts that are silent now.

        The caller asks often. If it did not ask for long, this process was suspended: then each host counts as heard
        just now.
        """
        now_s = self._clock_s()
        was_suspended = now_s - self._judged_s > self._down_after.total_seconds() / 2
        self._judged_s = now_s
        if self.status.state is not PartState.WELL or was_suspended:
            self._begin_again()
            return ()
        if not self.has_listened_long:
            listened_s = now_s - self._since_s
            return {*(self._silent if listened_s >= self._still_silent_after_s else self._lost)}
        # Hosts are heard many at once, so these times are few.
        too_long_ago = {heard_s for heard_s in {*self._heard.values()} if self._is_silent(heard_s)}
        if too_long_ago:
            self._silent |= {host for host, heard_s in self._heard.items() if heard_s in too_long_ago}
        return self._silent

    def latest_of(self, silent: AbstractSet[int], most: int) -> list[ProviderId]:
        """Those of these hosts that were heard last."""
        known = [host for host in self._silent if host.int in silent]
        return sorted(known, key=lambda host: (-self._heard.get(host, -inf), host))[:most]

    def _is_silent(self, heard_s: float) -> bool:
        unheard_s = self._clock_s() - max(heard_s, self._since_s)
        return is_silent(timedelta(seconds=unheard_s), self._down_after)

    def _begin_again(self) -> None:
        self._since_s = self._clock_s()


class CellHostWatch(PartGroup):
    """A part of a conductor that watches the cell's hosts. If a cell has several conductors, each has one.

    They need not know of each other: what another conductor has done already changes nothing.
    """

    def __init__(
        self,
        station: Station,
        store: ConductorStore,
        timers: Timers,
        decider: Decider,
        pace: ConductorPace,
        *,
        clock_s: Callable[[], float] | None = None,
    ) -> None:
        """`clock_s` measures how long hosts are silent."""
        self._heard = HeardHosts(station, decider.rules.cell, clock_s)
        self._every_s = min(pace.look_s, station.settings.host_down_s / 10)
        self._watching = Periodic("watch the hosts", self._look, self._every_s, chance=station.chance)
        super().__init__(self._heard, self._watching)
        self._publisher = station.publisher
        self._store = store
        self._timers = timers
        self._decider = decider
        self._set: Mapping[int, CellHost] = {}
        # As of the last look. A decision may have learned of a host before: rows that wait for it are read all the same.
        self._states = ALL_UP
        self._unclean: Sequence[CellHost] = ()
        self._writes_read = 0
        self._has_listened_long = False
        self._remembers = False
        # How often the rows that wait must still be read: once more after each change, since another batch may just
        # have decided by what was known before.
        self._readings_left = 0

    def silent(self) -> Sequence[ProviderId]:
        """The hosts that were silent at the last look, as many as a heartbeat names."""
        return self._heard.latest_of(self._states.silent, SILENT_TOLD_MAX)

    def expect_setting(self) -> None:
        """Note that a transaction saves the mode of a host: after its commit, the watch reads the modes again at once."""
        self._timers.after_commit(self._watching.wake)

    def lose(self, hosts: Iterable[ProviderId]) -> None:
        """The cell's compute does not have these hosts: what waits for them goes on without them at once."""
        self._heard.lose(hosts)
        self._watching.wake()

    async def _look(self) -> None:
        before = self._states
        await self._read_set()
        await self._keep_heard()
        if self._heard.has_listened_long and not self._has_listened_long:
            await self._miss_hosts()
        self._has_listened_long = self._heard.has_listened_long
        states = self._states = self._decider.hosts = HostStates(self._set, self._silent())
        self._decider.modes_are_read = True
        if states != before and (states.lost() - before.lost() or states.dead() - before.dead()):
            self._readings_left = 2
        await self._check_unclean()
        if self._readings_left:
            await self._read_waiting()
            self._readings_left -= 1

    async def _read_set(self) -> None:
        """Read the modes that operators have set for hosts, if any was written since the last look.

        An order to set a mode reaches only one conductor of the cell. The others find it here.
        """
        writes = await self._store.host_writes()
        if writes != self._writes_read:
            hosts = await self._store.hosts()
            self._set = {host.word.host.int: host for host in hosts}
            self._unclean = [host for host in hosts if host.must_clean]
            self._writes_read = writes

    async def _keep_heard(self) -> None:
        """Keep in the database which hosts were heard, and which of them fell silent: a conductor that starts knows it then.

        Written only when that changes. Other conductors of the cell hear the same hosts, and write the same.
        """
        if not self._remembers:
            self._heard.remember(await self._store.heard_hosts())
            self._remembers = True
        if unsaved := self._heard.unsaved(self._decider.clock()):
            await self._store.save_heard_hosts(unsaved)
            self._heard.saved(unsaved)

    def _silent(self) -> frozenset[int]:
        return frozenset(host.int for host in self._heard.silent())

    async def _read_waiting(self) -> None:
        async for page in self._waiting():
            concerned = [HostsLost(row.id) for row in page if concerns(row, self._decider.hosts)]
            if concerned:
                await self._timers.carry_out(concerned)

    async def _miss_hosts(self) -> None:
        """Find the silent hosts that no conductor has ever heard: they fell silent before any did.

        Only hosts that some row waits for are needed, so only those are looked for.
        """
        async for page in self._waiting():
            self._heard.miss(
                host.share.host for row in page if (host := awaited(row)) is not None and host.kind != NODE
            )

    async def _waiting(self) -> AsyncIterator[tuple[Instance, ...]]:
        """All rows that wait for a host, in pages, the earliest due first.

        A row is due when it has waited long enough. So these are the rows that are due within the longest time for
        which any row waits.
        """
        rules = self._decider.rules
        longest = max(
            *(rules.attempt_timeout, rules.destroy_timeout, rules.deploy_timeout, rules.undeploy_timeout),
            *(rules.remind_every, rules.ask_lease, rules.retry_delay_max),
        )
        until, after = self._decider.clock() + longest, None
        while page := await self._store.waiting(until, after):
            yield page
            last = page[-1]
            assert last.due_at is not None, "it was found by when it is due"
            after = (last.due_at, last.id)

    async def _check_unclean(self) -> None:
        """Ask hosts that were dead, and are heard again, what they have. The answer decides what they must destroy."""
        unclean = [each for each in self._unclean if self._heard.is_heard(each.word.host)]
        orders = [
            CheckHost(cell=self._decider.rules.cell, host=each.word.host, number=each.word.setting.number)
            for each in unclean
        ]
        # They are asked again at the next look: an order that has not left by then would ask twice.
        if orders:
            await self._publisher.send_within(self._every_s, orders)


# The heartbeats of a conductor tell schedulers that it lives, and whether it can work: it cannot without its database.


TROUBLE_LENGTH_MAX = 1000


async def conductor_beats(
    store: ConductorStore,
    silent: Callable[[], Sequence[ProviderId]],
    *,
    cell: str,
    name: str,
    within_s: float,
) -> tuple[ConductorAlive]:
    trouble = await _trouble(store, within_s)
    return (ConductorAlive(cell=cell, conductor=name, trouble=trouble, silent=tuple(silent())),)


async def _trouble(store: ConductorStore, within_s: float) -> str:
    """Why this conductor cannot work now; empty if its database answers."""
    try:
        async with asyncio.timeout(within_s):
            await store.read((), None, 1)
    except TimeoutError:
        return f"its database has not answered within {within_s:g} s"
    except Operational as problem:
        return f"its database: {problem}"[:TROUBLE_LENGTH_MAX]
    return ""
