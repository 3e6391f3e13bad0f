"""`moor ring`: the daemons that keep bare-metal nodes, who owns which node and why, and an operator's word to drain.

It reads the daemons' database, not the bus: what it shows is what the daemons themselves go by.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer
from msgspec import Struct
from rich.markup import escape

from bus.message import ProviderId
from ironic_sync.core.ring import Member, Owned, Ring, Why, why
from ironic_sync.store_sql import SqlIronicStore
from moor.daemon_rows import with_rows
from moor.options import AsJson, DatabaseUrl, IronicDatabaseUrl, fail, out
from moor.showing import plain, print_json, table_of

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    help="The daemons that share the bare-metal nodes: look, ask why, drain.",
)

Daemon = Annotated[str, typer.Argument(metavar="DAEMON", help="A daemon, as `moor ring` names it.")]


class Share(Struct, frozen=True, kw_only=True):
    """What one daemon has. `state` is alive, draining or gone; a daemon that is gone may still have nodes for a moment."""

    name: str
    state: str
    incarnation: str = ""
    # By the database's clock; 0 when the lease is over.
    lease_left_s: float = 0.0
    joined_at: datetime | None = None
    nodes: int = 0
    with_instances: int = 0


class RingShown(Struct, frozen=True, kw_only=True):
    daemons: tuple[Share, ...]
    # Nodes that no daemon has taken yet.
    untaken: int


@app.callback()
def ring(
    context: typer.Context,
    ironic_db: IronicDatabaseUrl = "",
    db: DatabaseUrl = "",
    *,
    as_json: AsJson = False,
) -> None:
    """The daemons, with their leases and what they own. A daemon whose lease is over has its nodes taken over."""
    if context.invoked_subcommand is not None:
        return
    members, owned = with_rows(ironic_db, db, _members_and_owners)
    shown = ring_shown(members, owned)
    if as_json:
        print_json(plain(shown))
        return
    if not shown.daemons:
        out.print("no daemons")
    else:
        table = table_of("name", "state", "lease left", "nodes", "with instances", "incarnation")
        for each in shown.daemons:
            left = f"{each.lease_left_s:.1f} s" if each.lease_left_s else ""
            state = f"[{_COLOURS[each.state]}]{each.state}[/{_COLOURS[each.state]}]"
            counts = (str(each.nodes), str(each.with_instances))
            table.add_row(escape(each.name), state, left, *counts, escape(each.incarnation))
        out.print(table)
    if shown.untaken:
        out.print(f"[yellow]{shown.untaken} nodes that no daemon has taken yet[/yellow]")


@app.command()
def show(
    node: Annotated[UUID, typer.Argument(metavar="NODE", help="A node's id.")],
    ironic_db: IronicDatabaseUrl = "",
    db: DatabaseUrl = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Which daemon owns a node, and why."""

    async def find(store: SqlIronicStore) -> Why | None:
        row = (await store.read([ProviderId(node)])).get(ProviderId(node))
        if row is None:
            return None
        return why(Owned(row.id, row.owner, row.epoch, row.holds_instance), await store.members())

    found = with_rows(ironic_db, db, find)
    if found is None:
        fail(f"no daemon knows a node {node}: nothing was heard of it, and Ironic did not list it")
    if as_json:
        print_json(plain(found))
        return
    out.print(f"node {found.id}: {found.owner or 'no owner'}, epoch {found.epoch}", highlight=False)
    out.print(escape(found.reason), highlight=False)
    table = table_of("name", "score")
    for name, score in found.scores:
        table.add_row(escape(name), f"{score:020d}")
    if found.scores:
        out.print(table, highlight=False)


@app.command()
def drain(daemon: Daemon, ironic_db: IronicDatabaseUrl = "", db: DatabaseUrl = "") -> None:
    """The daemon gives all its nodes to the others, with instances too, and takes none, until it is restarted."""
    members, owned = with_rows(ironic_db, db, lambda store: _set(store, daemon, draining=True))
    held = sum(each.owner == daemon for each in owned)
    if not Ring(members).names:
        out.print(f"{escape(daemon)} drains, but no other daemon may take its {held} nodes: they stay")
    else:
        out.print(
            f"{escape(daemon)} drains: it has {held} nodes to give away; `moor ring` shows how many are left"
        )


@app.command()
def undrain(daemon: Daemon, ironic_db: IronicDatabaseUrl = "", db: DatabaseUrl = "") -> None:
    """The daemon is given its share of the nodes again."""
    with_rows(ironic_db, db, lambda store: _set(store, daemon, draining=False))
    out.print(f"{escape(daemon)} does not drain")


def ring_shown(members: Sequence[Member], owned: Sequence[Owned]) -> RingShown:
    """Every daemon that is a member or the owner of a node."""
    nodes = Counter(each.owner for each in owned)
    with_instances = Counter(each.owner for each in owned if each.holds_instance)
    by_name = {each.name: each for each in members}
    shares = [
        Share(
            name=name,
            state=_state(by_name.get(name)),
            incarnation=by_name[name].incarnation if name in by_name else "",
            lease_left_s=max(0.0, by_name[name].lease_left_s) if name in by_name else 0.0,
            joined_at=by_name[name].joined_at if name in by_name else None,
            nodes=nodes[name],
            with_instances=with_instances[name],
        )
        for name in sorted({*by_name, *nodes} - {""})
    ]
    return RingShown(daemons=tuple(shares), untaken=nodes[""])


_COLOURS = {"alive": "green", "draining": "yellow", "gone": "red"}


def _state(member: Member | None) -> str:
    if member is None or not member.is_alive:
        return "gone"
    return "draining" if member.is_draining else "alive"


async def _members_and_owners(store: SqlIronicStore) -> tuple[tuple[Member, ...], tuple[Owned, ...]]:
    return await store.members(), await store.owners()


async def _set(
    store: SqlIronicStore, daemon: str, *, draining: bool
) -> tuple[tuple[Member, ...], tuple[Owned, ...]]:
    alive = [each.name for each in await store.members() if each.is_alive]
    if daemon not in alive:
        fail(f"no daemon {daemon!r} is alive, so nothing was done; alive are {', '.join(alive) or 'none'}")
    await store.set_draining(daemon, draining=draining)
    return await store.members(), await store.owners((daemon,))
