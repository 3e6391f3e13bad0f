"""Pools that share one resource class with hosts of their cell, as settings name them: NAME:CLASS=TOTAL@HOSTS.

As in Placement, a pool is a root provider with the trait MISC_SHARES_VIA_AGGREGATE. It shares with the hosts that are in its
aggregate.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from uuid import UUID, uuid5

from msgspec import Struct

from bus.message import AggregateId, ProviderId
from bus.messages.placement import INTEGER_MAX, ReportedInventory
from compute_sim.core.tree import ProviderTree, TreeProvider

SHARES = "MISC_SHARES_VIA_AGGREGATE"
# A pool's id is derived from its name, and its aggregate's id from that: they survive a restart.
_POOLS = UUID("3f1a52c4-0b70-4d2e-9a38-56f1d0e7b9a4")

FORM = "NAME:CLASS=TOTAL such as nfs:DISK_GB=20000, or NAME:CLASS=TOTAL@HOSTS with a pattern of the hosts that it shares with"
_WRITTEN = re.compile(
    r"(?P<name>[\w.-]{1,100}):(?P<resource>[A-Z0-9_]{1,255})=(?P<total>[0-9]{1,10})(?:@(?P<hosts>[^\s,]+))?",
    re.ASCII,
)


class Pool(Struct, frozen=True):
    """An amount of one resource class that all hosts share whose names match the pattern `hosts`."""

    name: str
    resource: str
    total: int
    hosts: str = "*"


def read_pools(texts: Iterable[str], cell: str) -> tuple[Pool, ...]:
    """Read the pools of a cell from texts of the form NAME:CLASS=TOTAL@HOSTS.

    Each pool's name gets the cell's name in front.
    """
    pools = tuple([_read(text, cell) for text in texts])
    names = [pool.name.removeprefix(f"{cell}-") for pool in pools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"pools has the name {twice!r} twice, each name may be there once")
    return pools


def pools_of(pools: Sequence[Pool], host: str) -> tuple[Pool, ...]:
    return tuple([pool for pool in pools if fnmatchcase(host, pool.hosts)])


def tree_of_pool(pool: Pool) -> ProviderTree:
    root = ProviderId(uuid5(_POOLS, pool.name))
    provider = TreeProvider(
        id=root,
        name=pool.name,
        inventories={pool.resource: ReportedInventory(total=pool.total)},
        traits=frozenset({SHARES}),
        joins=frozenset({aggregate_of(pool)}),
    )
    return ProviderTree(root, {root: provider})


def aggregate_of(pool: Pool) -> AggregateId:
    """The id of the aggregate that has the pool and the hosts that share it."""
    return AggregateId(uuid5(uuid5(_POOLS, pool.name), "aggregate"))


def _read(text: str, cell: str) -> Pool:
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise ValueError(f"pools has {text!r}, must be {FORM}")
    total = int(found["total"])
    if not 0 < total <= INTEGER_MAX:
        raise ValueError(f"pools has {text!r}: TOTAL is {total}, must be 1 to {INTEGER_MAX}")
    return Pool(f"{cell}-{found['name']}", found["resource"], total, found["hosts"] or "*")
