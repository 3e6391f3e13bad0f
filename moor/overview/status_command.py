"""`moor status`: the whole cloud on one screen, and whether it is healthy."""

from typing import Annotated

import typer

from moor.asking import Client, client
from moor.options import NOT_DONE, BusUrl, Cells, Output, command_settings, out, run_with, wants_document
from moor.overview.gathering import CloudView, CloudViewer
from moor.overview.judging import notes_of, troubles_of
from moor.overview.showing import overview_in_words
from moor.showing import print_json


def status(
    bus: BusUrl = "",
    cells: Cells = "",
    *,
    within: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="How long a scheduler has to answer.")
    ] = 10.0,
    _output: Output = None,
) -> None:
    """Show the whole cloud on one screen: what is wrong, cells, room, workers, queues. Exit code 1 if anything is wrong."""
    settings = command_settings(bus=bus, cells=cells)

    async def work(asking: Client) -> CloudView:
        viewer = CloudViewer(asking, settings, once=True)
        try:
            return await viewer.look()
        finally:
            await viewer.close()

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
