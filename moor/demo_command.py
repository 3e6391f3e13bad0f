"""`moor demo`: placement on the embedded default, start to end, in a few seconds.

A memory broker and an SQLite file, both thrown away: hosts are reported, instances claim their share of them, and
everything that is said on the bus meanwhile is heard and counted.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid5

import msgspec
from rich.table import Table

from bus.codec import CODEC
from bus.link import Link
from bus.listening import listen
from bus.memory import MemoryAccess, MemoryBroker
from bus.message import ConsumerId, ProviderId, type_of
from bus.messages.placement import (
    AskSnapshot,
    ClaimAnswered,
    Claimed,
    ClaimResources,
    ClaimVerdict,
    DoesNotFit,
    InventoryState,
    ProvidersChanged,
    ProviderState,
    ReportAccepted,
    ReportAnswered,
    ReportedInventory,
    ReportedProvider,
    ReportInventory,
    ResourceAmount,
    ShapeSeen,
    Share,
    SnapshotPage,
)
from bus.process import run_until
from bus.sql import upgrade
from bus.station import Station
from bus.topology import EVENTS, Grant, objects_of
from moor.options import out
from placement_worker.settings import PlacementSettings
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.wiring import placement_parts

CELLS = ("harbour", "island")
HOSTS_PER_CELL = 4
INSTANCES = 40
NAMES = UUID("5f8f6f2e-6f0e-4d4e-9a55-0d3c7f0a9b11")

FLAVOR = {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20}
HOST = {
    "VCPU": ReportedInventory(total=4, allocation_ratio=2.0),
    "MEMORY_MB": ReportedInventory(total=16384, reserved=512),
    "DISK_GB": ReportedInventory(total=200),
}


def demo() -> None:
    """Hosts are reported and instances find their share, on a memory bus and SQLite."""
    with tempfile.TemporaryDirectory(prefix="moor-demo-") as place:
        problems = asyncio.run(_demo(f"sqlite+aiosqlite:///{Path(place) / 'moor.db'}"))
    if problems:
        raise SystemExit("the books contradict themselves:\n" + "\n".join(problems))


async def _demo(database_url: str) -> tuple[str, ...]:
    broker = MemoryBroker().as_user()
    connection = await broker.connect()
    objects = objects_of(CELLS)
    await connection.declare(objects)
    await connection.close()
    out.print(
        f"[bold]Moorage[/bold]: a bus in memory ({len(objects.exchanges)} exchanges, {len(objects.queues)} queues), "
        "the books in SQLite\n"
    )
    await upgrade(database_url, "placement_worker")
    store = SqlPlacementStore(database_url)
    placement, client = Station(broker, "placement"), Station(broker, "client", asks=True)
    told = asyncio.Event()
    parts = (*placement_parts((placement,), store, PlacementSettings()), client)
    running = asyncio.create_task(run_until(told, parts, drain_s_max=10))
    try:
        await _play(broker, client)
        return await store.audit()
    finally:
        told.set()
        await running
        await client.close()
        await placement.close()
        await store.close()


async def _play(broker: MemoryAccess, client: Station) -> None:
    link = Link(broker, client.settings)
    feed = listen(
        link, [Grant(EVENTS, ("providers.changed",))], process="demo", settings=client.settings, codec=CODEC
    )
    await anext(feed)

    reports = [_report(cell, n) for cell in CELLS for n in range(HOSTS_PER_CELL)]
    out.print(
        "published",
        f"[cyan]{type_of(reports[0])}[/cyan]",
        msgspec.json.encode(reports[0]).decode(),
        highlight=False,
    )
    answers = await client.ask_all(reports)
    out.print(
        "consumed ",
        f"[cyan]{type_of(answers[0])}[/cyan]",
        msgspec.json.encode(answers[0]).decode(),
        highlight=False,
    )
    shapes = {
        answer.root: answer.verdict.shape
        for answer in answers
        if isinstance(answer, ReportAnswered) and isinstance(answer.verdict, ReportAccepted)
    }

    claims = [_claim(n, reports[n % len(reports)], shapes) for n in range(INSTANCES)]
    verdicts = [each.verdict for each in await client.ask_all(claims) if isinstance(each, ClaimAnswered)]
    _tell_verdicts(verdicts)

    heard = 0
    while heard < sum(isinstance(verdict, Claimed) for verdict in verdicts):
        heard += sum(
            len(e.message.claimed) for e in await anext(feed) if isinstance(e.message, ProvidersChanged)
        )
    out.print(f"heard    {heard} claims on the feed, in whole states of the hosts they touched\n")
    await feed.aclose()
    await link.close()

    page = await client.ask(AskSnapshot(limit=1000))
    if isinstance(page, SnapshotPage):
        out.print(_hosts_table(page.providers))


def _report(cell: str, number: int) -> ReportInventory:
    name = f"{cell}-{number}"
    root = ProviderId(uuid5(NAMES, name))
    host = ReportedProvider(id=root, name=name, inventories=HOST, traits=())
    return ReportInventory(cell=cell, root=root, providers=(host,))


def _claim(number: int, report: ReportInventory, shapes: Mapping[ProviderId, int]) -> ClaimResources:
    amounts = tuple(
        ResourceAmount(provider=report.root, resource=resource, amount=amount)
        for resource, amount in FLAVOR.items()
    )
    return ClaimResources(
        cell=report.cell,
        consumer=ConsumerId(uuid5(NAMES, f"instance-{number}")),
        attempt=1,
        issued_at=datetime.now(UTC),
        share=Share(
            host=report.root,
            amounts=amounts,
            shapes=(ShapeSeen(root=report.root, shape=shapes[report.root]),),
        ),
    )


def _tell_verdicts(verdicts: Sequence[ClaimVerdict]) -> None:
    counts = Counter(type(verdict).__name__ for verdict in verdicts)
    out.print("claimed  ", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    for verdict in verdicts:
        if isinstance(verdict, DoesNotFit):
            short = "; ".join(
                f"{each.resource} asked {each.asked}, free {each.free}" for each in verdict.shortfalls
            )
            out.print(f"          one that was refused: {short}")
            return


def _hosts_table(providers: Sequence[ProviderState]) -> Table:
    table = Table()
    for column in ("host", "cell", *FLAVOR):
        table.add_column(column, justify="left" if column in ("host", "cell") else "right")
    for provider in providers:
        table.add_row(
            provider.name, provider.cell, *(_usage(provider.inventories[resource]) for resource in FLAVOR)
        )
    return table


def _usage(inventory: InventoryState) -> str:
    capacity = int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
    return f"{inventory.used} of {capacity}"
