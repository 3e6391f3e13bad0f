"""Planted bugs in what is judged by its owner: ids of heirs, tombstones, server groups and names of hosts."""

from contextlib import AbstractContextManager

from engine.picture.picture import Picture
from placement_worker.core import claims, swaps
from placement_worker.core.limits import GroupsDraft
from tests.planted.replacing import replaced, rewritten


def foreign_heir_accepted() -> AbstractContextManager[None]:
    """A swap may name any consumer as its heir, also one that has a share of its own."""
    return rewritten(swaps, "_heir_of", "if not (is_own and heir.has_ended):", "if False:")


def foreign_tombstone_binds() -> AbstractContextManager[None]:
    """A release that came before its claim binds the claims of every owner."""
    return replaced(claims, "binds", lambda _real: lambda *_: True)


def foreign_group_joined() -> AbstractContextManager[None]:
    """A cell's claim may join the server group of another project."""
    return replaced(GroupsDraft, "judge_joining", lambda _real: lambda *_, **__: None)


def shared_name_not_told() -> AbstractContextManager[None]:
    """Two cells may have hosts of one name, and nobody hears of it."""
    return replaced(Picture, "clashes", lambda _real: lambda _self: {})
