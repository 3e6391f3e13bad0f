"""Decides whether nodes that Ironic no longer lists count as deleted.

If they are few, they do. Many at once may mean that another Ironic answers, or that the daemon's user now sees fewer
nodes. Then they are kept reserved. They count as deleted when they stay missing for long, or when an operator
confirms it.
"""

from collections.abc import Sequence

from msgspec import Struct

from ironic_sync.core.rows import NodeRow


class Belief(Struct, frozen=True, kw_only=True):
    """The operator's limits: how many nodes may vanish at once (a number and a share), and after which time all count as
    deleted.
    """

    few: int
    share: float
    after_us: int


def decide_missing(
    rows: Sequence[NodeRow], *, known: int, lost_lately: int, at_us: int, belief: Belief
) -> tuple[Sequence[NodeRow], Sequence[NodeRow]]:
    """Of the missing nodes `rows`: those that count as deleted, and those that are kept reserved. `known` is the number of
    all known nodes. `lost_lately` is the number that recently counted as deleted: it prevents that many nodes vanish a few at
    a time.
    """
    ripe = [row for row in rows if _is_ripe(row, at_us, belief)]
    fresh = [row for row in rows if not _is_ripe(row, at_us, belief)]
    lost = len(fresh) + lost_lately
    if lost > belief.few and lost > belief.share * known:
        return ripe, fresh
    return rows, ()


def _is_ripe(row: NodeRow, at_us: int, belief: Belief) -> bool:
    return 0 < row.missing_since_us <= at_us - belief.after_us
