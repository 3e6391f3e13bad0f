"""The search for hosts of a request that is built whole or not at all: what it does after which verdict, step by step."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import UUID

import pytest

from bus.message import Message
from bus.messages.administration import AllClaimed, ClaimsAnswered, ClaimTogether, NoneClaimed, RefusedPlace
from bus.messages.build import BuildInstance
from engine.choosing.choosing import Chosen
from engine.choosing.verdicts import EndedElsewhere, Holds, SearchRefused
from engine.flavors import Flavor, InstanceId
from engine.inventories import Choice, ConsumerId, ResourceAmount, ShapeSeen, Share
from engine.picture.picture import Picture
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    ClaimVerdict,
    DoesNotFit,
    NoValidHost,
    Shortfall,
    Superseded,
)
from engine.requests import InstanceSpec
from scheduler_worker.claiming.all_or_nothing import TogetherFinder
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.requests.reading import Search
from scheduler_worker.settings import SchedulerPace
from tests.contracts.placement_orders import HOST

pytestmark = pytest.mark.asyncio

NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
AMOUNT = ResourceAmount(provider=HOST, resource="VCPU", amount=1)
SHARE = Share(host=HOST, amounts=(AMOUNT,), shapes=(ShapeSeen(root=HOST, shape=1),))
CHOSEN = Chosen("c1", Choice(name="h1", share=SHARE))
FULL = DoesNotFit(shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=1, free=0),))


def ids(*numbers: int) -> list[InstanceId]:
    return [InstanceId(ConsumerId(UUID(int=number))) for number in numbers]


def refused(number: int, verdict: DoesNotFit | AlreadyClaimed | Superseded) -> NoneClaimed:
    (consumer,) = ids(number)
    return NoneClaimed(refused=(RefusedPlace(consumer=consumer, verdict=verdict),), count=1)


class World:
    """Notes what is done in `steps`. `room` is how many find a host at each choice, `verdicts` what placement answers."""

    def __init__(self, *verdicts: object, room: Sequence[int] = (), held: Sequence[int] = ()) -> None:
        self.steps: list[str] = []
        self.counted: Counter[type[ClaimVerdict]] = Counter()
        self.is_claiming = False
        self.picture = Picture()
        self.searches = [
            Search(id_, NOON, BuildInstance(flavor=Flavor(vcpus=1)), InstanceSpec(amounts=(("VCPU", 1),)))
            for id_ in ids(1, 2, 3)
        ]
        self._verdicts = [*verdicts]
        self._room = [*room]
        self._held = held

    async def find(self, claims_max: int = 12) -> SearchRefused | None:
        finder = TogetherFinder(
            self,
            self.picture,
            HostRegistry.__new__(HostRegistry),
            ask_all=self.ask_all,
            catch_up=self.catch_up,
            pace=SchedulerPace(shape_tries_max=1, claims_max=claims_max, shape_pause_ms_max=0),
            chance=random.Random(1),
        )
        return await finder.find(self.searches)

    @contextmanager
    def claiming(self) -> Iterator[None]:
        yield

    def count(self, verdicts: Iterable[type[ClaimVerdict]]) -> None:
        self.counted.update(verdicts)

    def choose_now(self, choosing: Sequence[Search]) -> list[tuple[Search, NoValidHost]]:
        self.steps.append(f"choose {len(choosing)}")
        room = self._room.pop(0) if self._room else len(choosing)
        for one in choosing[:room]:
            one.chosen = CHOSEN
        self.picture.hold((*one.key, SHARE) for one in choosing[:room])
        return [(one, NoValidHost(hosts=1, steps=())) for one in choosing[room:]]

    def choose_any_flavor(self, choosing: Sequence[Search]) -> list[tuple[Search, NoValidHost]]:
        return self.choose_now(choosing)

    async def until_current(self, lost: Sequence[Search]) -> None:
        await self.adopt_held(lost)
        self.steps.append(f"current, {self._choices} held")

    async def adopt_held(self, lost: Sequence[Search]) -> None:
        self.steps.append(f"adopt, {self._choices} held")
        for one in lost:
            if one.instance.int in self._held:
                one.outcome = Holds("c1", 1, CHOSEN.choice)

    async def catch_up(self) -> None:
        self.steps.append(f"catch up, {self._choices} held")

    async def ask_all(self, questions: Sequence[Message]) -> Sequence[Message]:
        answers = []
        for each in questions:
            assert isinstance(each, ClaimTogether)
            self.steps.append(f"claim {len(each.places)}")
            verdict = self._verdicts.pop(0)
            assert isinstance(verdict, AllClaimed | NoneClaimed)
            answers.append(ClaimsAnswered(claim=each.claim, verdict=verdict))
        return answers

    @property
    def _choices(self) -> int:
        return sum(one.chosen is not None for one in self.searches)


async def test_after_a_refusal_the_picture_catches_up_before_all_are_chosen_anew() -> None:
    world = World(refused(2, FULL), AllClaimed(is_new=True))

    assert await world.find() is None

    assert world.steps == ["choose 3", "claim 3", "catch up, 0 held", "choose 3", "claim 3"]
    assert all(isinstance(one.outcome, Holds) and one.outcome.is_new for one in world.searches)
    assert [len(one.refusals) for one in world.searches] == [0, 1, 0]


@pytest.mark.parametrize(
    ("verdicts", "counted"),
    [
        ((AllClaimed(is_new=True),), {Claimed: 3}),
        ((AllClaimed(is_new=False),), {AlreadyClaimed: 3}),
        ((refused(2, FULL), refused(1, FULL), AllClaimed(is_new=True)), {DoesNotFit: 2, Claimed: 3}),
    ],
)
async def test_the_claims_are_counted_by_what_placement_said_of_single_instances(
    verdicts: Sequence[object], counted: dict[type[ClaimVerdict], int]
) -> None:
    world = World(*verdicts)

    assert await world.find() is None

    assert world.counted == counted


async def test_a_claim_that_was_granted_before_is_not_new() -> None:
    world = World(AllClaimed(is_new=False))

    assert await world.find() is None

    assert not any(isinstance(one.outcome, Holds) and one.outcome.is_new for one in world.searches)


async def test_what_is_held_already_is_looked_up_and_only_the_rest_is_claimed() -> None:
    world = World(refused(1, AlreadyClaimed(attempt=1, share=SHARE)), AllClaimed(is_new=True), held=(1, 3))

    assert await world.find() is None

    assert world.steps == [
        *("choose 3", "claim 3", "adopt, 0 held", "catch up, 0 held"),
        *("choose 1", "claim 1"),
    ]


async def test_before_a_no_the_picture_is_made_current_and_nothing_is_held_meanwhile() -> None:
    world = World(room=(2, 1))

    no = await world.find()

    assert no is not None
    assert no.reason == "all or nothing: 3 instances are asked for, and 1 would fit"
    assert no.no_valid_host is not None
    assert world.steps == ["choose 3", "adopt, 0 held", "current, 0 held", "choose 3"]
    assert not any(one.chosen for one in world.searches)


async def test_while_others_claim_there_is_no_no() -> None:
    world = World(AllClaimed(is_new=True), room=(2, 2, 3))
    world.is_claiming = True

    assert await world.find() is None

    assert world.steps.count("current, 0 held") == 2


async def test_one_that_has_ended_ends_the_search_for_all() -> None:
    world = World(refused(2, Superseded(attempt=1, ended=True)))

    no = await world.find()

    assert no is not None
    assert no.reason.endswith("had ended before all were placed")
    assert isinstance(world.searches[1].outcome, EndedElsewhere)
    assert not any(one.chosen for one in world.searches)


async def test_others_that_claim_without_end_do_not_keep_a_request_for_ever() -> None:
    world = World(room=[2] * 100)
    world.is_claiming = True

    no = await world.find(claims_max=5)

    assert no is not None
    assert no.reason == "all or nothing: 3 instances are asked for, and 2 would fit"
    assert world.steps.count("current, 0 held") == 5
