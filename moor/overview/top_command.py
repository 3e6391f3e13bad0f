"""`moor top`: the whole cloud, live, in the terminal."""

from typing import Annotated

import typer

from moor.asking import CommandClient, client
from moor.options import BusUrl, Cells, command_settings, run_with
from moor.overview.top.app import Top


def top(
    bus: BusUrl = "",
    cells: Cells = "",
    *,
    every: Annotated[float, typer.Option(metavar="S", min=0.5, help="How often it is read again.")] = 2.0,
) -> None:
    """Watch the whole cloud: health, cells, rates, hosts, instances, what waits and why. Enter opens a row, q quits."""
    settings = command_settings(bus=bus, cells=cells)

    async def work(asking: CommandClient) -> None:
        await Top(asking, settings, every).run_async()

    run_with(client(settings, patience_s=5.0), work)
