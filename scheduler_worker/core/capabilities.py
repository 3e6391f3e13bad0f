"""What hosts have: traits, resource classes, and facts such as their zone or the version of the hypervisor.

Each of these is called a capability here.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from msgspec import Struct, structs

from bus.messages.planning import CapabilitiesFound, Capability, HostHaving
from engine.choosing.compounds import Pools, ProviderRoom
from engine.hosts import NODE, HostState
from engine.inventories import near, near_in_words
from engine.picture.picture import Picture

TRAIT, CLASS, FACT = "trait", "class", "fact"
# How many values of one capability are counted in an answer.
VALUES_MAX = 100

FACTS: Mapping[str, Callable[[Picture, HostState], str]] = {
    "cell": lambda _, host: host.cell,
    "hypervisor_type": lambda _, host: host.hypervisor_type,
    "hypervisor_version": lambda _, host: str(host.hypervisor_version or ""),
    "kind": lambda _, host: "node" if host.kind == NODE else "hypervisor",
    "supports": lambda _, host: ", ".join(
        " ".join(part or "any" for part in structs.astuple(each)) for each in host.supports
    ),
    "zone": lambda picture, host: picture.zone_of(host.id),
}

# The names of the sharing providers that a host may take from.
POOLS = "pools"

# What hosts tell as capabilities is named as extra specs ask for it.
SCOPE = "capabilities:"


class _Having(Struct, frozen=True):
    """The hosts that have one trait, resource class or reported fact. `values` has what each host has of it, by the
    host's row; for a resource class, `free` also has the amount that is free.
    """

    kind: str
    values: Mapping[int, str]
    free: Mapping[int, int] = {}

    def counted(self, name: str) -> list[Capability]:
        """The values of this capability with their numbers of hosts, the most frequent first."""
        counts = Counter(self.values.values())
        return [
            Capability(name=name, kind=self.kind, value=value, hosts=hosts, values=len(counts))
            for value, hosts in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        ]


def hosts_having(
    picture: Picture, name: str, value: str, *, after: str, limit: int
) -> CapabilitiesFound | str:
    """One page of the hosts that have this capability, in the order of their names, with their values and how frequent
    each value is. If no host has it, an error text that suggests names near it.
    """
    having = _having(picture, name)
    if having is None:
        hint = near_in_words(near(name, _names(picture)))
        return f"no host has it: it is a trait, a resource class, {SCOPE}KEY or one of {', '.join((*FACTS, POOLS))}{hint}"
    columns = picture.columns
    named = sorted(
        (columns.names[row], row)
        for row, has in having.values.items()
        if value in ("", has) and columns.names[row] > after
    )
    end = limit
    # Hosts of one name stay on one page: the next page begins behind the name.
    while 0 < end < len(named) and named[end][0] == named[end - 1][0]:
        end += 1
    page = tuple(
        HostHaving(
            host=host,
            cell=columns.cells.names[int(columns.cell[row])],
            value=having.values[row],
            free=having.free.get(row),
        )
        for host, row in named[:end]
    )
    counted = [each for each in having.counted(name) if value in ("", each.value)]
    return CapabilitiesFound(
        capabilities=tuple(counted[:VALUES_MAX]), hosts=page, next=page[-1].host if end < len(named) else ""
    )


def capabilities(picture: Picture, *, after: str, limit: int) -> CapabilitiesFound:
    """One page of the capabilities that some host has, in the order of their names, each with its most frequent value."""
    names = sorted(name for name in _names(picture) if name > after)
    found = [(name, _having(picture, name)) for name in names[:limit]]
    listed = [having.counted(name)[0] for name, having in found if having is not None]
    return CapabilitiesFound(capabilities=tuple(listed), next=names[limit - 1] if len(names) > limit else "")


def _names(picture: Picture) -> Iterator[str]:
    """The names of all capabilities that some host has."""
    columns = picture.columns
    rows = _rows(picture)
    shared = _shared_classes(picture)
    yield from sorted({trait for traits in {columns.traits_of[row] for row in rows} for trait in traits})
    for resource in sorted(columns.stocks.keys() | shared):
        stock = columns.stocks.get(resource)
        if (stock is not None and (stock.step_size[rows] > 0).any()) or (
            resource in shared and _having_class(picture, resource)
        ):
            yield resource
    told = {key for row in rows if (host := picture.registered(row)) for key in host.capabilities}
    yield from (f"{SCOPE}{key}" for key in sorted(told))
    yield from (name for name in (*FACTS, POOLS) if _having(picture, name) is not None)


def _having(picture: Picture, name: str) -> _Having | None:
    """The hosts that have the trait, resource class or reported fact of this name; None if no host has it."""
    columns, rows = picture.columns, _rows(picture)
    if name == POOLS:
        return _having_pools(picture)
    if name.startswith(SCOPE) or name in FACTS:
        hosts = [(row, host) for row in rows if (host := picture.registered(row)) is not None]
        if name in FACTS:
            values = {row: value for row, host in hosts if (value := FACTS[name](picture, host))}
        else:
            key = name.removeprefix(SCOPE)
            values = {row: host.capabilities[key] for row, host in hosts if key in host.capabilities}
        return _Having(FACT, values) if values else None
    if name in picture.index.stocks:
        return _having_class(picture, name)
    values = dict.fromkeys(
        np.flatnonzero(columns.traits.having_any((name,), slice(columns.rows))).tolist(), ""
    )
    return _Having(TRAIT, values) if values else None


def _having_class(picture: Picture, resource: str) -> _Having | None:
    """How much of a resource class each host has, by its own inventory. A host without one has that of the pool with
    the most free, among the pools that it may take from. None if no host has any.
    """
    values: dict[int, str] = {}
    free: dict[int, int] = {}
    for pool in Pools(picture, ProviderRoom(picture)).of_class(resource):
        for row in pool.users.tolist():
            if pool.free > free.get(row, -1):
                values[row], free[row] = f"{pool.capacity} of {pool.state.name}", pool.free
    if (stock := picture.columns.stocks.get(resource)) is not None:
        for row in _rows(picture):
            if stock.step_size[row] > 0:
                values[row], free[row] = str(int(stock.capacity[row])), int(stock.free[row])
    return _Having(CLASS, values, free) if values else None


def _having_pools(picture: Picture) -> _Having | None:
    pools, names = Pools(picture, ProviderRoom(picture)), dict[int, set[str]]()
    for resource in _shared_classes(picture):
        for pool in pools.of_class(resource):
            for row in pool.users.tolist():
                names.setdefault(row, set()).add(pool.state.name)
    return _Having(FACT, {row: ", ".join(sorted(each)) for row, each in names.items()}) if names else None


def _shared_classes(picture: Picture) -> set[str]:
    index = picture.index
    return {resource for row in index.sharing for resource in index.state(row).inventories}


def _rows(picture: Picture) -> list[int]:
    """The row numbers of all hosts in the picture's columns."""
    rows: list[int] = np.flatnonzero(picture.columns.present[: picture.columns.rows]).tolist()
    return rows
