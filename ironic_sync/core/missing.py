"""Is it believed that nodes are gone which Ironic has no more?

A few are. Many at once may mean that another Ironic answers, or that this one lets us see less than before: they are held,
and are believed to be gone when they stay missing for long, or when an operator says so.
"""

from collections.abc import Sequence

from msgspec import Struct

from ironic_sync.core.rows import NodeRow


class Belief(Struct, frozen=True, kw_only=True):
    """What an operator set: how many nodes may be lost at once, as a number and as a share, and after how long all are."""

    few: int
    share: float
    after_us: int


class Missing(Struct, frozen=True):
    """Rows of nodes that are gone, and rows of nodes that are held."""

    gone: tuple[NodeRow, ...] = ()
    held: tuple[NodeRow, ...] = ()


def decide_missing(
    rows: Sequence[NodeRow], *, known: int, lost_lately: int, at_us: int, belief: Belief
) -> Missing:
    """Of the nodes that Ironic does not have: `known` is how many there were, `lost_lately` how many were believed to be gone
    a short while ago, so that many do not go a few at a time.
    """
    ripe = [row for row in rows if _is_ripe(row, at_us, belief)]
    fresh = [row for row in rows if not _is_ripe(row, at_us, belief)]
    lost = len(fresh) + lost_lately
    if lost > belief.few and lost > belief.share * known:
        return Missing(gone=tuple(ripe), held=tuple(fresh))
    return Missing(gone=tuple(rows))


def _is_ripe(row: NodeRow, at_us: int, belief: Belief) -> bool:
    return 0 < row.missing_since_us <= at_us - belief.after_us
