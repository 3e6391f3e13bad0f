"""Planted bugs in what is judged by its owner: ids of heirs, tombstones, server groups and names of hosts."""

from contextlib import AbstractContextManager

from engine.picture.picture import Picture
from placement_worker.core import claims, swaps
from placement_worker.core.limits import GroupsDraft
from tests.planted.replacing import planted_as, planted_by, rewritten


@planted_as("a foreign heir accepted", world="moves of groups")
def foreign_heir_accepted() -> AbstractContextManager[None]:
    """A swap may name any consumer as its heir, also one that has a share of its own."""
    return rewritten(swaps, "_heir_of", "if not (is_own and heir.has_ended):", "if False:")


# A release that came before its claim binds the claims of every owner.
planted_by("a tombstone of another owner binds", claims, "binds", world="moves of groups")(
    lambda _real: lambda *_: True
)


# A cell's claim may join the server group of another project.
planted_by("the group of another project joined", GroupsDraft, "judge_joining", world="moves of groups")(
    lambda _real: lambda *_, **__: None
)


# Two cells may have hosts of one name, and nobody hears of it.
planted_by("a name in two cells not told", Picture, "clashes", world="moves of groups")(
    lambda _real: lambda _self: {}
)
