"""Requests that accept several flavors, against a slow oracle: each instance gets the first flavor for which any host
qualifies, and no request is refused while a host qualifies for one of its flavors.
"""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import BuildInstance
from bus.workers.station import Station
from engine.flavors import Flavor, InstanceId
from engine.inventories import ConsumerId
from engine.picture.picture import Picture
from engine.requests import Alternative, InstanceSpec
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.replica import Replica
from scheduler_worker.requests.reading import Search
from scheduler_worker.waiting import WaitingSpecs
from tests.properties.bounds import THOROUGH
from tests.properties.test_scheduler_choosing import PLUGINS, WISHES, Host, clouds, picture_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def nobody_asks(_: Sequence[Message]) -> Sequence[Message]:
    raise AssertionError("a choice asks placement nothing")


async def sure() -> None: ...


def claimer_of(picture: Picture, seed: int) -> Claimer:
    station = Station(MemoryBroker().as_user(), "s")
    return Claimer(
        picture,
        Replica(station, picture, lambda _: None, waiting=WaitingSpecs(picture, PLUGINS), page=10),
        HostRegistry(picture, timedelta(minutes=1), lambda: NOON),
        nobody_asks,
        make_sure=sure,
        plugins=PLUGINS,
        alternates_max=2,
        chance=random.Random(seed),
        clock=lambda: NOON,
    )


def a_search(number: int, specs: Sequence[InstanceSpec]) -> Search:
    alternatives = tuple(
        Alternative(str(each), Flavor(name=str(each)), spec) for each, spec in enumerate(specs)
    )
    id_ = InstanceId(ConsumerId(UUID(int=number + 1)))
    return Search(id_, NOON, BuildInstance(flavor=Flavor()), specs[0], alternatives)


def first_that_fits(cloud: Sequence[Host], specs: Sequence[InstanceSpec]) -> int | None:
    """The number of the first flavor for which any host qualifies."""
    return next(
        (
            number
            for number, spec in enumerate(specs)
            if any(host.first_failure(spec) is None for host in cloud)
        ),
        None,
    )


@THOROUGH
@given(
    cloud=clouds(),
    requests=st.lists(st.lists(WISHES, min_size=2, max_size=4), min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
def test_each_instance_gets_the_first_flavor_for_which_a_host_qualifies(
    cloud: list[Host], requests: list[list[InstanceSpec]], seed: int
) -> None:
    claimer = claimer_of(picture_of(cloud), seed)
    for number, specs in enumerate(requests):
        search = a_search(number, specs)

        nowhere = claimer.choose_any_flavor([search])

        expected = first_that_fits(cloud, specs)
        if expected is None:
            assert [one for one, _ in nowhere] == [search]
            assert len(search.passed_over) == len(specs) - 1
        else:
            assert not nowhere
            assert search.chosen is not None
            assert len(search.passed_over) == expected
            assert search.spec == specs[expected]
            (host,) = [each for each in cloud if each.name == search.chosen.choice.name]
            assert host.first_failure(search.spec) is None
            share = {each.resource: each.amount for each in search.chosen.choice.share.amounts}
            assert share == dict(specs[expected].amounts)
            host.take(search.spec)
        for passed, each in enumerate(search.passed_over):
            funnel = each.no_valid_host
            assert funnel is not None
            # The funnel of each flavor that it did not get has all hosts in it.
            assert sum(step.removed for step in funnel.steps) == funnel.hosts
            assert each.flavor == str(passed)


@THOROUGH
@given(
    cloud=clouds(),
    wishes=st.lists(WISHES, min_size=2, max_size=3),
    count=st.integers(1, 12),
    seed=st.integers(0, 9),
)
def test_of_many_instances_none_gets_a_worse_flavor_while_a_better_one_fits(
    cloud: list[Host], wishes: list[InstanceSpec], count: int, seed: int
) -> None:
    searches = [a_search(number, wishes) for number in range(count)]

    nowhere = {one for one, _ in claimer_of(picture_of(cloud), seed).choose_any_flavor(searches)}

    by_name = {host.name: host for host in cloud}
    for flavor, spec in enumerate(wishes):
        for one in searches:
            if one not in nowhere and len(one.passed_over) == flavor:
                assert one.chosen is not None
                host = by_name[one.chosen.choice.name]
                assert host.first_failure(spec) is None
                host.take(spec)
        if any(len(one.passed_over) > flavor or one in nowhere for one in searches):
            assert not any(host.first_failure(spec) is None for host in cloud)
