"""What is left of trees that were felled: read where no tree stands, so that the next one there goes on counting."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.errors import Transient
from bus.message import ProviderId
from bus.sql import among, insert
from placement_worker.core.ledger import TreeBook
from placement_worker.store_sql import log
from placement_worker.tables import stumps

_COUNTERS = ("cell", "shape", "epoch", "sequence")


def lock_stumps(connection: Connection, roots: Collection[ProviderId]) -> dict[ProviderId, TreeBook]:
    """Asked for after the roots were: a tree that was felled while that waited has left its stump by now."""
    if not roots:
        return {}
    rows = connection.execute(
        sa.select(stumps)
        .where(among(connection, stumps.c.root, roots))
        .order_by(stumps.c.root)
        .with_for_update()
    )
    return {
        row.root: TreeBook(
            root=row.root, cell=row.cell, shape=row.shape, epoch=row.epoch, sequence=row.sequence
        )
        for row in rows
    }


def write_stumps(connection: Connection, trees: Iterable[TreeBook]) -> None:
    """Keep those of these trees that have no providers.

    Written over what is there, not deleted and made anew: whoever waits for the row must find it.
    """
    left = [
        {"root": tree.root, "felled_at": log.now(), **{name: getattr(tree, name) for name in _COUNTERS}}
        for tree in trees
        if not tree.providers
    ]
    if not left:
        return
    new = insert(connection, stumps)
    kept: dict[str, sa.ColumnElement[Any]] = {name: new.excluded[name] for name in ("felled_at", *_COUNTERS)}
    # Where there was no row to lock, somebody else may have left one in the meantime: shapes never count back.
    kept["shape"] = sa.case((stumps.c.shape > new.excluded.shape, stumps.c.shape), else_=new.excluded.shape)
    connection.execute(new.on_conflict_do_update(index_elements=[stumps.c.root], set_=kept), left)


def clear_stumps(connection: Connection, planted: Collection[TreeBook]) -> None:
    """Trees stand there again. Their rows are written already: until this ends nobody else can plant or fell there.

    A stump that is not older than its tree is one that was not seen, since no row could be locked when there was none:
    somebody else has planted and felled there in the meantime.
    """
    if not planted:
        return
    shapes = {tree.root: tree.shape for tree in planted}
    cleared = connection.execute(
        sa.delete(stumps)
        .where(among(connection, stumps.c.root, shapes))
        .returning(stumps.c.root, stumps.c.shape)
    ).all()
    for root, shape in cleared:
        if shape >= shapes[root]:
            raise Transient(f"somebody else has just felled the tree of {root}, at shape {shape}")


def prune_stumps(connection: Connection, felled_before: datetime) -> int:
    rotten = (
        sa.select(stumps.c.root).where(stumps.c.felled_at < felled_before).with_for_update(skip_locked=True)
    )
    return connection.execute(sa.delete(stumps).where(stumps.c.root.in_(rotten))).rowcount
