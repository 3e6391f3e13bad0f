"""The picture's columns that follow from aggregates, against a slow look at every host and every aggregate."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from engine.hosts import Aggregate
from engine.inventories import AggregateId
from engine.picture.picture import Picture
from tests.contracts.placement_orders import provider
from tests.properties.bounds import BOUNDED
from tests.unit.choosing.scheduler_worlds import a_host, a_state

HOSTS = ("h1", "h2", "h3", "h4")
IDS = tuple(AggregateId(UUID(int=number)) for number in (1, 2, 3, 2**64))
LIMIT, OTHERWISE = "max_instances_per_host", 50
METADATA: tuple[dict[str, str], ...] = (
    {},
    {"availability_zone": "north"},
    {"availability_zone": "south"},
    {LIMIT: "3"},
    {LIMIT: "7", "availability_zone": "north"},
    {"rack": "r1"},
)

some_hosts = st.sampled_from(HOSTS)
aggregates = st.builds(
    Aggregate,
    id=st.sampled_from(IDS),
    name=st.just(""),
    metadata=st.sampled_from(METADATA),
    sequence=st.integers(1, 6),
)
steps = st.one_of(
    st.tuples(st.just("placement"), some_hosts, st.sets(st.sampled_from(IDS))),
    st.tuples(st.just("gone"), some_hosts, st.none()),
    st.tuples(st.just("registry"), some_hosts, st.sampled_from(("", "cellar", "north"))),
    st.tuples(st.just("forgotten"), some_hosts, st.none()),
    st.tuples(st.just("metadata"), aggregates, st.none()),
    st.tuples(st.just("deleted"), aggregates, st.none()),
)


@dataclass
class Reference:
    members: dict[str, set[AggregateId]] = field(default_factory=dict)
    zones: dict[str, str] = field(default_factory=dict)
    known: dict[AggregateId, Aggregate] = field(default_factory=dict)

    def of(self, host: str) -> list[Aggregate]:
        return [self.known[each] for each in self.members.get(host, ()) if each in self.known]

    def zone(self, host: str) -> str:
        named = sorted(
            (each.name, each.metadata["availability_zone"])
            for each in self.of(host)
            if "availability_zone" in each.metadata
        )
        return named[0][1] if named else self.zones.get(host, "")

    def limit(self, host: str) -> int:
        return min(
            (int(each.metadata[LIMIT]) for each in self.of(host) if LIMIT in each.metadata), default=OTHERWISE
        )


class World:
    def __init__(self) -> None:
        self.picture = Picture()
        self.reference = Reference()
        self.count = 0

    def do(self, kind: str, what: Any, told: Any) -> None:
        self.count += 1
        picture, reference = self.picture, self.reference
        match kind:
            case "placement":
                state = a_state(what, revision=self.count, shape=self.count, internal=1 + HOSTS.index(what))
                picture.apply([structs.replace(state, aggregates=tuple(told))])
                reference.members[what] = told
            case "gone":
                picture.forget([provider(what)])
                reference.members.pop(what, None)
            case "registry":
                picture.put_hosts([a_host(what, availability_zone=told, sequence=self.count)])
                reference.zones[what] = told
            case "forgotten":
                picture.remove_hosts([provider(what)])
                reference.zones.pop(what, None)
            case "metadata":
                picture.put_aggregates([named(what)])
                known = reference.known.get(what.id)
                if known is None or known.sequence < what.sequence:
                    reference.known[what.id] = named(what)
            case "deleted":
                picture.remove_aggregate(named(what))
                known = reference.known.get(what.id)
                if known is not None and known.sequence <= what.sequence:
                    del reference.known[what.id]

    def check(self) -> None:
        picture, reference = self.picture, self.reference
        numbers = picture.aggregates.numbers(LIMIT, OTHERWISE)
        has_limit = any(LIMIT in each.metadata for each in reference.known.values())
        assert (LIMIT in picture.aggregates.keys) == has_limit
        for host in HOSTS:
            row = picture.row_of(provider(host))
            assert (row < 0) == (host not in reference.members and host not in reference.zones), host
            if row < 0:
                continue
            assert picture.zone_of(provider(host)) == reference.zone(host), host
            assert {*picture.aggregates_of(provider(host))} == reference.members.get(host, set()), host
            assert numbers[picture.columns.aggregates[row]] == reference.limit(host), host
        for id_ in IDS:
            members = [picture.columns.names[row] for row in picture.members_of(id_)]
            assert members == sorted(host for host, ids in reference.members.items() if id_ in ids)


def named(drawn: Aggregate) -> Aggregate:
    """Their names are in another order than their ids."""
    return Aggregate(
        id=drawn.id,
        name=dict(zip(IDS, "dbca", strict=True))[drawn.id],
        metadata=drawn.metadata,
        sequence=drawn.sequence,
    )


@given(drawn=st.lists(steps, max_size=25))
@settings(BOUNDED)
def test_zones_limits_and_members_follow_from_every_change_in_any_order(
    drawn: list[tuple[str, Any, Any]],
) -> None:
    world = World()
    for kind, what, told in drawn:
        world.do(kind, what, told)
        # After each step: an answer that is kept for too long would be seen.
        world.check()
