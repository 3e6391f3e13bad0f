"""`moor demo`: a cloud in which things go wrong, and what it makes of that: by default on simulated hosts, of which some fail, stop
answering or change their traits; with `--bare-metal` on nodes; and with `--libvirt` (demo_guests.py) as real guests of QEMU.

On bare metal:

1. Boot requests are sent over a few seconds. Meanwhile a simulated operator puts free nodes into maintenance and takes them
   out again.
2. When a third of the boots on nodes has ended, a daemon is killed.
3. When all boots have ended, some instances are deleted, and new instances use their nodes.
4. The operator stops, all work ends, and the results are compared.
"""

import asyncio
import inspect
import os
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from math import ceil
from operator import itemgetter
from pathlib import Path
from typing import Annotated, ClassVar

import click
from rich.live import Live
from rich.text import Text

from bus.messages.build import BuildInstance, DeleteInstance, InstanceState
from bus.workers.publisher import Outgoing
from cell_conductor.settings import ConductorSettings
from compute_sim.settings import ComputeSettings
from engine.flavors import Flavor, InstanceId, instance_id_of
from engine.inventories import ProviderId
from ironic_sync.core.rows import NodeRow
from ironic_sync.settings import IronicSettings
from kit.parts import batches_of
from kit.process import during, run_process
from laboratory.at_rest import is_in_use, problems_left
from laboratory.computes.faults import Changes, FailsToBuild, FallsSilent, FaultScript
from laboratory.demo_screen import CELLS, TINKERED, Check, Tally, conclude, screen, short
from laboratory.ironic import IronicScript, RequestRefused
from laboratory.ironic.script import WorkFails
from laboratory.private_servers import DidNotStartError
from moor.client.bus_client import Feed, hearing
from moor.client.requests import new_request_ids
from moor.clouds.cloud import BareMetalPlan, CloudPlan, cells_of_groups, flavor_of_nodes
from moor.clouds.temporary_cloud import Servers, TemporaryCloud, servers_at, spread, temporary_cloud
from moor.flags import option
from moor.options import PlacementDatabaseUrl, SchedulerFlags, fail, log_as, out, run, tuned_cloud
from moor.tables import lines_of
from moor.worker_settings import CloudSettings
from scheduler_worker.settings import SchedulerSettings

SMALL = Flavor(name="small", vcpus=12, ram_mb=8192, root_gb=20)
GIANT = Flavor(name="giant", vcpus=500, ram_mb=8192, root_gb=20)
# One build in twenty fails, some hosts stop answering for a while, and others change their traits again and again.
FAULTS = FaultScript(
    seed=7,
    spawn_ms=300.0,
    faults=(
        FailsToBuild(probability=0.05),
        FallsSilent(share=0.03, after_s=0.5, for_s=3.0, every_s=4.5),
        *(
            Changes(share=0.06, after_s=after_s, for_s=0.15, every_s=0.3, traits_gained=(TINKERED,))
            for after_s in (0.3, 0.32, 0.34, 0.37, 0.39, 0.41)
        ),
    ),
)
ATTEMPT_TIMEOUT_S = 3.0
# A host that stops answering again and again tells in between how many instances it has.
FACTS_EVERY_S = 0.5
WORKERS = {"placement": 1, "scheduler": 2, "conductor": 1}
ASKING_S, ASKING_TIMES = 3.0, 50
LOOK_EVERY_S = 0.1
REFRESH_PER_S = 8
ALTERNATES_SHOWN = 5
REASONS_SHOWN = 3


class Demo(ABC):
    """The demo in one of its variants: its cloud, and the steps that happen there. It fails if it takes longer than `patience_s`."""

    patience_s: ClassVar[float]
    defaults: ClassVar[CloudSettings]

    tally: Tally
    cloud: TemporaryCloud

    @abstractmethod
    def plan(self, settings: CloudSettings) -> CloudPlan: ...

    @abstractmethod
    async def steps(self) -> Iterable[Check]:
        """All that happens; then what was checked of it."""

    async def start(
        self, settings: CloudSettings, servers: Servers | None, folder: Path | None = None
    ) -> None:
        if servers:
            out.print("[dim]starting a process for each worker …[/dim]")
        async with temporary_cloud(self.plan(settings), servers, role="demo", folder=folder) as self.cloud:
            if servers:
                out.print(f"[dim]{', '.join(each.name for each in self.cloud.workers)}[/dim]\n")
            async with asyncio.timeout(self.patience_s):
                await self.cloud.during(self._run())

    async def _run(self, *others: str) -> None:
        """Hear events while the steps run. The subscription begins before the wait for the hosts, so that it misses no event."""
        async with hearing(self.cloud.client, "instance.#", "providers.changed") as feed:
            providers = await self.cloud.until_ready(*others)
            if is_in_use(providers):
                fail("some inventory is already in use: the demo needs servers on which nothing is in use")
            self.tally.providers.update({each.id: each for each in providers})
            await during(self._concluded(), self._hear(feed))

    async def _hear(self, feed: Feed) -> None:
        async for batch in feed:
            for heard in batch:
                self.tally.hear(heard.message)

    async def _concluded(self) -> None:
        conclude(await self.steps())
        if self.cloud.workers:
            # Real servers may belong to someone: the demo leaves nothing in use there.
            out.print("[dim]deleting what was built …[/dim]")
            await self.delete(
                [id_ for id_, each in self.tally.states.items() if id_ not in self.tally.deleted]
            )
            out.print(f"[green]✓[/green] {len(self.tally.deleted):,} instances are deleted again")

    # What steps consist of

    def live(self, what: str, daemons: Sequence[str] = ()) -> Live:
        title = f"{what}, {len(CELLS)} cells, {self.servers}"
        return Live(
            get_renderable=lambda: screen(self.tally, title, daemons),
            console=out,
            refresh_per_second=REFRESH_PER_S,
        )

    @property
    def servers(self) -> str:
        return "RabbitMQ and PostgreSQL" if self.cloud.workers else "a bus in memory and SQLite"

    async def ask(self, wanted: Sequence[tuple[str, Flavor]], asking_s: float) -> None:
        """Send the requests in batches over a few seconds, so that hosts change between them."""
        # Each run draws new ids: with the same ids, a second run would repeat requests that have ended already.
        requests = []
        for id_, (name, flavor) in zip(new_request_ids(len(wanted)), wanted, strict=True):
            self.tally.flavors[instance_id_of(id_, 0)] = flavor
            requests.append(Outgoing(BuildInstance(request_id=id_, flavor=flavor, name=name, project="demo")))
        for batch in batches_of(requests, ceil(len(requests) / ASKING_TIMES)):
            await self.cloud.client.publisher.send_all(batch)
            await asyncio.sleep(asking_s / ASKING_TIMES)

    async def delete(self, ids: Sequence[InstanceId]) -> None:
        await self.cloud.client.publisher.send_all([Outgoing(DeleteInstance(instance=id_)) for id_ in ids])
        await until(lambda: self.tally.deleted >= {*ids})

    async def books(self, says: str, of_nodes: Flavor | None = None) -> Check:
        """Compare what all participants have."""
        return Check(says, await problems_left(self.cloud, self.tally.asked(of_nodes)))


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    while True:
        answer = holds()
        if (await answer) if inspect.isawaitable(answer) else answer:
            return
        await asyncio.sleep(LOOK_EVERY_S)


class HostDemo(Demo):
    """A demo on simulated hosts."""

    patience_s = 90.0
    defaults = CloudSettings(
        compute=ComputeSettings(facts_every_s=FACTS_EVERY_S),
        conductor=ConductorSettings(attempt_timeout_s=ATTEMPT_TIMEOUT_S),
    )

    def __init__(self, boots: int, hosts: int) -> None:
        self.boots, self.hosts = boots, hosts
        self.tally = Tally(boots + 1)

    def plan(self, settings: CloudSettings) -> CloudPlan:
        cells = spread(self.hosts, CELLS)
        return CloudPlan(cells=cells, workers=WORKERS, settings=settings, faults=FAULTS)

    async def steps(self) -> Iterable[Check]:
        tally = self.tally
        with self.live(f"{self.boots:,} boots, {self.hosts:,} hosts") as drawn:
            # One request fits on no host.
            wanted = [(f"web-{number:04}", SMALL) for number in range(1, self.boots + 1)] + [("giant", GIANT)]
            tally.begin()
            await self.ask(wanted, ASKING_S)
            await until(lambda: tally.is_over)
            drawn.refresh()
        books = await self.books("the books of placement, the API level, the cells and their hosts agree")
        _tell_of_alternates(tally)
        _tell_of_conflicts(tally)
        _tell_of_errors(tally)
        won = tally.conflicts_won
        none_won = "no conflict was retried and won, though hosts changed under the boots"
        return (
            Check(
                f"all {tally.wanted:,} requests ended: {tally.count('active'):,} active, {tally.count('error')} in error"
            ),
            Check(f"none of {len(tally.providers)} hosts is used beyond its capacity"),
            books,
            Check(f"{won} conflicts were retried and won", () if won else (none_won,)),
        )


def _tell_of_alternates(tally: Tally) -> None:
    needed = sorted(tally.needed_alternates, key=lambda each: (-len(each.failures), each.name))
    out.print(
        f"\n[bold]{tally.count('active'):,}[/bold] active after {tally.ended_s - tally.began_s:.1f} s, "
        f"[bold]{len(needed)}[/bold] of them on an alternate, which their cell took without asking the API level:",
    )
    lines: list[tuple[str | Text, ...]] = []
    for each in needed[:ALTERNATES_SHOWN]:
        tried = "; ".join(f"{failure.host}: {short(failure.reason)}" for failure in each.failures)
        lines.append((f"  {each.name}", Text(tried, style="yellow"), f"→ {each.host}"))
    if len(needed) > ALTERNATES_SHOWN:
        lines.append((f"  [dim]and {len(needed) - ALTERNATES_SHOWN} more[/dim]",))
    out.print(lines_of(lines))


def _tell_of_conflicts(tally: Tally) -> None:
    same = sum(
        refusals[-1].host == (state.failures[0].host if state.failures else state.host)
        for id_, refusals in tally.refusals.items()
        if (state := tally.states.get(id_)) is not None
    )
    out.print(
        f"\n[bold]{tally.conflicts}[/bold] claims met a host that had changed since the scheduler chose it; after retries "
        f"[bold]{tally.conflicts_won}[/bold] instances got a host, {same} of them the same host",
    )


def _tell_of_errors(tally: Tally) -> None:
    errors = [each for each in tally.states.values() if each.state == "error"]
    reasons = Counter(each.reason for each in errors if each.no_valid_host is None)
    for reason, count in reasons.most_common(REASONS_SHOWN):
        out.print(f"  {count} ended in error: {reason}")
    nowhere = {each.name: each.no_valid_host for each in errors if each.no_valid_host is not None}
    if nowhere:
        name, why = min(nowhere.items(), key=itemgetter(0))
        out.print(f"\n[bold]{name}[/bold] found no host among {why.hosts}:")
        for step in why.steps:
            out.print(f"  {step.removed:5} removed by {step.step}   [dim]{step.example}[/dim]")
        out.print()


HOSTS_PER_CELL = 2
# A deploy and a cleaning take about half a second; one deploy in fifteen fails.
PACE = 0.3
IRONIC_FAULTS = IronicScript(
    seed=11,
    faults=(WorkFails(work="deploy", probability=0.07, reason="the image cannot be written"),),
)
# Short leases: the other daemons take over from a killed one after four seconds, not after ten.
QUICK = IronicSettings(lease_s=4.0)
# More alternates than usual: there are few nodes, and the operator takes some of them away.
ALTERNATES_MAX = 8

TINY = Flavor(name="small", vcpus=1, ram_mb=1024, root_gb=5)
METAL = flavor_of_nodes()
# The names of instances on hypervisors start with this.
VIRTUAL_NAME = "web-"
# As shares of the nodes: how many boots come first, and how many instances are then deleted and booted again.
FIRST, AGAIN = 0.5, 0.2
# How many boots go to hypervisors meanwhile.
VIRTUAL = 20
METAL_ASKING_S = 4.0
# The daemon is killed when this share of the first boots on nodes has ended.
KILLED_AT = 1 / 3
FLIP_EVERY_S, FLIPPED_FOR_S = 0.12, 1.0
ROWS_EVERY_S = 0.2


class MetalDemo(Demo):
    """A demo on bare-metal nodes."""

    patience_s = 150.0
    defaults = CloudSettings(ironic=QUICK, scheduler=SchedulerSettings(alternates_max=ALTERNATES_MAX))

    def __init__(self, nodes: int, daemons: int) -> None:
        self.nodes, self.daemons = nodes, daemons
        self.tally = Tally(int(nodes * FIRST) + VIRTUAL)

    def plan(self, settings: CloudSettings) -> CloudPlan:
        metal = BareMetalPlan(
            nodes=self.nodes,
            daemons=self.daemons,
            cells=cells_of_groups(CELLS),
            pace=PACE,
            script=IRONIC_FAULTS,
        )
        cells = dict.fromkeys(CELLS, HOSTS_PER_CELL)
        return CloudPlan(cells=cells, workers=WORKERS, settings=settings, metal=metal)

    async def steps(self) -> Iterable[Check]:
        return await during(self._drawn(), self._poll_rows())

    async def _drawn(self) -> Iterable[Check]:
        tally = self.tally
        await until(lambda: len({row.owner for row in tally.rows.values()} - {""}) == self.daemons)
        what = f"{self.nodes:,} bare-metal nodes, {self.daemons} daemons"
        with self.live(what, [*self.cloud.daemons]) as drawn:
            await during(self._boot_and_delete(), self._flip_until_stopped())
            # End the maintenance of all nodes, and wait until no work is under way.
            for node in [*self.cloud.simulated.ironic.nodes.values()]:
                if node.maintenance:
                    self.cloud.simulated.ironic.set_maintenance(node.uuid, is_on=False)
            await until(lambda: all(map(_is_settled, tally.rows.values())))
            drawn.refresh()
        books = await self.books(
            "the books of placement, the API level and the cells agree, and there are no dead letters", METAL
        )
        out.print()
        return (*_checks_of(tally), books)

    async def _boot_and_delete(self) -> None:
        tally = self.tally
        tally.begin()
        first, again = int(self.nodes * FIRST), int(self.nodes * AGAIN)
        virtual = [(f"{VIRTUAL_NAME}{number:03}", TINY) for number in range(1, VIRTUAL + 1)]
        metal = [(f"metal-{number:03}", METAL) for number in range(1, first + 1)]
        await asyncio.gather(self.ask([*virtual, *metal], METAL_ASKING_S), self._kill_one(first))
        await until(lambda: tally.is_over)
        nodes = {str(id_) for id_ in tally.rows}
        deleted = [each.id for each in tally.active if each.host in nodes][:again]
        tally.news.append(Text(f"{len(deleted)} instances are deleted, and their nodes cleaned", "blue"))
        tally.wanted += again
        await self.delete(deleted)
        await self.ask([(f"again-{number:03}", METAL) for number in range(1, again + 1)], METAL_ASKING_S)
        await until(lambda: tally.is_over)

    async def _kill_one(self, boots: int) -> None:
        tally, daemons = self.tally, self.cloud.daemons
        await until(lambda: sum(map(_is_on_metal, tally.states.values())) >= boots * KILLED_AT)
        tally.kill([*daemons][1 % len(daemons)])
        daemons[tally.killed].kill()

    async def _flip_until_stopped(self) -> None:
        """Put free nodes into maintenance and take them out again, as an operator would, until cancelled.

        A build may have claimed such a node meanwhile; the build then goes to an alternate.
        """
        chance = random.Random(5)
        async with asyncio.TaskGroup() as flips:
            while True:
                await asyncio.sleep(FLIP_EVERY_S)
                free = sorted(
                    row.id
                    for row in self.tally.rows.values()
                    if row.offer is not None and not row.offer.reserved
                )
                if free:
                    flips.create_task(self._flip(chance.choice(free)))

    async def _flip(self, node: ProviderId) -> None:
        # An Ironic conductor that has just begun to work on the node holds its lock: the operator gives up.
        with suppress(RequestRefused):
            self.tally.flip(node)
            self.cloud.simulated.ironic.set_maintenance(
                str(node), is_on=True, reason="an operator looks at it"
            )
            await asyncio.sleep(FLIPPED_FOR_S)
            self.cloud.simulated.ironic.set_maintenance(str(node), is_on=False)
            self.tally.flips += 1

    async def _poll_rows(self) -> None:
        while True:
            owned = await self.cloud.rows.owners()
            self.tally.read((await self.cloud.rows.read([each.id for each in owned])).values())
            await asyncio.sleep(ROWS_EVERY_S)


def _is_settled(row: NodeRow) -> bool:
    """True if neither Ironic nor the node's daemon has work left to do on the node."""
    node = row.node
    is_idle = node is not None and not node.target_provision_state and not node.maintenance
    is_reported = not row.needs_report and not row.needs_read and row.read_epoch == row.epoch
    return is_idle and is_reported and row.deploy is None and not row.answers


def _is_on_metal(state: InstanceState) -> bool:
    return not state.name.startswith(VIRTUAL_NAME)


def _checks_of(tally: Tally) -> Iterator[Check]:
    nodes = sum(map(_is_on_metal, tally.active))
    yield Check(
        f"all {tally.wanted:,} requests ended: {tally.count('active'):,} active, {tally.count('error')} in error; "
        f"{len(tally.needed_alternates)} took an alternate"
    )
    yield Check(f"{nodes} instances are each alone on a node, and {len(tally.active) - nodes} on hypervisors")
    yield Check(
        f"no node has an unknown instance; the nodes of {len(tally.deleted)} deleted instances are clean"
    )
    yield Check(
        f"after {tally.flips} maintenance flips, placement offers exactly the nodes that Ironic has available, of "
        f"{len(tally.rows)}"
    )
    killed = f"nodes of the killed daemon {tally.killed}"
    problem = "" if tally.orphaned else "no daemon that owned nodes was killed"
    if tally.taken_over_s is None:
        problem = problem or f"{killed} have no new owner"
    elif tally.reported_s is None:
        problem = problem or f"{killed} were not reported by their new owners"
    yield Check(
        f"{tally.killed} was killed: its {len(tally.orphaned)} nodes had new owners after {tally.taken_over_s or 0:.1f} s, and "
        f"were reported by them after {tally.reported_s or 0:.1f} s",
        (problem,) if problem else (),
    )


# With fewer boots there may be no conflict to show.
BOOTS_MIN = 300


def demo(
    *,
    boots: Annotated[int, option(min=BOOTS_MIN, max=100_000, help="How many instances to build.")] = 1000,
    hosts: Annotated[int, option(min=20, max=10_000, help="Over how many hosts, in two cells.")] = 200,
    bare_metal: Annotated[
        bool,
        option(
            "--bare-metal",
            help="Build on bare-metal nodes instead, while some go into maintenance and a daemon is killed.",
        ),
    ] = False,
    nodes: Annotated[
        int, option(min=20, max=2_000, help="With --bare-metal: how many nodes, in two cells.")
    ] = 100,
    daemons: Annotated[
        int, option(min=2, max=20, help="With --bare-metal: how many daemons manage them.")
    ] = 3,
    libvirt: Annotated[
        bool,
        option(
            "--libvirt",
            help="Build twenty real guests of QEMU instead, on libvirtds of the demo's own; needs libvirt and QEMU.",
        ),
    ] = False,
    bus: Annotated[str, option(metavar="URL", help="A real broker: amqp://user:password@host/vhost")] = "",
    db: Annotated[
        str, option(metavar="URL", help="A real database: postgresql+asyncpg://user:password@host/name")
    ] = "",
    placement_db: PlacementDatabaseUrl = "",
    scheduler: SchedulerFlags = None,
) -> None:
    """Watch a thousand boots over two hundred hosts in two cells, some of which misbehave.

    By default all workers run in this process, on a bus in memory and SQLite. With --bus and --db they run on real servers,
    each worker as its own process.
    """
    servers = servers_at(bus, db, placement_db)
    if bare_metal or libvirt:
        # Deploys fail and processes are killed on purpose; the demo shows it, so warnings would only disturb.
        log_as(os.environ, level="ERROR")
    chosen: Demo
    if libvirt:
        if servers:
            raise click.BadParameter("--libvirt runs on a bus in memory and SQLite: leave --bus and --db out")
        try:
            # It needs libvirt's own library, which nothing else of the demo does.
            from laboratory.demo_guests import GuestDemo  # noqa: PLC0415
        except ImportError as missing:
            fail(f"{missing}: the demo with libvirt needs libvirt-python: pip install 'moorage[libvirt]'")
        chosen = GuestDemo()
    else:
        chosen = MetalDemo(nodes, daemons) if bare_metal else HostDemo(boots, hosts)
    try:
        run(chosen.start(tuned_cloud(chosen.defaults, scheduler), servers), by=run_process)
    except TimeoutError:
        fail(f"not everything ended within {chosen.patience_s:.0f} s")
    except DidNotStartError as failed:
        fail(str(failed))
