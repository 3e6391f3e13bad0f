"""`moor demo`: a thousand instances find their homes, while hosts fail, fall silent and change under them.

A whole cloud in this process, on a memory bus and an SQLite file that is thrown away. What is shown while it runs is
heard on the bus, as anybody would hear it; what is claimed at the end is checked in the books.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from uuid import UUID, uuid5

import typer
from msgspec import Struct
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from bus.codec import CODEC
from bus.link import Link
from bus.listening import listen
from bus.memory import MemoryBroker
from bus.message import Message, ProviderId
from bus.messages.build import (
    BuildInstance,
    Flavor,
    InstanceActive,
    InstanceFailed,
    InstanceId,
    InstanceState,
    RequestId,
)
from bus.messages.hosts import AskHosts, HostsFound
from bus.messages.placement import ProvidersChanged, ProviderState
from bus.process import run_until
from bus.station import Station
from bus.topology import EVENTS, Grant
from cell_conductor.settings import ConductorSettings
from compute_sim.core.faults import Changes, FailsToBuild, FallsSilent, FaultScript
from compute_sim.core.hosts import HostSize
from compute_sim.drivers import alike
from moor.cloud import cloud
from moor.options import fail, out
from placement_worker.store_sql import SqlPlacementStore

CELLS = ("harbour", "island")
NAMES = UUID("5f8f6f2e-6f0e-4d4e-9a55-0d3c7f0a9b11")
SMALL = Flavor(name="small", vcpus=2, ram_mb=4096, root_gb=20)
GIANT = Flavor(name="giant", vcpus=500, ram_mb=4096, root_gb=20)
HOST = HostSize(vcpus=8, ram_mb=65536, disk_gb=1000)
# Not what one would wish for: one build in twenty fails, some hosts fall silent, others change.
MISFORTUNES = FaultScript(
    seed=7,
    spawn_ms=300.0,
    faults=(
        FailsToBuild(probability=0.05),
        FallsSilent(share=0.03, after_s=0.2, for_s=4.0),
        Changes(share=0.1, after_s=0.3, for_s=2.0, every_s=2.5, traits_gained=("CUSTOM_TINKERED_WITH",)),
    ),
)
PATIENCE_S = 90.0
REFRESH_PER_S = 8


class Tally(Struct):
    """What was heard so far."""

    states: dict[InstanceId, InstanceState]
    providers: dict[ProviderId, ProviderState]
    began: float
    ended: float = 0.0

    def hear(self, message: Message) -> None:
        if isinstance(message, InstanceActive | InstanceFailed):
            known = self.states.get(message.instance.id)
            if known is None or known.sequence < message.instance.sequence:
                self.states[message.instance.id] = message.instance
            self.ended = time.monotonic()
        elif isinstance(message, ProvidersChanged):
            for provider in message.providers:
                known_provider = self.providers.get(provider.id)
                if known_provider is None or known_provider.revision < provider.revision:
                    self.providers[provider.id] = provider

    @property
    def rate(self) -> float:
        return len(self.states) / max(self.ended - self.began, 1e-9)

    def count(self, state: str) -> int:
        return sum(each.state == state for each in self.states.values())

    @property
    def needed_alternates(self) -> list[InstanceState]:
        return [each for each in self.states.values() if each.state == "active" and each.failures]


def demo(
    boots: Annotated[int, typer.Option(min=1, max=100_000, help="How many instances to build.")] = 1000,
    hosts: Annotated[int, typer.Option(min=2, max=10_000, help="Over how many hosts, in two cells.")] = 200,
) -> None:
    """A thousand boots over two hundred hosts in two cells, some of which misbehave; watch them find their homes."""
    with tempfile.TemporaryDirectory(prefix="moor-demo-") as place:
        asyncio.run(_demo(f"sqlite+aiosqlite:///{Path(place) / 'moor.db'}", boots, hosts))


async def _demo(database_url: str, boots: int, hosts: int) -> None:
    broker = MemoryBroker().as_user()
    of_cell = {cell: alike(cell, hosts // len(CELLS), HOST) for cell in CELLS}
    out.print(
        f"[bold]Moorage[/bold]: {hosts} hosts in {len(CELLS)} cells, {boots} instances to build; a bus in memory, "
        "the books in SQLite"
    )
    out.print("[dim]one build in twenty fails, some hosts fall silent, others change under the boots[/dim]\n")
    conductor = ConductorSettings(attempt_timeout_s=2.0, remind_every_s=2.0, poll_ms=100.0)
    async with cloud(broker, database_url, of_cell, faults=MISFORTUNES, conductor=conductor) as store:
        client = Station(broker, "client", asks=True)
        told = asyncio.Event()
        asking = asyncio.create_task(run_until(told, (client,), drain_s_max=5))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await _until_up(client, hosts // len(CELLS) * len(CELLS))
                tally = await _boot(client, boots)
            await _conclude(store, tally, boots)
        except TimeoutError:
            fail(f"not everything ended within {PATIENCE_S:.0f} s")
        finally:
            told.set()
            await asking
            await client.close()


async def _until_up(client: Station, hosts: int) -> None:
    """A host that nobody has heard of is not chosen: wait for all of them."""
    up = 0
    while up < hosts:
        up, after = 0, ""
        while True:
            page = await client.ask(AskHosts(after=after, limit=500))
            assert isinstance(page, HostsFound)
            up += sum(host.up for host in page.hosts)
            if not (after := page.next):
                break
        await asyncio.sleep(0.05)


async def _boot(client: Station, boots: int) -> Tally:
    """Ask for all of them, and one that cannot be; then listen until each has ended."""
    link = Link(client.consuming.broker, client.settings)
    keys = ("instance.#", "providers.changed")
    feed = listen(link, [Grant(EVENTS, keys)], process="demo", settings=client.settings, codec=CODEC)
    await anext(feed)
    tally = Tally({}, {}, time.monotonic())
    requests = [_request(f"web-{number}", SMALL) for number in range(boots)] + [_request("giant", GIANT)]
    progress = Progress(TextColumn("[bold]booting"), BarColumn(bar_width=50), MofNCompleteColumn())
    bar = progress.add_task("boots", total=len(requests))
    with Live(_picture(progress, tally), console=out, refresh_per_second=REFRESH_PER_S) as live:
        for request in requests:
            client.publisher.send(request)
        while len(tally.states) < len(requests):
            for heard in await anext(feed):
                tally.hear(heard.message)
            progress.update(bar, completed=len(tally.states))
            live.update(_picture(progress, tally))
    await feed.aclose()
    await link.close()
    return tally


def _request(name: str, flavor: Flavor) -> BuildInstance:
    return BuildInstance(request_id=RequestId(uuid5(NAMES, name)), flavor=flavor, name=name, project="demo")


def _picture(progress: Progress, tally: Tally) -> Group:
    table = Table(box=None, padding=(0, 3, 0, 0))
    for column in ("cell", "hosts in use", "VCPU in use", ""):
        table.add_column(column, justify="left" if column in ("cell", "") else "right")
    for cell in CELLS:
        used, capacity, busy = _usage([each for each in tally.providers.values() if each.cell == cell])
        filled = round(30 * used / capacity) if capacity else 0
        table.add_row(
            cell,
            str(busy),
            f"{used} of {capacity}",
            f"[green]{'█' * filled}[/green][dim]{'░' * (30 - filled)}[/dim]",
        )
    numbers = (
        f"[green]{tally.count('active')} active[/green]   [red]{tally.count('error')} in error[/red]   "
        f"[yellow]{len(tally.needed_alternates)} by an alternate[/yellow]   {tally.rate:.0f} boots/s"
    )
    return Group(progress, numbers, "", table)


def _usage(providers: Sequence[ProviderState]) -> tuple[int, int, int]:
    """VCPU in use, VCPU there are, and hosts that have any in use; of those that were heard of."""
    stocks = [provider.inventories["VCPU"] for provider in providers if "VCPU" in provider.inventories]
    capacity = sum(int((stock.total - stock.reserved) * stock.allocation_ratio) for stock in stocks)
    return sum(stock.used for stock in stocks), capacity, sum(stock.used > 0 for stock in stocks)


async def _conclude(store: SqlPlacementStore, tally: Tally, boots: int) -> None:
    """What the books say of it; anything that should not be ends the demo with 1."""
    alternates = tally.needed_alternates
    out.print(
        f"\n[bold]{tally.count('active')}[/bold] of {boots} active after {tally.ended - tally.began:.1f} s, "
        f"{len(alternates)} of them by an alternate of the same cell"
    )
    if alternates:
        example = max(alternates, key=lambda each: len(each.failures))
        tries = "; ".join(f"{failure.host}: {failure.reason}" for failure in example.failures)
        out.print(f"  for instance {example.name}: {tries}; then {example.host}", highlight=False)
    _tell_of_the_giant(tally)
    over = await _over_capacity(store)
    problems = [*await store.audit(), *over]
    if tally.count("active") + tally.count("error") != boots + 1:
        problems.append("a request has not ended in exactly one state")
    if problems:
        fail("the books contradict themselves:\n" + "\n".join(problems))
    out.print(
        "\n[green]checked[/green]: every request ended, nothing is over capacity, the books agree with themselves"
    )


def _tell_of_the_giant(tally: Tally) -> None:
    errors = [each for each in tally.states.values() if each.state == "error"]
    reasons = Counter(each.reason or "no host" for each in errors if each.no_valid_host is None)
    for reason, count in reasons.most_common(3):
        out.print(f"  {count} ended in error: {reason}")
    for each in errors:
        if each.no_valid_host is not None:
            found = each.no_valid_host
            out.print(f"\n[bold]{each.name}[/bold] found no host among {found.hosts}:")
            for step in found.steps:
                out.print(
                    f"  {step.removed:5} removed by {step.step}   [dim]{step.example}[/dim]", highlight=False
                )
            return


async def _over_capacity(store: SqlPlacementStore) -> list[str]:
    after: int | None = 0
    over: list[str] = []
    while after is not None:
        page = await store.snapshot_page(after, 500)
        over += [
            f"{provider.name}: {resource} {stock.used} in use, there is less"
            for provider in page.providers
            for resource, stock in provider.inventories.items()
            if stock.used > int((stock.total - stock.reserved) * stock.allocation_ratio)
        ]
        after = page.next
    return over
