"""Candidates asked for on the bus: each can be claimed as it is."""

import asyncio
from uuid import uuid5

import pytest

from bus.messages.administration import AskCandidates, Candidates, CandidatesFound, RequestGroup, UnknownTrait
from bus.messages.placement import ReportAccepted
from engine.refusals import Claimed, NotAllowed, ShapeMoved, TooCostly
from placement_worker import candidates
from placement_worker.settings import PlacementSettings
from tests.hostile_requests import hard_messages, hard_worlds
from tests.stories.placement.test_placement_over_the_bus import (
    NAMES,
    STAGES,
    PlacementSetup,
    claim,
    host,
    placement_setup,
)
from tests.waiting import until

pytestmark = pytest.mark.asyncio

TWO_CPUS = AskCandidates(groups=(RequestGroup(resources={"VCPU": 2, "MEMORY_MB": 1024}),))
THREE_DEVICES = AskCandidates(
    groups=tuple(RequestGroup(suffix=f"_{number}", resources={"PGPU": 1}) for number in range(3)),
    group_policy="isolate",
    limit=1_000,
)


async def asked(setup: PlacementSetup, question: AskCandidates) -> object:
    answer = await setup.cloud.ask(question, CandidatesFound)
    return answer.verdict


async def first_of(setup: PlacementSetup, question: AskCandidates) -> Candidates:
    found = await asked(setup, question)
    assert isinstance(found, Candidates)
    return found


@STAGES
async def test_a_candidate_can_be_claimed_as_it_is_until_the_shape_moves(bus: str, books: str) -> None:
    async with placement_setup(bus, books) as setup:
        await setup.report(host("h1", 4))
        await setup.report(host("h2", 1))

        (only,) = (await first_of(setup, TWO_CPUS)).candidates

        assert only.share.host == uuid5(NAMES, "h1")
        assert await setup.claim(claim(1, only.share)) == [Claimed()]
        # A committed write counts at once.
        assert [one.share.host for one in (await first_of(setup, TWO_CPUS)).candidates] == [only.share.host]
        assert await setup.claim(claim(2, only.share)) == [Claimed()]
        assert (await first_of(setup, TWO_CPUS)).candidates == ()
        await setup.report(host("h1", 8, traits=("CUSTOM_FAST",)))
        (refused,) = await setup.claim(claim(3, only.share))
        assert isinstance(refused, ShapeMoved)


@STAGES
async def test_an_invalid_question_is_refused_with_field_and_reason(bus: str, books: str) -> None:
    no_group = AskCandidates(groups=(RequestGroup(),))
    no_policy = AskCandidates(groups=THREE_DEVICES.groups)
    twice = AskCandidates(groups=(*THREE_DEVICES.groups[:1], *THREE_DEVICES.groups[:1]), group_policy="none")
    nobody = AskCandidates(groups=TWO_CPUS.groups, same_subtree=(("_X",),))
    both = AskCandidates(
        groups=(RequestGroup(resources={"VCPU": 1}, required=(("HW_GPU",),), forbidden=("HW_GPU",)),)
    )
    async with placement_setup(bus, books) as setup:
        for question, field in (
            (no_group, "groups[0].resources"),
            (no_policy, "group_policy"),
            (twice, "groups[1].suffix"),
            (nobody, "same_subtree[0]"),
            (both, "groups[0].forbidden"),
        ):
            refused = await asked(setup, question)
            assert isinstance(refused, NotAllowed)
            assert refused.field == field

        unheard = AskCandidates(groups=(RequestGroup(resources={"VCPU": 1}, required=(("CUSTOM_X",),)),))
        assert await asked(setup, unheard) == UnknownTrait(names=("CUSTOM_X",))


class HeldSearches:
    """Takes the place of asyncio in placement's searches: one that lets other tasks run goes on when it may."""

    Semaphore = asyncio.Semaphore

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def sleep(self, _seconds: float) -> None:
        self.begun.set()
        await self.may_go_on.wait()
        await asyncio.sleep(0)


@STAGES
async def test_a_search_over_its_budget_ends_with_its_numbers_and_claims_are_answered_first(
    bus: str, books: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = PlacementSettings(search_steps_max=1_000_000)
    async with placement_setup(bus, books, settings=settings) as setup:
        await setup.report(host("h1", 4))
        (only,) = (await first_of(setup, TWO_CPUS)).candidates
        for world in hard_worlds():
            assert isinstance(await setup.report(world), ReportAccepted)

        searches = HeldSearches()
        monkeypatch.setattr(candidates, "asyncio", searches)
        hard = asyncio.ensure_future(asked(setup, hard_messages()["a tight packing"]))
        await until(lambda: searches.begun.is_set() or hard.done(), "the search lets others run")
        assert await setup.claim(claim(1, only.share)) == [Claimed()]
        assert not hard.done(), "the claim waited for the search"
        searches.may_go_on.set()
        cut = await hard

        assert isinstance(cut, TooCostly)
        assert (cut.what, cut.budget) == ("steps", 1_000_000)
        assert 1_000_000 < cut.spent < 1_010_000
