"""`moor node ring`: shows the bare-metal daemons and which of them owns which node, and why.

It also drains daemons, and removes nodes that Ironic has lost. It reads and writes the daemons' own database, not the bus.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated
from uuid import UUID

from msgspec import Struct
from rich.markup import escape
from rich.text import Text

from engine.inventories import ProviderId
from ironic_sync.core.node import Node
from ironic_sync.core.ordering import believed_missing
from ironic_sync.core.ring import Member, Owned, Ring, why
from ironic_sync.core.rows import NodeRow, Offer
from ironic_sync.core.settling import answered
from ironic_sync.store_sql import IronicStore, pages_of
from kit.clock import EPOCH, moment
from moor.bare_metal.nodes import NodeReader, with_rows
from moor.client.finding import id_in
from moor.flags import Commands, argument, option
from moor.options import DatabaseUrl, IronicDatabaseUrl, Output, fail, out, wants_document
from moor.showing import plain, print_all, print_json, print_one, time_in_words
from moor.tables import Columns, print_table

# The ring of bare-metal daemons as an operator sees it. Pure.


class DaemonShown(Struct, frozen=True, kw_only=True):
    """One daemon. `state` is alive, draining or gone; a daemon that is gone may own nodes until others take them over."""

    name: str
    state: str
    incarnation: str = ""
    # By the database's clock; 0 if the lease has expired.
    lease_left_s: float = 0.0
    joined_at: datetime | None = None
    nodes: int = 0
    with_instances: int = 0


class RingShown(Struct, frozen=True, kw_only=True):
    daemons: tuple[DaemonShown, ...]
    # How many nodes no daemon owns yet.
    untaken: int
    # How many nodes Ironic no longer lists, and the daemons do not believe it: so many vanished at once, or an instance is there.
    missing: int = 0
    # How many nodes move to another cell once no consumer holds them.
    moving: int = 0
    # How many nodes have a provider that another service writes.
    foreign: int = 0
    # Of how many nodes Ironic says what cannot be so by the books, and of how many of these it tells an older state.
    in_trouble: int = 0
    older: int = 0


# Of which rows the ring is told how many there are.
_COUNTED: Mapping[str, Callable[[NodeRow], object]] = {
    "missing": lambda row: row.missing_since_us,
    "moving": lambda row: row.cell_wanted,
    "foreign": lambda row: row.is_foreign,
    "in_trouble": lambda row: row.trouble,
    "older": lambda row: row.older_than,
}


def ring_of(members: Iterable[Member], rows: Sequence[NodeRow]) -> RingShown:
    """All daemons that are members of the ring or own a node."""
    by_name = {each.name: each for each in members}
    nodes = Counter(row.owner for row in rows)
    with_instances = Counter(row.owner for row in rows if row.holds_instance)
    return RingShown(
        daemons=tuple(
            _daemon(name, by_name.get(name), nodes[name], with_instances[name])
            for name in sorted({*by_name, *nodes} - {""})
        ),
        untaken=nodes[""],
        **{name: sum(bool(holds(row)) for row in rows) for name, holds in _COUNTED.items()},
    )


class RingNote(Struct, frozen=True):
    """How many nodes are in a state that an operator should know of."""

    count: int
    what: str
    is_trouble: bool = False


def notes_of_ring(shown: RingShown) -> list[RingNote]:
    gone = "that Ironic no longer lists, kept reserved until an operator confirms: `moor node ring missing`"
    found = (
        RingNote(shown.untaken, "that no daemon has taken yet"),
        RingNote(shown.missing, gone, is_trouble=True),
        RingNote(
            shown.older,
            "of which a restored Ironic tells an older state: `moor node ring older`",
            is_trouble=True,
        ),
        RingNote(shown.in_trouble, "of which Ironic and the books disagree: `moor status`", is_trouble=True),
        RingNote(shown.moving, "that move to another cell once no consumer holds them"),
        RingNote(shown.foreign, "whose provider another service writes"),
    )
    return [each for each in found if each.count]


def _daemon(name: str, member: Member | None, nodes: int, with_instances: int) -> DaemonShown:
    known = member or Member(name=name, incarnation="", lease_left_s=0.0)
    return DaemonShown(
        name=name,
        state="gone" if not known.is_alive else "draining" if known.is_draining else "alive",
        incarnation=known.incarnation,
        lease_left_s=max(0.0, known.lease_left_s),
        joined_at=known.joined_at,
        nodes=nodes,
        with_instances=with_instances,
    )


app = Commands(
    "The daemons that share the bare-metal nodes: show them and the owner of a node, drain a daemon."
)

DaemonName = Annotated[str, argument(metavar="DAEMON", help="A daemon's name, from `moor node ring`.")]
ROWS_PER_PAGE = 1000


class MissingNode(Struct, frozen=True, kw_only=True):
    id: ProviderId
    name: str
    cell: str
    since: datetime


@app.without_verb
def ring(
    ironic_db: IronicDatabaseUrl = "",
    db: DatabaseUrl = "",
    *,
    _output: Output = None,
) -> None:
    """List the daemons, with their leases and nodes. The others take over the nodes of a daemon whose lease has expired."""
    print_one(with_rows(ironic_db, db, _ring), _print_ring)


def _print_ring(shown: RingShown) -> None:
    print_all(shown.daemons, _DAEMONS, "no daemons")
    for note in notes_of_ring(shown):
        colour = "red" if note.is_trouble else "yellow"
        out.print(f"[{colour}]{note.count} nodes {note.what}[/{colour}]")


_COLOURS = {"alive": "green", "draining": "yellow", "gone": "red"}
_DAEMONS = Columns[DaemonShown](
    {
        "name": lambda each: each.name,
        "state": lambda each: Text(each.state, _COLOURS[each.state]),
        "lease left": lambda each: f"{each.lease_left_s:.1f} s" if each.lease_left_s else "",
        "nodes": lambda each: str(each.nodes),
        "with instances": lambda each: str(each.with_instances),
        "incarnation": lambda each: each.incarnation,
    }
)
_SCORES = Columns[tuple[str, int]]({"name": lambda each: each[0], "score": lambda each: f"{each[1]:020d}"})


@app.verb()
def show(
    named: Annotated[str, argument(metavar="NODE", help="A node's id, or its name in Ironic.")],
    ironic_db: IronicDatabaseUrl = "",
    db: DatabaseUrl = "",
    *,
    _output: Output = None,
) -> None:
    """Show which daemon owns a node and why, the node's cell, and, if it may not be claimed, why not."""

    async def find(store: IronicStore) -> tuple[NodeRow | None, tuple[Member, ...]]:
        node = await _id_of(store, named)
        rows = await store.read([] if node is None else [node])
        return next(iter(rows.values()), None), await store.members()

    row, members = with_rows(ironic_db, db, find)
    if row is None:
        fail(f"no daemon knows node {named}: no notification named it, and Ironic did not list it")
    owned = why(Owned(row.id, row.owner, row.epoch, row.holds_instance), members)
    offer = row.offer or Offer()
    if wants_document():
        of_row = {
            "cell": row.cell,
            "cell_note": row.cell_note,
            "reserved": offer.reserved,
            "reasons": offer.reasons,
            "report_note": row.report_note,
            "is_deleted": row.is_deleted,
        }
        print_json(plain(owned) | plain(of_row))
        return
    out.print(f"node {row.id}: {owned.owner or 'no owner'}, epoch {owned.epoch}")
    out.print(escape(owned.reason))
    out.print(f"cell: {row.cell or 'none yet'}")
    for note in (row.cell_note, *offer.reasons, row.report_note):
        if note:
            out.print(f"  {escape(note)}")
    if owned.scores:
        print_table(owned.scores, _SCORES)


async def _id_of(store: IronicStore, named: str) -> ProviderId | None:
    """The id of the node that is named. A whole id may be that of a node that Ironic no longer has."""
    if (id_ := id_in(named)) is not None:
        return ProviderId(id_)
    found = (await NodeReader(None, store).find([named]))[named]
    return None if found is None else ProviderId(found.id)


@app.verb()
def missing(
    ironic_db: IronicDatabaseUrl = "",
    db: DatabaseUrl = "",
    *,
    remove: Annotated[
        bool,
        option("--remove", help="Confirm that they are gone: each is removed once no consumer holds it."),
    ] = False,
    _output: Output = None,
) -> None:
    """List nodes that Ironic no longer lists, and that stay reserved until confirmed: many vanished at once, or an instance is there."""
    rows = with_rows(
        ironic_db,
        db,
        partial(
            _listed, which=lambda row: row.missing_since_us, decided=believed_missing if remove else None
        ),
    )
    found = [
        MissingNode(
            id=row.id,
            name=(row.node and row.node.name) or "",
            cell=row.cell,
            since=moment(row.missing_since_us),
        )
        for row in rows
    ]
    print_one(found, partial(_print_missing, are_removed=remove))


async def _listed(
    store: IronicStore,
    which: Callable[[NodeRow], object],
    decided: Callable[[NodeRow], NodeRow] | None,
) -> list[NodeRow]:
    """The rows of which this holds; each is then as an operator has `decided`, if one has."""
    rows = [row async for row in _rows(store) if which(row)]
    if decided and rows:
        async with store.transaction() as transaction:
            locked = await transaction.load([row.id for row in rows])
            await transaction.save([decided(row) for row in locked.values()])
    return rows


def _print_missing(found: Sequence[MissingNode], *, are_removed: bool) -> None:
    for each in found:
        out.print(f"{each.id} {escape(each.name)} in cell {each.cell}, since {time_in_words(each.since)}")
    what = "are removed once no consumer holds them" if are_removed else "are missing"
    out.print(f"{len(found)} nodes {what}")


class OlderNode(Struct, frozen=True, kw_only=True):
    """A node of which Ironic tells an older state than the daemons knew: the instance that it has there, and the one that lives there by the books."""

    id: ProviderId
    name: str
    cell: str
    older_than: datetime
    state: str
    instance: UUID | None
    lives: UUID | None


@app.verb()
def older(
    ironic_db: IronicDatabaseUrl = "",
    db: DatabaseUrl = "",
    *,
    go_on: Annotated[
        bool,
        option(
            "--go-on",
            help="Answer that Ironic is right about them: they count again. What lives there by the books stays nevertheless.",
        ),
    ] = False,
    _output: Output = None,
) -> None:
    """List nodes of which Ironic tells an older state than was known: it was restored from a backup. Until a person answers, the
    daemons take nothing off nodes by themselves, believe no node to be gone, and offer none of these.
    """
    rows = with_rows(
        ironic_db,
        db,
        partial(_listed, which=lambda row: row.older_than, decided=answered if go_on else None),
    )
    found = [_older(row) for row in rows]
    print_all(found, _OLDER, "no nodes")
    if go_on and not wants_document():
        out.print(f"{len(found)} nodes count again as Ironic has them")


def _older(row: NodeRow) -> OlderNode:
    node, lives = row.node or Node(id=row.id), row.living
    return OlderNode(
        id=row.id,
        name=node.name or "",
        cell=row.cell,
        older_than=row.older_than or EPOCH,
        state=node.provision_state or "none",
        instance=node.instance_uuid,
        lives=None if lives is None else lives.instance,
    )


_OLDER = Columns[OlderNode](
    {
        "id": lambda each: str(each.id),
        "name": lambda each: each.name,
        "known since": lambda each: time_in_words(each.older_than),
        "state in ironic": lambda each: each.state,
        "instance in ironic": lambda each: str(each.instance or ""),
        "lives by the books": lambda each: str(each.lives or ""),
    }
)


@app.verb()
def drain(daemon: DaemonName, ironic_db: IronicDatabaseUrl = "", db: DatabaseUrl = "") -> None:
    """Move all nodes of a daemon to the others, also nodes with instances. It takes none until it is restarted."""
    members, owned = with_rows(ironic_db, db, lambda store: _set(store, daemon, draining=True))
    held = sum(each.owner == daemon for each in owned)
    if not Ring(members).names:
        out.print(f"{escape(daemon)} drains, but no other daemon can take its {held} nodes, so it keeps them")
    else:
        out.print(f"{escape(daemon)} drains its {held} nodes; `moor node ring` shows how many are left")


@app.verb()
def undrain(daemon: DaemonName, ironic_db: IronicDatabaseUrl = "", db: DatabaseUrl = "") -> None:
    """Let a draining daemon take its share of the nodes again."""
    with_rows(ironic_db, db, lambda store: _set(store, daemon, draining=False))
    out.print(f"{escape(daemon)} no longer drains")


async def _ring(store: IronicStore) -> RingShown:
    return ring_of(await store.members(), [row async for row in _rows(store)])


async def _rows(store: IronicStore) -> AsyncIterator[NodeRow]:
    for owner in sorted({each.owner for each in await store.owners()}):
        async for page in pages_of(store, owner, ROWS_PER_PAGE):
            for row in page:
                yield row


async def _set(
    store: IronicStore, daemon: str, *, draining: bool
) -> tuple[tuple[Member, ...], tuple[Owned, ...]]:
    alive = [each.name for each in await store.members() if each.is_alive]
    if daemon not in alive:
        fail(
            f"no daemon {daemon!r} is alive, so nothing was done; alive daemons: {', '.join(alive) or 'none'}"
        )
    await store.set_draining(daemon, draining=draining)
    return await store.members(), await store.owners((daemon,))
