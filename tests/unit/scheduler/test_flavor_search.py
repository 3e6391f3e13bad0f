"""The search of an instance whose request accepts several flavors: which one it is for, and when it goes on to the next."""

import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import BuildInstance
from bus.messages.placement import ClaimAnswered, ClaimResources
from bus.topology import CELL0
from bus.workers.station import Station
from engine.choosing.choosing import Chosen
from engine.choosing.verdicts import Holds, OtherHost, SearchRefused
from engine.flavors import Flavor, InstanceId
from engine.inventories import Choice, ConsumerId, ProviderId, ResourceAmount, Share
from engine.picture.picture import Picture
from engine.refusals import Claimed, DoesNotFit, NoValidHost
from engine.requests import Alternative, InstanceSpec
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.core.instances.history import decoded
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.replica import Replica
from scheduler_worker.requests.reading import Search
from scheduler_worker.waiting import WaitingSpecs
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_picture, a_state, vcpus

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NONE = NoValidHost(hosts=3, steps=())
HOST = ProviderId(UUID(int=5))
CHOSEN = Chosen(
    "c1",
    Choice(
        name="h1", share=Share(host=HOST, amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=1),))
    ),
)


def a_flavor(name: str, required: tuple[str, ...] = (), **amounts: int) -> Alternative:
    return Alternative(
        name, Flavor(name=name), InstanceSpec(amounts=tuple(sorted(amounts.items())), required=required)
    )


GOLD, SILVER, VM = (
    a_flavor("gold", CUSTOM_GOLD=1),
    a_flavor("silver", CUSTOM_SILVER=1),
    a_flavor("vm", VCPU=4),
)


def a_search(*alternatives: Alternative) -> Search:
    build = BuildInstance(flavor=Flavor(name="asked"), name="web")
    return Search(InstanceId(ConsumerId(UUID(int=1))), NOON, build, alternatives[0].spec, alternatives)


def choose(search: Search) -> None:
    search.chosen = CHOSEN


def refuse(search: Search, times: int = 1, *, claims_max: int = 2) -> None:
    for _ in range(times):
        choose(search)
        search.claim()
        search.refused(OtherHost("full"), shape_tries_max=1, claims_max=claims_max)


def test_it_begins_with_the_best_flavor() -> None:
    search = a_search(GOLD, VM)

    assert (search.spec, search.build.flavor) == (GOLD.spec, GOLD.flavor)
    assert search.build.name == "web"
    assert search.may_fall_back


def test_it_goes_on_with_the_next_flavor_and_says_why() -> None:
    search = a_search(GOLD, SILVER, VM)
    choose(search)
    search.pass_over("H1")

    search.fall_back(NONE)

    assert search.chosen is None
    assert (search.spec, search.build.flavor) == (SILVER.spec, SILVER.flavor)
    # A host that refused one flavor may have room for another.
    assert search.wanted == SILVER.spec
    assert [(each.flavor, each.reason, each.no_valid_host) for each in search.passed_over] == [
        ("gold", "no valid host", NONE)
    ]
    search.fall_back("why")
    assert not search.may_fall_back
    found = search.found
    assert found is not None
    assert (found.flavor, decoded(found.spec)) == (VM.flavor, VM.spec)
    assert [each.flavor for each in found.passed_over] == ["gold", "silver"]


def test_one_flavor_alone_is_not_told() -> None:
    search = Search(InstanceId(ConsumerId(UUID(int=1))), NOON, BuildInstance(), VM.spec)

    assert not search.may_fall_back
    assert search.found is None


def test_too_many_refused_claims_of_a_flavor_lead_to_the_next_one_and_at_last_to_an_end() -> None:
    search = a_search(GOLD, VM)

    refuse(search, 2)
    assert (search.spec, search.outcome, search.chosen) == (VM.spec, None, None)
    assert search.passed_over[0].reason == "2 claims were refused, and no more are tried; the last: h1: full"
    refuse(search, 1)
    assert search.is_searching
    refuse(search, 1)
    assert isinstance(search.outcome, SearchRefused)


def test_claims_are_bounded_though_it_begins_again() -> None:
    search = a_search(GOLD, VM)

    for _ in range(4):
        assert search.is_searching
        search.begin_again()
        refuse(search)
    # The last one was for the best flavor, so the next one is for the last flavor.
    refuse(search)

    assert isinstance(search.outcome, SearchRefused)


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_an_instance_that_holds_the_amounts_of_a_flavor_has_that_flavor(begun: int) -> None:
    search = a_search(GOLD, SILVER, VM)
    for _ in range(begun):
        search.fall_back(NONE)

    search.take_flavor_of({"CUSTOM_SILVER": 1}, ())

    assert search.build.flavor == SILVER.flavor
    assert [each.flavor for each in search.passed_over] == ["gold"]


def test_of_flavors_that_differ_in_traits_the_traits_of_the_host_decide() -> None:
    fast, slow = a_flavor("fast", ("CUSTOM_FAST",), VCPU=1), a_flavor("slow", VCPU=1)
    search = a_search(fast, slow)

    search.take_flavor_of({"VCPU": 1}, ("CUSTOM_OTHER",))

    assert search.build.flavor == slow.flavor
    search.take_flavor_of({"VCPU": 1}, ("CUSTOM_FAST",))
    # It may be of either: the present one stays.
    assert search.build.flavor == slow.flavor


def test_amounts_of_no_flavor_change_nothing() -> None:
    search = a_search(GOLD, VM)

    search.take_flavor_of({"VGPU": 1}, ())

    assert search.build.flavor == GOLD.flavor


def a_claimer(picture: Picture, sure: Callable[[], Awaitable[None]], asked: list[Message]) -> Claimer:
    """A claimer whose claims are all granted; probes find that nothing is held."""
    station = Station(MemoryBroker().as_user(), "s")
    plugins = standard_plugins()

    async def grant(questions: Sequence[Message]) -> Sequence[Message]:
        asked.extend(questions)
        return [
            ClaimAnswered(
                consumer=each.consumer,
                attempt=1,
                verdict=DoesNotFit(shortfalls=()) if each.cell == CELL0 else Claimed(),
            )
            for each in questions
            if isinstance(each, ClaimResources)
        ]

    return Claimer(
        picture,
        Replica(station, picture, lambda _: None, waiting=WaitingSpecs(picture, plugins), page=10),
        HostRegistry(picture, timedelta(minutes=1), lambda: NOON),
        grant,
        make_sure=sure,
        plugins=plugins,
        alternates_max=2,
        chance=random.Random(7),
        clock=lambda: NOON,
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("catches_up", [True, False])
async def test_before_a_worse_flavor_is_taken_the_picture_catches_up(*, catches_up: bool) -> None:
    large, small = a_flavor("large", VCPU=8), a_flavor("small", VCPU=2)
    full = a_state("h1", vcpus(16, used=12), revision=1)
    picture, asked, times = a_picture(full), list[Message](), list[int]()

    async def sure() -> None:
        times.append(len(asked))
        if catches_up:
            picture.apply([a_state("h1", vcpus(16, used=0), revision=2)])

    search = a_search(large, small)
    await a_claimer(picture, sure, asked).find_hosts([search])

    assert isinstance(search.outcome, Holds)
    assert search.build.flavor == (large if catches_up else small).flavor
    # Once, after it was asked what the instance holds, and before anything was claimed; and one claim was enough.
    assert times == [1]
    claims = [each for each in asked if isinstance(each, ClaimResources) and each.cell != CELL0]
    assert [each.share.amounts[0].amount for each in claims] == [8 if catches_up else 2]


@pytest.mark.asyncio
async def test_one_flavor_that_fits_asks_for_nothing_but_its_claim() -> None:
    asked: list[Message] = []

    async def sure() -> None:
        raise AssertionError("the picture need not catch up")

    search = a_search(a_flavor("large", VCPU=8), a_flavor("small", VCPU=2))
    await a_claimer(a_picture(a_state("h1")), sure, asked).find_hosts([search])

    assert len(asked) == 1
