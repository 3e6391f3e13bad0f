"""Runs the demo with real guests.

1. Twenty guests are booted, on four hosts with a libvirtd each.
2. The QEMU process of one is killed, and its instance is started again.
3. One is resized, which takes it to the other host of its cell.
4. A host's libvirtd is killed. Meanwhile a guest boots elsewhere, and one on that host is to be deleted. Then the libvirtd comes back.
5. All is compared: books, libvirt's domains, and processes. Then all is deleted, and nothing may be left.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import ClassVar

from msgspec import Struct

from bus.auditing.at_rest import Asked
from bus.broker import Connection
from bus.configuration.settings import BusSettings
from bus.memory import MemoryBroker
from bus.messages.build import Flavor, InstanceId, InstanceState
from bus.process import Part
from bus.workers.station import Station
from compute_sim.libvirt.running import libvirt_parts
from compute_sim.libvirt.settings import LibvirtSettings
from compute_sim.settings import ComputeSettings
from moor.asking import station_on
from moor.client import Client, ClientError, NoConsoleFound, NotDone
from moor.clouds.cloud import cloud
from moor.laboratory.at_rest import lasting, problems_of
from moor.laboratory.demo.guests.checking import GuestFindings, conclude, why_not_done
from moor.laboratory.demo.guests.machines import CELLS, GUEST_LINE, IMAGE, DomainType, Machines, domain_of
from moor.laboratory.load.orders import amounts_of
from moor.options import fail, out
from moor.tables import lines_of
from moor.worker_settings import CloudSettings

GUESTS = 20
# For the boots and deletes of a slow machine.
BOOT_S = 120.0
SMALL = Flavor(name="small", vcpus=1, ram_mb=32, root_gb=1)
LARGE = Flavor(name="large", vcpus=1, ram_mb=64, root_gb=1)
CONSOLE_LINES, PIDS_SHOWN = 3, 3
PAUSE_S = 0.1
# How long a delete is watched that cannot be done, and how long late changes may take at the end.
WATCHED_S, SETTLES_S = 2.0, 15.0


class GuestDemoPlan(Struct, frozen=True):
    """A demo with real guests. It fails if it takes longer than `patience_s`: to learn what QEMU can do may take a minute."""

    domain_type: DomainType

    patience_s: ClassVar = 300.0
    defaults: ClassVar = CloudSettings(
        # A host is down soon after its libvirt has gone.
        bus=BusSettings(host_down_s=4.0),
        compute=ComputeSettings(beat_s=0.5, facts_every_s=0.5, again_s=0.2),
    )


async def run_guests(plan: GuestDemoPlan, settings: CloudSettings) -> None:
    machines = Machines(plan.domain_type)
    try:
        async with asyncio.timeout(plan.patience_s):
            out.print(f"[dim]starting a libvirtd for each of {len(machines.hosts)} hosts …[/dim]")
            await asyncio.to_thread(machines.start)
            async with _running_cloud(machines, settings) as parts:
                try:
                    await GuestDemo(machines, *parts).run()
                except BaseException:
                    # Nobody needs the guests any more, and the workers need not wait for libvirt.
                    machines.close()
                    raise
    except NotDone as failed:
        fail(why_not_done(failed))
    except ClientError as failed:
        fail(str(failed))
    finally:
        machines.close()
    if left := machines.left():
        fail("\n".join(["the demo has left something behind:", *left]))
    out.print("[green]✓[/green] every libvirtd and every QEMU process has ended, and every file is removed")


@asynccontextmanager
async def _running_cloud(
    machines: Machines, settings: CloudSettings
) -> AsyncIterator[tuple[Client, Station, Connection]]:
    broker = MemoryBroker().as_user()
    computes = {cell: partial(_parts, of_libvirt=machines.settings(cell)) for cell in CELLS}
    url = f"sqlite+aiosqlite:///{machines.folder / 'moor.db'}"
    async with (
        cloud(broker, url, dict.fromkeys(CELLS, ()), settings=settings, computes=computes),
        Client(broker, as_operator=True) as client,
        station_on(broker, "demo") as (station, _),
    ):
        connection = await broker.connect()
        try:
            yield client, station, connection
        finally:
            await connection.close()


@asynccontextmanager
async def _parts(
    station: Station, settings: ComputeSettings, *, of_libvirt: LibvirtSettings
) -> AsyncIterator[Sequence[Part]]:
    async with libvirt_parts(station, settings, of_libvirt) as parts:
        yield parts


class GuestDemo:
    """The steps of the demo, one after the other. Each says what it sees, and notes it for the checks at the end."""

    def __init__(self, machines: Machines, client: Client, station: Station, connection: Connection) -> None:
        self._machines = machines
        self._client = client
        self._station = station
        self._connection = connection
        self._flavors: dict[InstanceId, Flavor] = {}
        self._began_s = time.monotonic()
        self.seen = GuestFindings()

    async def run(self) -> None:
        await self._until(self._all_hosts_are_up)
        say = f"{len(self._machines.hosts)} hosts in {len(CELLS)} cells, a libvirtd each; a bus in memory and SQLite"
        out.print(f"\n[bold]Moorage[/bold]  {GUESTS} guests of QEMU, {say}\n")
        guests = await self._boot(GUESTS)
        await self._read_console(guests[0])
        await self._kill_a_guest(guests[1])
        await self._resize(guests[2])
        await self._stop_a_libvirtd()
        await self._compare()
        conclude(self.seen, await self._problems())
        await self._delete_all()

    # Steps

    async def _boot(self, count: int) -> Sequence[InstanceState]:
        began_s = time.monotonic()
        request = await self._client.boot(SMALL, name="web", image=IMAGE, count=count)
        states = await request.until_done(BOOT_S)
        self._flavors |= {each.id: SMALL for each in states}
        self._say(
            f"[bold]{count}[/bold] guests are active, {time.monotonic() - began_s:.1f} s after the request"
        )
        guests = await asyncio.to_thread(
            lambda: {name: [*self._machines.guests(name).values()] for name in self._machines.hosts}
        )
        out.print(
            lines_of(
                [
                    (f"  {name}", f"{len(pids)} guests", f"[dim]QEMU processes {_short(pids)}[/dim]")
                    for name, pids in guests.items()
                ]
            )
        )
        return states

    async def _read_console(self, guest: InstanceState) -> None:
        await self._until(lambda: self._has_written(guest))
        self._say(f"the serial console of {guest.name}, as `moor console {guest.name}` prints it:")
        for line in self.seen.console[-CONSOLE_LINES:]:
            out.print(f"  │ {line}", markup=False, highlight=False)

    async def _kill_a_guest(self, guest: InstanceState) -> None:
        pid = await asyncio.to_thread(self._machines.kill_guest, guest.host, domain_of(guest))
        began_s = time.monotonic()
        stopped = await self._until_state(guest, "stopped")
        self.seen.stopped_s = time.monotonic() - began_s
        self._say(
            f"QEMU's process {pid} of {guest.name} on {guest.host} was killed; {self.seen.stopped_s:.1f} s later it is [yellow]stopped[/yellow]: {stopped.reason}"
        )
        await (await self._client.start(guest.id)).until_done()
        self.seen.started = await self._client.show(guest.id)
        self._say(f"{guest.name} was started again, and is [green]{self.seen.started.state}[/green]")

    async def _resize(self, guest: InstanceState) -> None:
        await (await self._client.resize(guest.id, LARGE, confirm_s=0)).until_done()
        self._flavors[guest.id] = LARGE
        resized = await self._client.show(guest.id)
        self.seen.memory_kib_wanted = LARGE.ram_mb * 1024
        self.seen.memory_kib = await asyncio.to_thread(
            self._machines.memory_kib, resized.host, domain_of(resized)
        )
        self._say(
            f"{guest.name} was resized from {SMALL.ram_mb} to {LARGE.ram_mb} MiB: its domain has {self.seen.memory_kib:,} KiB, "
            f"on {resized.host} (before: {guest.host})"
        )

    async def _stop_a_libvirtd(self) -> None:
        active = [each async for each in self._client.list_instances(state="active")]
        (name, guests), *_ = Counter(each.host for each in active).most_common(1)
        host = self._machines.hosts[name]
        before = await asyncio.to_thread(self._machines.guests, name)
        await asyncio.to_thread(host.kill)
        began_s = time.monotonic()
        self._say(f"libvirtd of [bold]{name}[/bold] was killed; {guests} guests are there")
        await self._until(lambda: self._is_up(name, up=False))
        runs_on = await asyncio.to_thread(self._machines.guests, name)
        told = [each async for each in self._client.list_instances(host=name, state="active")]
        self.seen.ran_on = runs_on == before
        self._say(
            f"  {time.monotonic() - began_s:.1f} s later the host is [yellow]down[/yellow]; {len(runs_on)} of {guests} QEMU processes run on, and "
            f"{len(told)} instances stay active: nobody knows better"
        )
        (elsewhere,) = await (await self._client.boot(SMALL, name="later", image=IMAGE)).until_done(BOOT_S)
        self._flavors[elsewhere.id] = SMALL
        self.seen.elsewhere = elsewhere.host
        self._say(f"  a new guest boots meanwhile, on {elsewhere.host}")
        doomed = next(each for each in active if each.host == name)
        deleting = await self._client.delete(doomed.id)
        del self._flavors[doomed.id]
        await asyncio.sleep(WATCHED_S)
        state = await self._client.show(doomed.id)
        still = domain_of(doomed) in await asyncio.to_thread(self._machines.guests, name)
        self.seen.waited = still
        self._say(
            f"  {doomed.name} is to be deleted: it is {state.state}, and its guest {'runs on' if still else 'is gone'}"
        )
        await asyncio.to_thread(host.start)
        self._say("  libvirtd is started again")
        await self._until(lambda: self._is_up(name, up=True))
        await deleting.until_done(BOOT_S)
        await self._until(lambda: self._is_gone(name, domain_of(doomed)))
        after = await asyncio.to_thread(self._machines.guests, name)
        self.seen.ran_on &= after == {each: pid for each, pid in before.items() if each != domain_of(doomed)}
        self.seen.away = name
        self._say(
            f"  the host is [green]up[/green], {doomed.name} is deleted, and {len(after)} guests are there"
        )

    async def _compare(self) -> None:
        """Compare the instances with libvirt's domains. Late changes may still be on their way."""

        async def are_equal() -> bool:
            wanted: dict[str, list[str]] = {name: [] for name in self._machines.hosts}
            async for each in self._client.list_instances(state="active"):
                wanted[each.host].append(domain_of(each))
            found = await asyncio.to_thread(self._machines.domains, running=True)
            self.seen.wanted = {name: sorted(each) for name, each in wanted.items()}
            self.seen.found = found
            self.seen.defined = await asyncio.to_thread(self._machines.domains, running=False)
            return self.seen.wanted == found == self.seen.defined

        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLES_S):
                await self._until(are_equal)

    async def _problems(self) -> Sequence[str]:
        """What the books say, when all is at rest."""
        asked = {id_: Asked("active", amounts_of(flavor)) for id_, flavor in self._flavors.items()}
        return await lasting(lambda: problems_of(self._station, self._connection, asked))

    async def _delete_all(self) -> None:
        await (await self._client.delete(*self._flavors)).until_done(BOOT_S)

        async def is_empty() -> bool:
            domains = await asyncio.to_thread(self._machines.domains, running=False)
            return not any(domains.values()) and not self._machines.files()

        await self._until(is_empty)
        out.print(
            f"[green]✓[/green] {len(self._flavors)} instances are deleted: no domain and no disk is left"
        )

    # Waiting, and saying what was seen

    async def _until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        while True:
            if await holds():
                return
            await asyncio.sleep(PAUSE_S)

    async def _until_state(self, guest: InstanceState, state: str) -> InstanceState:
        while True:
            if (found := await self._client.show(guest.id)).state == state:
                return found
            await asyncio.sleep(PAUSE_S)

    async def _all_hosts_are_up(self) -> bool:
        return {each.name async for each in self._client.list_hosts(up=True)} == {*self._machines.hosts}

    async def _is_up(self, name: str, *, up: bool) -> bool:
        return (await self._client.show_host(name)).up == up

    async def _has_written(self, guest: InstanceState) -> bool:
        """Has the guest written its line? The BIOS writes to the console, too, before the guest."""
        with suppress(NoConsoleFound):
            self.seen.console = (await self._client.console(guest.id)).text.splitlines()
        return GUEST_LINE.strip() in self.seen.console

    async def _is_gone(self, host: str, domain: str) -> bool:
        return domain not in await asyncio.to_thread(self._machines.guests, host)

    def _say(self, text: str) -> None:
        out.print(f"[dim]{time.monotonic() - self._began_s:5.1f} s[/dim]  {text}", highlight=False)


def _short(pids: Sequence[int]) -> str:
    more = ", …" if len(pids) > PIDS_SHOWN else ""
    return ", ".join(map(str, sorted(pids)[:PIDS_SHOWN])) + more
