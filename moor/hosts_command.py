"""`moor host`: lists hosts, and lets an operator disable and enable them."""

from typing import Annotated

import typer

from bus.messages.hosts import AskHosts, HostSet, HostState, SetHost
from moor.client import client
from moor.options import AsJson, BusUrl, command_settings, fail, out, run
from moor.showing import check_known, hosts_table, plain, print_host, print_json
from moor.tables import print_table

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Hosts: list, show, disable, enable.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A host's name, from `moor host list`.")]
PAGE = 500


@app.command("list")
def list_hosts(
    bus: BusUrl = "",
    *,
    cell: Annotated[str, typer.Option(help="Only hosts of this cell.")] = "",
    down: Annotated[bool, typer.Option("--down", help="Only hosts whose heartbeats have stopped.")] = False,
    disabled: Annotated[
        bool, typer.Option("--disabled", help="Only hosts that an operator disabled.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List all hosts, ordered by name."""
    known = run(_hosts(bus))
    check_known("--cell", cell, (each.cell for each in known))
    hosts = [
        host
        for host in known
        if cell in ("", host.cell) and not (down and host.up) and not (disabled and host.enabled)
    ]
    if as_json:
        print_json([plain(host) for host in hosts])
    elif hosts:
        print_table(hosts_table(hosts))
    else:
        out.print("no hosts")


@app.command()
def show(name: Name, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Show one host, as the schedulers know it."""
    _print(name, next(iter(run(_hosts(bus, name))), None), as_json=as_json)


@app.command()
def disable(
    name: Name,
    bus: BusUrl = "",
    *,
    reason: Annotated[str, typer.Option(help="Why: `moor host` and refused builds show it.")],
    as_json: AsJson = False,
) -> None:
    """Build nothing on this host from now on. Its instances stay."""
    _set(bus, SetHost(host=name, enabled=False, reason=reason), as_json=as_json)


@app.command()
def enable(name: Name, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Let the host be used again."""
    _set(bus, SetHost(host=name, enabled=True), as_json=as_json)


async def _hosts(bus: str, name: str = "") -> list[HostState]:
    async with client(command_settings(bus=bus)) as asking:
        return [host async for page in asking.hosts(AskHosts(name=name, limit=PAGE)) for host in page]


def _set(bus: str, order: SetHost, *, as_json: bool) -> None:
    async def work() -> HostState | None:
        # Only an operator may set hosts: on a broker with users, the URL must name one.
        async with client(command_settings(bus=bus), operates=True) as asking:
            answer = await asking.ask(order)
        assert isinstance(answer, HostSet), f"an order to set a host was answered by {answer!r}"
        return answer.host

    _print(order.host, run(work()), as_json=as_json)


def _print(name: str, host: HostState | None, *, as_json: bool) -> None:
    if host is None:
        fail(f"there is no host {name!r}, so nothing was done; `moor host list` shows all hosts")
    if as_json:
        print_json(plain(host))
    else:
        print_host(host)
