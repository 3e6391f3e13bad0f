"""`moor host`: which hosts there are, and an operator's word on whether they may be used."""

from typing import Annotated

import typer

from bus.messages.hosts import AskHosts, HostSet, HostState, SetHost
from moor.client import client
from moor.options import AsJson, BusUrl, fail, out, run, settled
from moor.showing import check_known, hosts_table, plain, print_host, print_json
from moor.tables import print_table

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The hosts: look, disable, enable.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A host, as `moor host list` names it.")]
PAGE = 500


@app.command("list")
def list_hosts(
    bus: BusUrl = "",
    *,
    cell: Annotated[str, typer.Option(help="Only those of this cell.")] = "",
    down: Annotated[bool, typer.Option("--down", help="Only those that are not heard of.")] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="Only those that may not be used.")] = False,
    as_json: AsJson = False,
) -> None:
    """All hosts, in the order of their names."""
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
    """One host, as it is known to the schedulers."""
    _print(name, next(iter(run(_hosts(bus, name))), None), as_json=as_json)


@app.command()
def disable(
    name: Name,
    bus: BusUrl = "",
    *,
    reason: Annotated[str, typer.Option(help="Why: it is shown to whoever asks, and in refusals.")],
    as_json: AsJson = False,
) -> None:
    """Nothing is built there from now on; what is there stays."""
    _set(bus, SetHost(host=name, enabled=False, reason=reason), as_json=as_json)


@app.command()
def enable(name: Name, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """It may be used again."""
    _set(bus, SetHost(host=name, enabled=True), as_json=as_json)


async def _hosts(bus: str, name: str = "") -> list[HostState]:
    async with client(settled(bus=bus)) as asking:
        return [host async for page in asking.hosts(AskHosts(name=name, limit=PAGE)) for host in page]


def _set(bus: str, order: SetHost, *, as_json: bool) -> None:
    async def work() -> HostState | None:
        # A client may not: on a broker with users, the URL must name an operator.
        async with client(settled(bus=bus), operates=True) as asking:
            answer = await asking.ask(order)
        assert isinstance(answer, HostSet), f"an order to set a host was answered by {answer!r}"
        return answer.host

    _print(order.host, run(work()), as_json=as_json)


def _print(name: str, host: HostState | None, *, as_json: bool) -> None:
    if host is None:
        fail(f"there is no host {name!r}: nothing was done; `moor host list` shows what there is")
    if as_json:
        print_json(plain(host))
    else:
        print_host(host)
