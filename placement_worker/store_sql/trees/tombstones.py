"""Tombstones: they stay when a tree is deleted, so that a new tree under the same root continues its counters."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.clock import now
from bus.errors import Transient
from bus.message import ProviderId
from bus.sql import among, insert
from placement_worker.core.ledger import TreeBook
from placement_worker.tables import tree_tombstones

_COUNTERS = ("cell", "shape", "epoch", "sequence")


def lock_tombstones(connection: Connection, roots: Collection[ProviderId]) -> dict[ProviderId, TreeBook]:
    """Lock and read the tombstones of these trees. The caller has locked the roots before.

    If a tree was deleted while the caller waited for its root, the tombstone is found here.
    """
    if not roots:
        return {}
    rows = connection.execute(
        sa.select(tree_tombstones)
        .where(among(connection, tree_tombstones.c.root, roots))
        .order_by(tree_tombstones.c.root)
        .with_for_update()
    )
    return {
        row.root: TreeBook(
            root=row.root, cell=row.cell, shape=row.shape, epoch=row.epoch, sequence=row.sequence
        )
        for row in rows
    }


def write_tombstones(connection: Connection, trees: Iterable[TreeBook]) -> None:
    """Write tombstones for those of these trees that have no providers any more.

    Existing rows are updated, not deleted and inserted anew: a transaction that waits for the row must still find it.
    """
    left = [
        {"root": tree.root, "felled_at": now(), **{name: getattr(tree, name) for name in _COUNTERS}}
        for tree in trees
        if not tree.providers
    ]
    if not left:
        return
    new = insert(connection, tree_tombstones)
    kept: dict[str, sa.ColumnElement[Any]] = {name: new.excluded[name] for name in ("felled_at", *_COUNTERS)}
    # If there was no row to lock, another transaction may have inserted one meanwhile: shapes never count backwards.
    kept["shape"] = sa.case(
        (tree_tombstones.c.shape > new.excluded.shape, tree_tombstones.c.shape), else_=new.excluded.shape
    )
    connection.execute(new.on_conflict_do_update(index_elements=[tree_tombstones.c.root], set_=kept), left)


def clear_tombstones(connection: Connection, recreated: Collection[TreeBook]) -> None:
    """Delete the tombstones of trees that exist again.

    Another transaction may have created and deleted a tree with the same root since this transaction looked for the
    tombstone. There was none then, so nothing was locked. The tombstone that the other transaction left has a shape that
    is not lower than that of the new tree. Then Transient is raised, and the batch is tried again. If it is not raised,
    no other transaction can create such a tree before this one ends, since this one has written the new trees' providers.
    """
    if not recreated:
        return
    shapes = {tree.root: tree.shape for tree in recreated}
    cleared = connection.execute(
        sa.delete(tree_tombstones)
        .where(among(connection, tree_tombstones.c.root, shapes))
        .returning(tree_tombstones.c.root, tree_tombstones.c.shape)
    ).all()
    for root, shape in cleared:
        if shape >= shapes[root]:
            raise Transient(
                f"another transaction has just deleted the tree of {root}, at shape {shape}: the batch is tried again"
            )


def prune_tombstones(connection: Connection, felled_before: datetime) -> int:
    expired = (
        sa.select(tree_tombstones.c.root)
        .where(tree_tombstones.c.felled_at < felled_before)
        .with_for_update(skip_locked=True)
    )
    return connection.execute(sa.delete(tree_tombstones).where(tree_tombstones.c.root.in_(expired))).rowcount
