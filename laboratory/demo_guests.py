"""`moor demo --libvirt`: real guests of QEMU, on libvirtds of the demo's own.

1. Twenty guests are booted, on four hosts with a libvirtd each.
2. The QEMU process of one is killed, and its instance is started again.
3. One is resized, which takes it to the other host of its cell.
4. A host's libvirtd is killed. Meanwhile a guest boots elsewhere, and one on that host is to be deleted. Then the libvirtd comes back.
5. All is compared: books, libvirt's domains, and processes. Then all is deleted, and nothing may be left.

The hosts are libvirtds on this machine. Calls to them block, so the demo makes them in threads.
"""

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

from bus.messages.build import InstanceState
from bus.settings import BusSettings
from compute_sim.libvirt.running import libvirt_parts
from compute_sim.libvirt.settings import LibvirtRules
from compute_sim.settings import ComputeSettings
from engine.flavors import Flavor
from laboratory.demo import Demo, until
from laboratory.demo_screen import CELLS, Check, Tally
from laboratory.private_libvirtd import PrivateLibvirtd, check_installed, copy_learnt
from laboratory.private_servers import Keeper
from moor.client import Client, ClientError, NoConsoleFound, NotDone
from moor.clouds.cloud import CloudPlan
from moor.clouds.temporary_cloud import Servers
from moor.options import fail, out
from moor.tables import lines_of
from moor.worker_settings import CloudSettings

HOSTS_PER_CELL = 2
IMAGE = "tiny.raw"
GUEST_LINE = "a guest of Moorage is up\r\n"
# What each host offers of the machine: memory for all guests, in case the others are away.
HOST_MEMORY_MB = 2048
# So many guests share a CPU.
CPU_RATIO = 64.0
SECTOR = 512
SIZE = 1024 * 1024
# 16-bit code of x86 at 0x7c00. It writes the text at 0x7c00 + 64 to the first serial port, waits for about a tick of the BIOS's clock (by
# reading its counter at 0x46c), and begins again.
_CODE = bytes.fromhex(
    "31c0"  # xor ax, ax
    "8ed8"  # mov ds, ax
    "baf803"  # mov dx, 0x3f8
    "fc"  # cld
    "be407c"  # again: mov si, 0x7c40
    "ac"  # next: lodsb
    "84c0"  # test al, al
    "7403"  # jz wait
    "ee"  # out dx, al
    "ebf8"  # jmp next
    "b93600"  # wait: mov cx, 54 (ticks of 55 ms: about three seconds)
    "a16c04"  # tick: mov ax, [0x46c]
    "f4"  # same: hlt
    "3b066c04"  # cmp ax, [0x46c]
    "74f9"  # je same
    "e2f4"  # loop tick
    "ebe4"  # jmp again
)
_QEMU_NAME = re.compile(r"guest=([^,]+)")


def domain_of(guest: InstanceState) -> str:
    return f"moor-{guest.id}-{guest.attempt}"


class Machines:
    """Four hosts on this machine. All that they are is below some folders and processes, which `close` removes and ends."""

    def __init__(self) -> None:
        check_installed()
        self._keeper = Keeper()
        # A socket's path may not be long.
        self.folder = self._keeper.directory
        cache = self.folder / "cache"
        names = [f"{cell}-{number}" for cell in CELLS for number in range(1, HOSTS_PER_CELL + 1)]
        self.hosts = {name: PrivateLibvirtd(cache) for name in names}
        self._made = {self.folder}
        self._begun: set[int] = set()
        self._is_closed = False

    def start(self) -> None:
        """Start all libvirtds: first one alone, which learns what QEMU can do, and then those that read it."""
        copy_learnt(self.folder / "cache")
        first, *others = self.hosts.values()
        first.start()
        # A demo that was stopped meanwhile starts no others.
        with ThreadPoolExecutor(len(others)) as threads:
            for _ in threads.map(PrivateLibvirtd.start, () if self._is_closed else others):
                pass
        if self._is_closed:
            return
        self._made |= {each.directory for each in self.hosts.values()}
        for cell in CELLS:
            images = self.settings(cell).images_folder
            images.mkdir(parents=True)
            (images / IMAGE).write_bytes(bootable_image(GUEST_LINE))

    def close(self) -> None:
        """End all processes and remove all files. `start` may go on in its thread, and then fails."""
        self._is_closed = True
        for host in self.hosts.values():
            self._begun |= {*host.processes()}
            host.stop()
        self._keeper.close()

    def left(self) -> list[str]:
        """What there is still after `close`."""
        return [
            *[f"{each} is there" for each in sorted(self._made) if each.exists()],
            *[f"process {pid} runs" for pid in sorted(self._begun) if psutil.pid_exists(pid)],
        ]

    def settings(self, cell: str) -> LibvirtRules:
        """The settings of the compute that controls the hosts of this cell."""
        return LibvirtRules(
            hosts=tuple([f"{name}={each.uri}" for name, each in self.hosts.items() if name.startswith(cell)]),
            folder=str(self.folder / cell),
            # Emulation works on every machine.
            domain_type="qemu",
            flat=True,
            memory_mb=HOST_MEMORY_MB,
            memory_reserved_mb=0,
            cpu_ratio=CPU_RATIO,
            disk_gb=100,
            # The guests have nothing that shuts them down.
            stop_s=0.1,
            away_s=1.0,
            look_every_s=2.0,
        )

    def domains(self, *, running: bool) -> dict[str, list[str]]:
        """The names of the domains of each host: those that run, or all that are defined. As `virsh` lists them."""
        which = () if running else ("--all",)
        return {
            name: sorted(each.virsh("list", "--name", *which).split()) for name, each in self.hosts.items()
        }

    def memory_kib(self, host: str, domain: str) -> int:
        """How much memory libvirt says that the domain has."""
        found = re.search(r"Max memory:\s+(\d+) KiB", self.hosts[host].virsh("dominfo", domain))
        return int(found[1]) if found else 0

    def guests(self, host: str) -> dict[str, int]:
        """The QEMU processes of a host: their ids, by the names of their domains. Also while its libvirtd is away."""
        found = {}
        for pid in self.hosts[host].processes():
            try:
                line = " ".join(psutil.Process(pid).cmdline())
            except psutil.Error:
                # It has ended meanwhile.
                continue
            if named := _QEMU_NAME.search(line):
                found[named[1]] = pid
        return found

    def kill_guest(self, host: str, domain: str) -> int:
        """Kill the QEMU process of a domain."""
        pid = self.guests(host)[domain]
        os.kill(pid, signal.SIGKILL)
        return pid

    def files(self) -> list[str]:
        """What is left of guests in the folders of the hosts."""
        return sorted(str(each.relative_to(self.folder)) for each in self.folder.glob("*/instances/*/*"))


def bootable_image(text: str) -> bytes:
    """A raw image that boots without an operating system: its boot sector writes this text to the serial port every three seconds."""
    code = _CODE.ljust(64, b"\0") + text.encode() + b"\0"
    assert len(code) <= SECTOR - 2, f"a text of {len(text)} characters does not fit into a boot sector"
    return (code.ljust(SECTOR - 2, b"\0") + b"\x55\xaa").ljust(SIZE, b"\0")


GUESTS = 20
# For the boots and deletes of a slow machine.
BOOT_S = 120.0
SMALL = Flavor(name="small", vcpus=1, ram_mb=32, root_gb=1)
LARGE = Flavor(name="large", vcpus=1, ram_mb=64, root_gb=1)
MEMORY_KIB = LARGE.ram_mb * 1024
CONSOLE_LINES, PIDS_SHOWN = 3, 3
# How long a delete is watched that cannot be done, and how long late changes may take at the end.
WATCHED_S, SETTLES_S = 2.0, 15.0
# A killed guest is told by an event of libvirt; the rest of this time is for a machine that is busy.
STOPPED_S_MAX = 10.0


class GuestFindings(Struct):
    """What the demo has seen, by its steps.

    `wanted`, `found` and `defined` are the domains of each host: those of the active instances, those that run, and all.
    """

    console: Sequence[str] = ()
    stopped_s: float = 0.0
    started: InstanceState | None = None
    memory_kib: int = 0
    away: str = ""
    ran_on: bool = False
    elsewhere: str = ""
    waited: bool = False
    wanted: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    found: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    defined: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)


class GuestDemo(Demo):
    """A demo with real guests. To learn what QEMU can do may take a minute.

    Its steps are one after the other. Each says what it sees, and notes it for the checks at the end.
    """

    patience_s = 300.0
    defaults = CloudSettings(
        # A host is down soon after its libvirt has gone.
        bus=BusSettings(host_down_s=4.0),
        compute=ComputeSettings(beat_s=0.5, facts_every_s=0.5),
    )

    def __init__(self) -> None:
        self.seen = GuestFindings()
        self.tally = Tally()
        self.machines = Machines()

    async def start(
        self, settings: CloudSettings, servers: Servers | None, folder: Path | None = None
    ) -> None:
        """Run the demo on libvirtds that are started for it, and check that nothing is left of them."""
        machines = self.machines
        try:
            async with asyncio.timeout(self.patience_s):
                out.print(f"[dim]starting a libvirtd for each of {len(machines.hosts)} hosts …[/dim]")
                await asyncio.to_thread(machines.start)
                await super().start(settings, servers, folder or machines.folder)
        except NotDone as failed:
            fail(why_not_done(failed))
        except ClientError as failed:
            fail(str(failed))
        finally:
            machines.close()
        if left := machines.left():
            fail("\n".join(["the demo has left something behind:", *left]))
        out.print(
            "[green]✓[/green] every libvirtd and every QEMU process has ended, and every file is removed"
        )

    def plan(self, settings: CloudSettings) -> CloudPlan:
        return CloudPlan(
            cells=dict.fromkeys(CELLS, 0),
            settings=settings,
            computes={cell: partial(libvirt_parts, libvirt=self.machines.settings(cell)) for cell in CELLS},
        )

    async def _run(self, *others: str) -> None:
        try:
            async with Client(self.cloud.broker, as_operator=True) as self._client:
                await super()._run(*self.machines.hosts, *others)
        except BaseException:
            # Nobody needs the guests any more, and the workers need not wait for libvirt.
            self.machines.close()
            raise

    async def steps(self) -> Iterable[Check]:
        say = f"{len(self.machines.hosts)} hosts in {len(CELLS)} cells, a libvirtd each; {self.servers}"
        out.print(f"\n[bold]Moorage[/bold]  {GUESTS} guests of QEMU, {say}\n")
        tally = self.tally
        tally.begin()
        guests = await self._boot(GUESTS)
        await self._read_console(guests[0])
        await self._kill_a_guest(guests[1])
        await self._resize(guests[2])
        await self._stop_a_libvirtd()
        await until(lambda: len(tally.states) == len(tally.flavors) and bool(tally.deleted))
        await self._compare()
        books = await self.books("the books of placement, the API level, the cells and their hosts agree")
        return (*checks_of(self.seen), books)

    async def _concluded(self) -> None:
        await super()._concluded()
        await self._delete_all()

    # Steps

    async def _boot(self, count: int) -> Sequence[InstanceState]:
        began_s = time.monotonic()
        request = await self._client.boot(SMALL, name="web", image=IMAGE, count=count)
        states = await request.until_done(BOOT_S)
        self.tally.flavors |= {each.id: SMALL for each in states}
        self._say(
            f"[bold]{count}[/bold] guests are active, {time.monotonic() - began_s:.1f} s after the request"
        )
        guests = await asyncio.to_thread(
            lambda: {name: [*self.machines.guests(name).values()] for name in self.machines.hosts}
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
        await until(lambda: self._has_written(guest))
        self._say(f"the serial console of {guest.name}, as `moor console {guest.name}` prints it:")
        for line in self.seen.console[-CONSOLE_LINES:]:
            out.print(f"  │ {line}", markup=False, highlight=False)

    async def _kill_a_guest(self, guest: InstanceState) -> None:
        pid = await asyncio.to_thread(self.machines.kill_guest, guest.host, domain_of(guest))
        began_s = time.monotonic()
        await until(lambda: self._is_stopped(guest))
        stopped = await self._client.show(guest.id)
        self.seen.stopped_s = time.monotonic() - began_s
        self._say(
            f"QEMU's process {pid} of {guest.name} on {guest.host} was killed; {self.seen.stopped_s:.1f} s later it is [yellow]stopped[/yellow]: {stopped.reason}"
        )
        await (await self._client.start(guest.id)).until_done()
        self.seen.started = await self._client.show(guest.id)
        self._say(f"{guest.name} was started again, and is [green]{self.seen.started.state}[/green]")

    async def _resize(self, guest: InstanceState) -> None:
        await (await self._client.resize(guest.id, LARGE, confirm_s=0)).until_done()
        self.tally.flavors[guest.id] = LARGE
        resized = await self._client.show(guest.id)
        self.seen.memory_kib = await asyncio.to_thread(
            self.machines.memory_kib, resized.host, domain_of(resized)
        )
        self._say(
            f"{guest.name} was resized from {SMALL.ram_mb} to {LARGE.ram_mb} MiB: its domain has {self.seen.memory_kib:,} KiB, "
            f"on {resized.host} (before: {guest.host})"
        )

    async def _stop_a_libvirtd(self) -> None:
        active = [each async for each in self._client.list_instances(state="active")]
        (name, guests), *_ = Counter(each.host for each in active).most_common(1)
        host = self.machines.hosts[name]
        before = await asyncio.to_thread(self.machines.guests, name)
        await asyncio.to_thread(host.kill)
        began_s = time.monotonic()
        self._say(f"libvirtd of [bold]{name}[/bold] was killed; {guests} guests are there")
        await until(lambda: self._is_up(name, up=False))
        runs_on = await asyncio.to_thread(self.machines.guests, name)
        told = [each async for each in self._client.list_instances(host=name, state="active")]
        self.seen.ran_on = runs_on == before
        self._say(
            f"  {time.monotonic() - began_s:.1f} s later the host is [yellow]down[/yellow]; {len(runs_on)} of {guests} QEMU processes run on, and "
            f"{len(told)} instances stay active: nobody knows better"
        )
        (elsewhere,) = await (await self._client.boot(SMALL, name="later", image=IMAGE)).until_done(BOOT_S)
        self.tally.flavors[elsewhere.id] = SMALL
        self.seen.elsewhere = elsewhere.host
        self._say(f"  a new guest boots meanwhile, on {elsewhere.host}")
        doomed = next(each for each in active if each.host == name)
        deleting = await self._client.delete(doomed.id)
        await asyncio.sleep(WATCHED_S)
        state = await self._client.show(doomed.id)
        still = domain_of(doomed) in await asyncio.to_thread(self.machines.guests, name)
        self.seen.waited = still
        self._say(
            f"  {doomed.name} is to be deleted: it is {state.state}, and its guest {'runs on' if still else 'is gone'}"
        )
        await asyncio.to_thread(host.start)
        self._say("  libvirtd is started again")
        await until(lambda: self._is_up(name, up=True))
        await deleting.until_done(BOOT_S)
        await until(lambda: self._is_gone(name, domain_of(doomed)))
        after = await asyncio.to_thread(self.machines.guests, name)
        self.seen.ran_on &= after == {each: pid for each, pid in before.items() if each != domain_of(doomed)}
        self.seen.away = name
        self._say(
            f"  the host is [green]up[/green], {doomed.name} is deleted, and {len(after)} guests are there"
        )

    async def _compare(self) -> None:
        """Compare the instances with libvirt's domains. Late changes may still be on their way."""

        async def are_equal() -> bool:
            wanted: dict[str, list[str]] = {name: [] for name in self.machines.hosts}
            async for each in self._client.list_instances(state="active"):
                wanted[each.host].append(domain_of(each))
            found = await asyncio.to_thread(self.machines.domains, running=True)
            self.seen.wanted = {name: sorted(each) for name, each in wanted.items()}
            self.seen.found = found
            self.seen.defined = await asyncio.to_thread(self.machines.domains, running=False)
            return self.seen.wanted == found == self.seen.defined

        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLES_S):
                await until(are_equal)

    async def _delete_all(self) -> None:
        active = [each.id for each in self.tally.active]
        await self.delete(active)

        async def is_empty() -> bool:
            domains = await asyncio.to_thread(self.machines.domains, running=False)
            return not any(domains.values()) and not self.machines.files()

        await until(is_empty)
        out.print(f"[green]✓[/green] {len(active)} instances are deleted: no domain and no disk is left")

    # What it waits for, and how it says what was seen

    async def _is_up(self, name: str, *, up: bool) -> bool:
        return (await self._client.show_host(name)).up == up

    async def _is_stopped(self, guest: InstanceState) -> bool:
        return (await self._client.show(guest.id)).state == "stopped"

    async def _has_written(self, guest: InstanceState) -> bool:
        """Has the guest written its line? The BIOS writes to the console, too, before the guest."""
        with suppress(NoConsoleFound):
            self.seen.console = (await self._client.console(guest.id)).text.splitlines()
        return GUEST_LINE.strip() in self.seen.console

    async def _is_gone(self, host: str, domain: str) -> bool:
        return domain not in await asyncio.to_thread(self.machines.guests, host)

    def _say(self, text: str) -> None:
        out.print(f"[dim]{time.monotonic() - self.tally.began_s:5.1f} s[/dim]  {text}", highlight=False)


def _short(pids: Sequence[int]) -> str:
    more = ", …" if len(pids) > PIDS_SHOWN else ""
    return ", ".join(map(str, sorted(pids)[:PIDS_SHOWN])) + more


def why_not_done(failed: NotDone) -> str:
    """One of the reasons in full: all guests fail alike where QEMU does not work."""
    wrong = [each for each in failed.states if each.state not in ("active", "deleted")]
    if not wrong:
        return str(failed)
    first, *_ = wrong
    why = [first.reason, *[f"{each.host}: {each.reason}" for each in first.failures[-1:]]]
    return f"not done for {len(wrong)} of {len(failed.states)} guests, such as {first.name}: {'; '.join(filter(None, why))}"


def checks_of(seen: GuestFindings) -> Iterator[Check]:
    running = sum(map(len, seen.found.values()))
    problems = [] if running else ["no guest runs"]
    for host in sorted({*seen.wanted, *seen.found}):
        wanted, found = set(seen.wanted.get(host, ())), set(seen.found.get(host, ()))
        for words, domains in (
            ("no domain runs for", wanted - found),
            ("no active instance has", found - wanted),
            ("defined, but off:", set(seen.defined.get(host, ())) - found),
        ):
            problems += [f"{host}: {words} {', '.join(sorted(domains))}"] if domains else []
    yield Check(
        f"{running} active instances and {running} running domains on {len(seen.found)} hosts are the same, and no other is defined",
        problems,
    )
    state = seen.started.state if seen.started else "unknown"
    yield Check(
        f"the killed guest was stopped {seen.stopped_s:.1f} s later, and runs again",
        _those(
            (
                f"the killed guest was seen only after {seen.stopped_s:.1f} s, must be within {STOPPED_S_MAX:g} s",
                seen.stopped_s > STOPPED_S_MAX,
            ),
            (f"the killed guest was started again, and is {state}", state != "active"),
        ),
    )
    yield Check(
        f"the resized guest has {seen.memory_kib:,} KiB in libvirt",
        _those(
            (
                f"the resized guest has {seen.memory_kib} KiB in libvirt, must have {MEMORY_KIB}",
                seen.memory_kib != MEMORY_KIB,
            )
        ),
    )
    yield Check(
        f"while the libvirtd of {seen.away} was away, its guests ran on, a new one went to {seen.elsewhere}, and a delete waited",
        _those(
            (f"not all guests of {seen.away} ran on while its libvirtd was away", not seen.ran_on),
            (
                f"a guest was booted on {seen.away}, whose libvirtd was away",
                seen.elsewhere in ("", seen.away),
            ),
            (f"a guest of {seen.away} was gone before its libvirtd came back", not seen.waited),
        ),
    )


def _those(*problems: tuple[str, bool]) -> list[str]:
    return [problem for problem, is_so in problems if is_so]
