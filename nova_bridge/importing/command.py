"""`moor nova import`: takes over what another cloud has."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

import click
from msgspec import Struct

from kit.clock import now
from moor.client.bus_client import BusClient, connected_at
from moor.client.errors import Rejected
from moor.flags import Commands, option
from moor.options import NOT_DONE, BusUrl, Output, command_settings, fail, run, say, tell, wants_document
from moor.settings import Settings
from moor.showing import print_json
from moor.tables import Columns, print_table
from nova_bridge.databases import CONNECTIONS_MAX, NovaDatabaseError
from nova_bridge.importing.handing_over import Cloud, HandingOver, HostReport
from nova_bridge.importing.reading import HostRow, NovaDatabases, nova_databases
from nova_bridge.importing.records import ContradictionError
from nova_bridge.importing.shared import (
    Difference,
    compare_places,
    compare_shared,
    create_shared,
    read_shared,
)
from nova_bridge.importing.trace_command import export_history
from nova_bridge.shadow.report_command import report

app = Commands("A Nova beside this cloud: take over what it has, and compare what both would choose.")
app.verb("shadow")(report)
app.verb("export-history")(export_history)

REASONS_SHOWN = 10
# In a terminal each host is told.
TOLD_EVERY = 100
_COLUMNS = Columns[HostReport](
    {
        "cell": lambda each: each.cell,
        "host": lambda each: each.host,
        "is": lambda each: each.stage,
        "instances": lambda each: f"{each.copied}/{each.instances}",
        "kept back by": lambda each: each.reasons[0] if each.reasons else "",
    },
    prose=("kept back by",),
)


class Imported(Struct, frozen=True):
    """`not_created` are flavors, groups and aggregates that could not be created, and why. `differences` are those that were found
    between them, if both sides were only compared.
    """

    hosts: Sequence[HostReport]
    not_created: Sequence[str] = ()
    differences: Sequence[str] = ()


@app.verb("import")
def take_over(
    bus: BusUrl = "",
    *,
    api_db: Annotated[
        str,
        option(
            metavar="URL",
            envvar="MOOR_NOVA_API_DB",
            show_default=False,
            help="Nova's API database: mysql://USER:PASSWORD@HOST/nova_api, or sqlite:///FILE.",
        ),
    ],
    cell_db: Annotated[
        list[str],
        option(
            metavar="CELL=URL",
            envvar="MOOR_NOVA_CELL_DBS",
            show_default=False,
            help="The database of a cell of Nova, and the name of the cell here that gets its hosts; may be repeated.",
        ),
    ],
    placement_db: Annotated[
        str,
        option(
            metavar="URL",
            envvar="MOOR_NOVA_PLACEMENT_DB",
            help="The database of Nova's Placement. Without it, what instances hold follows from their flavors.",
        ),
    ] = "",
    host: Annotated[
        list[str] | None,
        option(metavar="HOST", help="Only this host, by the name of its nova-compute; may be repeated."),
    ] = None,
    verify: Annotated[
        bool, option("--verify", help="Only compare both sides, and name each difference.")
    ] = False,
    give_back: Annotated[
        str,
        option(metavar="HOST", help="Give this host back to Nova, if nothing new was built or moved there."),
    ] = "",
    place_from: Annotated[
        str,
        option(
            metavar="KEY,KEY",
            help="Hosts are where the metadata of their aggregates says: the key of the largest domains first, such as zone,hall,rack.",
        ),
    ] = "",
    patience: Annotated[
        float, option(min=0.1, metavar="SECONDS", help="How long to wait for each answer.")
    ] = 30.0,
    _output: Output = None,
) -> None:
    """Take the hosts of a Nova over, with their instances: each one that is disabled there, and has nothing under way.

    Nova's databases are only read. The command may be interrupted, and repeated: it goes on. Exit code 1 if hosts are left.
    """
    if verify and give_back:
        raise click.BadParameter("--verify and --give-back do not go together")
    cells: dict[str, str] = {}
    for each in cell_db:
        cell, url = _cell_and_url(each)
        if cell in cells:
            raise click.BadParameter(f"--cell-db names the cell {cell} twice")
        cells[cell] = url
    settings = command_settings(bus=bus)

    async def work() -> Imported:
        async with AsyncExitStack() as stack:
            databases = await stack.enter_async_context(nova_databases(api_db, cells.items(), placement_db))
            api, below = await stack.enter_async_context(_clients(settings, patience))
            cloud = Cloud(api, below)
            await cloud.look()
            return await _import(
                databases,
                cloud,
                [give_back] if give_back else host or (),
                verify=verify,
                give_back=bool(give_back),
                place_from=[key.strip() for key in place_from.split(",") if key.strip()],
            )

    try:
        done = run(work())
    except NovaDatabaseError as problem:
        fail(str(problem))
    if wants_document():
        print_json(done)
    else:
        _print(done, is_verified=verify)
    is_done = all(each.stage in ("here", "given back", "bare metal") for each in done.hosts)
    if not is_done or done.differences or any(each.reasons for each in done.hosts):
        raise click.exceptions.Exit(NOT_DONE)


@asynccontextmanager
async def _clients(
    settings: Settings, patience_s: float
) -> AsyncIterator[tuple[BusClient, Mapping[str, BusClient]]]:
    """An operator's clients: on the API level's broker, and on that of each cell which has its own."""
    async with AsyncExitStack() as stack:

        async def opened(url: str) -> BusClient:
            return await stack.enter_async_context(connected_at(url, operates=True, patience_s=patience_s))

        urls = settings.addresses.cell_bus_urls
        below = {cell: await opened(url) for cell, url in urls.items() if url != settings.addresses.bus_url}
        yield await opened(settings.bus_url), below


async def _import(
    databases: NovaDatabases,
    cloud: Cloud,
    wanted: Sequence[str],
    *,
    verify: bool,
    give_back: bool,
    place_from: Sequence[str] = (),
) -> Imported:
    rows = await databases.hosts()
    chosen = [row for row in rows if not wanted or row.name in wanted]
    if missing := sorted({*wanted} - {row.name for row in rows}):
        fail(f"Nova has no host {', '.join(missing)}")
    shared = await read_shared(databases)
    problems: list[str] = []
    found: list[Difference] = []
    if not give_back:
        problems += shared.problems
        hosts, names = [*cloud.hosts.values()], {row.name for row in rows}
        found = await compare_shared(cloud.api, shared, hosts, cloud.providers, names=names)
        found += compare_places(shared.aggregates, hosts, place_from)
    if not verify:
        problems += await create_shared(cloud.api, found)
    handing = HandingOver(
        databases,
        cloud,
        shared.flavors,
        clashes=_clashes(rows),
        doubled=await databases.duplicates(),
        clock=now,
    )
    step = handing.verify if verify else handing.give_back if give_back else handing.take
    reports = await of_all(chosen, step)
    differences = [*problems, *[f"{each.what}: {each.words}" for each in found]]
    return Imported(reports, [], differences) if verify else Imported(reports, problems)


async def of_all(
    rows: Sequence[HostRow], step: Callable[[HostRow], Awaitable[HostReport]]
) -> list[HostReport]:
    """Take this step with each host, some at a time, and tell how far it is."""
    at_once, done = asyncio.Semaphore(CONNECTIONS_MAX), 0
    every = 1 if sys.stderr.isatty() else TOLD_EVERY

    async def one(row: HostRow) -> HostReport:
        nonlocal done
        async with at_once:
            try:
                report = await step(row)
            except Rejected as refused:
                why = f"{refused.field} is {refused.value}: {refused.reason}"
                report = HostReport(row.cell, row.name, "kept back", row.instances, reasons=(why,))
            except ContradictionError as problem:
                report = HostReport(row.cell, row.name, "kept back", row.instances, reasons=(str(problem),))
        done += 1
        if done % every == 0:
            tell(f"{done:,} of {len(rows):,} hosts; the last: {row.cell}/{row.name} is {report.stage}")
        return report

    tasks = [asyncio.create_task(one(row)) for row in rows]
    try:
        return await asyncio.gather(*tasks)
    finally:
        # The first failure ends the command: it is a database or a broker that cannot be used.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _clashes(rows: Sequence[HostRow]) -> Mapping[str, str]:
    cells: dict[str, list[str]] = {}
    for row in rows:
        cells.setdefault(row.name, []).append(row.cell)
    return {
        name: f"host {name} is in several cells of Nova: {', '.join(some)}"
        for name, some in cells.items()
        if len(some) > 1
    }


def _cell_and_url(text: str) -> tuple[str, str]:
    cell, equals, url = text.partition("=")
    if not equals or not cell or "/" in cell:
        # It may have a password.
        raise click.BadParameter(f"--cell-db must be CELL=URL: {cell.partition(':')[0]!r} names no cell")
    return cell, url


def _print(done: Imported, *, is_verified: bool) -> None:
    reports = done.hosts
    if reports:
        print_table(reports, _COLUMNS)
    for each in reports:
        for reason in each.reasons[1:REASONS_SHOWN]:
            say(f"{each.cell}/{each.host}: {reason}", "yellow")
        if len(each.reasons) > REASONS_SHOWN:
            say(f"{each.cell}/{each.host}: and {len(each.reasons) - REASONS_SHOWN:,} more", "yellow")
    for told in (*(f"not created: {each}" for each in done.not_created), *done.differences):
        say(told, "yellow")
    left = [each for each in reports if each.stage in ("in nova", "kept back")]
    here = sum(each.stage == "here" for each in reports)
    differing = len(done.differences) + sum(len(each.reasons) for each in reports)
    if is_verified:
        say(f"{differing:,} differences" if differing else "both sides agree")
    say(
        f"{here:,} of {len(reports):,} hosts are here; {len(left):,} hosts with "
        f"{sum(each.instances for each in left):,} instances are left in Nova"
    )
    for each in reports:
        if each.stage == "given back":
            say(
                f"start nova-compute on {each.host}, then: openstack compute service set --enable {each.host} nova-compute"
            )
