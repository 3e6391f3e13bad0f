"""`moor host drain HOST`: nothing new is built there, and its instances move away: live, or stopped if that fails."""

from typing import Annotated

import typer

from bus.messages.hosts import HostSet, SetHost
from moor.client import Client, answer_of, ask_bus
from moor.instances.moves.emptying import AtOnce, Emptied, EmptyingTimeout, empty, show_emptied
from moor.instances.moves.move_commands import To
from moor.options import AsJson, BusUrl


def drain(
    host: Annotated[str, typer.Argument(metavar="HOST", help="The host's name.")],
    bus: BusUrl = "",
    *,
    to: To = None,
    reason: Annotated[str, typer.Option(help="Why: `moor host` and refused builds show it.")] = "",
    at_once: AtOnce = 10,
    timeout: EmptyingTimeout = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Set a host draining, and move its instances to other hosts of its cell: live, or else stopped meanwhile.

    Ctrl-C ends the orders, and shows which instances are still there: what moves already goes on, and the host stays draining until
    `moor host set HOST up`.
    """

    async def work(asking: Client) -> Emptied:
        await answer_of(asking, SetHost(host=host, mode="draining", reason=reason), HostSet)
        return await empty(
            asking,
            host,
            ("live-migrate", "migrate"),
            hosts=to or (),
            at_once=at_once,
            timeout_s=timeout,
            quiet=as_json,
        )

    show_emptied(ask_bus(bus, work), as_json=as_json)
