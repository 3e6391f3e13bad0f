"""Notices which hosts of the cell are lost, and which dead ones come back.

If a host is lost, the instances that wait for it go on without it. If a dead host comes back, it is asked for a list of what it
runs. It is ordered to destroy the attempts that the cell has given up, until it has none of them. The list is needed because
the rows of ended instances are deleted. A host that was only silent sends that list by itself.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from bus.message import ProviderId
from bus.messages.host_modes import CheckHost
from bus.messages.hosts import NODE
from bus.parts import PartGroup, Periodic
from bus.workers.station import Station
from cell_conductor.core.decide import HostsLost
from cell_conductor.core.host_states import ALL_UP, CellHost, HostStates, awaited, concerns, number_of
from cell_conductor.core.instance import Instance
from cell_conductor.handlers import Decider
from cell_conductor.heard_hosts import HeardHosts
from cell_conductor.settings import ConductorSettings
from cell_conductor.store import ConductorStore
from cell_conductor.timers import Timers


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
        settings: ConductorSettings,
        *,
        clock_s: Callable[[], float] | None = None,
    ) -> None:
        """`clock_s` measures how long hosts are silent."""
        self._heard = HeardHosts(station, decider.rules.cell, clock_s)
        self._every_s = min(settings.look_s, station.settings.host_down_s / 10)
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
        states = self._states = self._decider.hosts = HostStates(self._set, self._silent())
        self._decider.modes_are_read = True
        if states != before and (states.lost() - before.lost() or states.dead() - before.dead()):
            self._readings_left = 2
        await self._check_unclean()
        if self._heard.has_listened_long and not self._has_listened_long:
            await self._miss_hosts(states)
        self._has_listened_long = self._heard.has_listened_long
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
        if unsaid := self._heard.unsaid(self._decider.clock()):
            await self._store.save_heard_hosts(unsaid)
            self._heard.said(unsaid)

    def _silent(self) -> frozenset[int]:
        return frozenset(host.int for host in self._heard.silent())

    async def _read_waiting(self) -> None:
        async for page in self._waiting():
            concerned = [HostsLost(row.id) for row in page if concerns(row, self._decider.hosts)]
            if concerned:
                await self._timers.carry_out(concerned)

    async def _miss_hosts(self, states: HostStates) -> None:
        """Find the silent hosts that no conductor has ever heard: they fell silent before any did.

        Only hosts that some row waits for are needed, so only those are looked for.
        """
        async for page in self._waiting():
            self._heard.miss(
                host.share.host for row in page if (host := awaited(row)) is not None and host.kind != NODE
            )
        if silent := self._silent() - states.silent:
            self._states = self._decider.hosts = HostStates(states.set, states.silent | silent)
            self._readings_left = 2

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
            CheckHost(cell=self._decider.rules.cell, host=each.word.host, number=number_of(each))
            for each in unclean
        ]
        # They are asked again at the next look: an order that has not left by then would ask twice.
        if orders:
            await self._publisher.send_within(self._every_s, orders)
