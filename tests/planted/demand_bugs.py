"""Planted bugs in what demanding requests get: their groups, ways, zones, and hosts that are disabled."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec import structs

from engine.choosing import compounds
from engine.choosing.choosing import AlternatePools, Choices
from engine.choosing.filters import Flagged
from engine.picture.members import HostAggregates
from engine.picture.picture import Picture
from engine.requests import groups
from scheduler_worker import handlers
from scheduler_worker import hosts as registry
from tests.planted.replacing import planted, planted_as, planted_by, replaced


@planted_as("two groups get one provider though they are isolated", world="demands")
def isolate_ignored() -> AbstractContextManager[None]:
    """Two groups may get one provider, although the request isolates them."""
    return _query_changed(lambda query: structs.replace(query, group_policy=None))


@planted_as("a subtree ignored", world="demands")
def same_subtree_ignored() -> AbstractContextManager[None]:
    """The groups that the request wants near each other come from anywhere in the tree."""
    return _query_changed(lambda query: structs.replace(query, same_subtree=()))


@planted_as("the traits of a group ignored", world="demands")
def traits_of_groups_ignored() -> AbstractContextManager[None]:
    """Only the traits outside of groups are searched for."""
    return _query_changed(
        lambda query: structs.replace(
            query,
            groups=tuple(
                structs.replace(group, required=(), forbidden=()) if group.suffix else group
                for group in query.groups
            ),
        )
    )


def _query_changed(change: Callable[[Any], Any]) -> AbstractContextManager[None]:
    return replaced(compounds, "query_of", lambda real: lambda needs: change(real(needs)))


# The second way of an alternate claims the providers of the first one.
@planted("an alternate's second way is its first one", Choices, "ways", world="demands")
def first_way_told_twice(real: Any, self: Any, row: int) -> Any:
    found = real(self, row)
    return (found[0], found[0]) if len(found) > 1 else found


# The chosen host is among its own alternates: it is tried again after a build has failed there.
planted_by("a host is its own alternate", AlternatePools, "next_for", world="demands")(
    lambda real: lambda self, row, cell: [row, *real(self, row, cell)]
)


# A host keeps the zone that it had first, whatever becomes of its aggregates.
@planted_by("a host keeps its first zone", Picture, "_write_zone", world="demands")
def first_zone_kept(real: Any) -> Any:
    first: dict[tuple[int, int], int] = {}

    def write(self: Any, row: int, host: Any) -> None:
        real(self, row, host)
        zone = int(self.columns.zone[row])
        if self.columns.zones.names[zone]:
            self.columns.zone[row] = first.setdefault((id(self), row), zone)

    return write


# Schedulers know the metadata of an aggregate as it was when they first heard of it.
@planted_by("changed metadata of an aggregate ignored", HostAggregates, "put", world="demands")
def changed_metadata_ignored(real: Any) -> Any:
    return lambda self, put: real(self, [each for each in put if each.id not in self._known])


# A disabled host qualifies as any other.
@planted("a disabled host chosen", Flagged, "passes", world="demands")
def disabled_host_chosen(real: Any, self: Any, hosts: Any, spec: Any) -> Any:
    return hosts.everyone() if self.name == "enabled" else real(self, hosts, spec)


@planted_as("failed builds ignored", world="demands")
@contextmanager
def failed_builds_ignored() -> Iterator[None]:
    """No number of failed builds disables a host."""

    def planted(real: Any) -> Any:
        return lambda *args, **named: real(*args, **{**named, "failed_builds_max": 0})

    with replaced(handlers, "reported", planted), replaced(registry, "reported", planted):
        yield


# A port's network becomes a trait that no host reports: such a request finds no host.
planted_by("a port's network spelled otherwise", groups, "PHYSNET", world="demands")(
    lambda _real: "CUSTOM_PHYSICAL_NETWORK_"
)
