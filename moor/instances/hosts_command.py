"""`moor host`: lists hosts, and lets an operator disable and enable them."""

from collections.abc import Mapping
from typing import Annotated

import typer

from bus.messages.hosts import HostSet, HostState, SetHost
from bus.messages.planning import AskCapabilities, CapabilitiesFound
from moor.client import PAGE, Client, answer_of, ask_bus, hosts_of, pages_of
from moor.instances.plan_showing import capabilities_table, having_table
from moor.options import AsJson, BusUrl, fail
from moor.showing import check_known, hosts_table, print_all, print_host, print_one

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Hosts: list, capabilities, show, disable, enable."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A host's name, from `moor host list`.")]


@app.command("list")
def list_hosts(
    bus: BusUrl = "",
    *,
    cell: Annotated[str, typer.Option(help="Only hosts of this cell.")] = "",
    down: Annotated[bool, typer.Option("--down", help="Only hosts whose heartbeats have stopped.")] = False,
    disabled: Annotated[
        bool, typer.Option("--disabled", help="Only hosts that an operator disabled.")
    ] = False,
    having: Annotated[
        str,
        typer.Option(
            metavar="NAME[=VALUE]",
            help="Only hosts that have this trait, resource class or fact, with their values; `moor host capabilities` lists "
            "these.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List all hosts, ordered by name."""
    if having:
        _list_having(bus, having, {"--cell": cell, "--down": down, "--disabled": disabled}, as_json=as_json)
        return
    known = ask_bus(bus, hosts_of, operates=False)
    check_known("--cell", cell, (each.cell for each in known))
    hosts = [
        host
        for host in known
        if cell in ("", host.cell) and not (down and host.up) and not (disabled and host.enabled)
    ]
    print_all(hosts, hosts_table, "no hosts", as_json=as_json)


@app.command("capabilities")
def list_capabilities(bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """List the traits, resource classes and facts that hosts have: on how many hosts, with which values."""
    pages = ask_bus(bus, lambda asking: _capabilities(asking, "", ""), operates=False)
    found = [each for page in pages for each in page.capabilities]
    print_all(found, capabilities_table, "no hosts", as_json=as_json)


@app.command()
def show(name: Name, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Show one host, as the schedulers know it."""
    found = ask_bus(bus, lambda asking: hosts_of(asking, name), operates=False)
    _print(name, next(iter(found), None), as_json=as_json)


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


def _list_having(bus: str, having: str, others: Mapping[str, object], *, as_json: bool) -> None:
    for flag, given in others.items():
        if given:
            raise typer.BadParameter(f"{flag} cannot be combined with --having: that asks about all hosts")
    name, _, value = having.partition("=")
    pages = ask_bus(bus, lambda asking: _capabilities(asking, name, value), operates=False)
    hosts = [host for page in pages for host in page.hosts]
    print_all(hosts, having_table, f"no hosts with {name} {value}".rstrip(), as_json=as_json)


async def _capabilities(asking: Client, name: str, value: str) -> list[CapabilitiesFound]:
    question = AskCapabilities(having=name, value=value, limit=PAGE)
    return [page async for page in pages_of(asking, question, CapabilitiesFound)]


def _set(bus: str, order: SetHost, *, as_json: bool) -> None:
    answer = ask_bus(bus, lambda asking: answer_of(asking, order, HostSet))
    _print(order.host, answer.host, as_json=as_json)


def _print(name: str, host: HostState | None, *, as_json: bool) -> None:
    if host is None:
        fail(f"there is no host {name!r}, so nothing was done; `moor host list` shows all hosts")
    print_one(host, print_host, as_json=as_json)
