"""`moor status` and `moor top`: the whole cloud on one screen, once or live, and whether it is healthy."""

from typing import Annotated

import typer
from msgspec import structs

from moor.asking import CommandClient, client
from moor.options import (
    NOT_DONE,
    BusUrl,
    Cells,
    IronicDatabaseUrl,
    IronicUrl,
    Output,
    command_settings,
    out,
    run_with,
    wants_document,
)
from moor.overview.gathering import CloudView, CloudViewer, notes_of, troubles_of
from moor.overview.showing import overview_in_words
from moor.settings import Settings
from moor.showing import print_json


async def _notes_on_nodes(asking: CommandClient, settings: Settings) -> tuple[str, ...]:
    """What keeps bare-metal nodes unused, if the settings name anything of an Ironic."""
    addresses = structs.asdict(settings.addresses)
    if not settings.ironic_url and not any(
        value for key, value in addresses.items() if key.startswith("ironic_")
    ):
        return ()
    # Many modules, which other clouds need not load.
    from moor.bare_metal.nodes import notes_on_nodes  # noqa: PLC0415

    return await notes_on_nodes(asking, settings)


def status(
    bus: BusUrl = "",
    cells: Cells = "",
    ironic: IronicUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    *,
    within: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="How long a scheduler has to answer.")
    ] = 10.0,
    _output: Output = None,
) -> None:
    """Show the whole cloud on one screen: what is wrong, cells, room, workers, queues. Exit code 1 if anything is wrong."""
    settings = command_settings(bus=bus, cells=cells, ironic=ironic, ironic_db=ironic_db)

    async def work(asking: CommandClient) -> CloudView:
        viewer = CloudViewer(asking, settings, once=True)
        try:
            view = await viewer.look()
        finally:
            await viewer.close()
        return structs.replace(view, nodes=await _notes_on_nodes(asking, settings))

    view = run_with(client(settings, patience_s=within), work)
    troubles = troubles_of(view)
    if wants_document():
        print_json(
            {
                "healthy": not troubles,
                "troubles": troubles,
                "notes": notes_of(view),
                "overview": view.overview,
                "brokers": view.brokers,
            }
        )
    else:
        out.print(overview_in_words(view))
    if troubles:
        raise typer.Exit(NOT_DONE)


def top(
    bus: BusUrl = "",
    cells: Cells = "",
    *,
    every: Annotated[float, typer.Option(metavar="S", min=0.5, help="How often it is read again.")] = 2.0,
) -> None:
    """Watch the whole cloud: health, cells, rates, hosts, instances, what waits and why. Enter opens a row, q quits."""
    # Textual is large.
    from moor.overview.top_command import Top  # noqa: PLC0415

    settings = command_settings(bus=bus, cells=cells)

    async def work(asking: CommandClient) -> None:
        await Top(asking, settings, every).run_async()

    run_with(client(settings, patience_s=5.0), work)
