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
from tests.planted.replacing import replaced


def isolate_ignored() -> AbstractContextManager[None]:
    """Two groups may get one provider, although the request isolates them."""
    return _query_changed(lambda query: structs.replace(query, group_policy=None))


def same_subtree_ignored() -> AbstractContextManager[None]:
    """The groups that the request wants near each other come from anywhere in the tree."""
    return _query_changed(lambda query: structs.replace(query, same_subtree=()))


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


def first_way_told_twice() -> AbstractContextManager[None]:
    """The second way of an alternate claims the providers of the first one."""

    def planted(real: Any) -> Any:
        def ways(self: Any, row: int) -> Any:
            found = real(self, row)
            return (found[0], found[0]) if len(found) > 1 else found

        return ways

    return replaced(Choices, "ways", planted)


def own_host_as_alternate() -> AbstractContextManager[None]:
    """The chosen host is among its own alternates: it is tried again after a build has failed there."""
    return replaced(
        AlternatePools, "next_for", lambda real: lambda self, row, cell: [row, *real(self, row, cell)]
    )


def first_zone_kept() -> AbstractContextManager[None]:
    """A host keeps the zone that it had first, whatever becomes of its aggregates."""

    def planted(real: Any) -> Any:
        first: dict[tuple[int, int], int] = {}

        def write(self: Any, row: int, host: Any) -> None:
            real(self, row, host)
            zone = int(self.columns.zone[row])
            if self.columns.zones.names[zone]:
                self.columns.zone[row] = first.setdefault((id(self), row), zone)

        return write

    return replaced(Picture, "_write_zone", planted)


def changed_metadata_ignored() -> AbstractContextManager[None]:
    """Schedulers know the metadata of an aggregate as it was when they first heard of it."""

    def planted(real: Any) -> Any:
        return lambda self, put: real(self, [each for each in put if each.id not in self._known])

    return replaced(HostAggregates, "put", planted)


def disabled_host_chosen() -> AbstractContextManager[None]:
    """A disabled host qualifies as any other."""

    def planted(real: Any) -> Any:
        def passes(self: Any, hosts: Any, spec: Any) -> Any:
            return hosts.everyone() if self.name == "enabled" else real(self, hosts, spec)

        return passes

    return replaced(Flagged, "passes", planted)


@contextmanager
def failed_builds_ignored() -> Iterator[None]:
    """No number of failed builds disables a host."""

    def planted(real: Any) -> Any:
        return lambda *args, **named: real(*args, **{**named, "failed_builds_max": 0})

    with replaced(handlers, "reported", planted), replaced(registry, "reported", planted):
        yield


def network_spelled_otherwise() -> AbstractContextManager[None]:
    """A port's network becomes a trait that no host reports: such a request finds no host."""
    return replaced(groups, "PHYSNET", lambda _real: "CUSTOM_PHYSICAL_NETWORK_")
