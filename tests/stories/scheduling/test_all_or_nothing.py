"""Requests whose instances are all placed at once, or not at all."""

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import (
    BuildAccepted,
    BuildInstance,
    DeleteInstance,
)
from bus.messages.placement import ClaimAnswered, ClaimResources
from engine.inventories import ProviderId, ResourceAmount, Share
from engine.refusals import Superseded
from scheduler_worker.claiming import all_or_nothing
from tests.stories.cloud import QUICK_PACE, Cloud, a_build, a_host, cloud, instance_of
from tests.stories.layouts import SQL_STAGES
from tests.stories.scripted import Interfering
from tests.waiting import until

# The id of no provider: a claim on it is never granted.
NOWHERE = ProviderId(UUID(int=0))


def all_of(number: int, count: int, **fields: object) -> BuildInstance:
    return a_build(number, count=count, all_or_nothing=True, **fields)


@SQL_STAGES
async def test_of_a_thousand_instances_all_are_built_and_with_one_too_many_none(bus: str, books: str) -> None:
    half = [f"h{number}" for number in range(0, 20, 2)]
    async with cloud(bus, books) as setup, setup.scheduling(*half, vcpu=50):
        await setup.add_hosts(*(f"h{number}" for number in range(1, 20, 2)), cell="c2", vcpu=50)
        await setup.fill("h0", 1)

        failed = await setup.built(all_of(1, 1000), "error")
        assert {state.reason for state in failed} == {
            "all or nothing: 1000 instances are asked for, and 999 would fit"
        }
        assert all(state.no_valid_host is not None for state in failed)
        assert sum((await setup.used()).values()) == 1
        assert setup.placed == []

        fitting = all_of(2, 999)
        placed = await setup.built(fitting)
        assert Counter(state.host for state in placed) == {
            "h0": 49,
            **{f"h{number}": 50 for number in range(1, 20)},
        }
        assert sum((await setup.used()).values()) == 1000
        # A repetition is the same request.
        assert isinstance(await setup.client.ask(fitting), BuildAccepted)
        assert len(setup.placed) == 999


async def test_a_request_whose_claim_does_not_fit_into_a_message_is_refused_with_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cloud("memory", "memory") as setup, setup.scheduling("h1", "h2", vcpu=4):
        monkeypatch.setattr(all_or_nothing, "PLACES_BYTES_MAX", 700)
        (first, *_) = await setup.built(all_of(1, 8), "error")
        assert first.reason.startswith("all or nothing: a claim for 8 instances on these hosts has ")
        assert first.reason.endswith(" bytes, and a message at most 700: ask for fewer instances at once")
        await setup.built(all_of(2, 4))


Interference = Callable[[Cloud, BuildInstance], Awaitable[object]]


async def delete_one(setup: Cloud, build: BuildInstance) -> None:
    async with setup.scheduler("other"):
        await setup.client.ask(DeleteInstance(instance=instance_of(build, 1)))
        await until_released(setup, build, 1)


async def let_time_run_out(setup: Cloud, build: BuildInstance) -> None:
    """For another scheduler the deadline is over while the claim is under way."""
    async with setup.scheduler("other", clock=lambda: datetime.now(UTC) + timedelta(hours=1)):
        await setup.until_all(build, "error")
        await until_released(setup, build, 3)


async def until_released(setup: Cloud, build: BuildInstance, index: int) -> None:
    """Placement knows that the instance has ended."""

    share = Share(host=NOWHERE, amounts=(ResourceAmount(provider=NOWHERE, resource="VCPU", amount=1),))
    probe = ClaimResources(
        cell="cell0",
        consumer=instance_of(build, index),
        attempt=1,
        issued_at=datetime.now(UTC),
        share=share,
    )
    await until(
        lambda: setup.client.ask(probe),
        "the release",
        lambda answer: (
            isinstance(answer, ClaimAnswered) and answer.verdict == Superseded(attempt=1, ended=True)
        ),
    )


@pytest.mark.parametrize(
    ("interference", "ends"),
    [
        (delete_one, {"deleted": 1, "error": 3}),
        (let_time_run_out, {"error": 4}),
    ],
)
async def test_if_one_ends_before_all_are_claimed_none_is_built(
    interference: Interference, ends: dict[str, int]
) -> None:
    interfering = Interfering()
    one_by_one = structs.replace(QUICK_PACE, batches_in_flight=1)
    async with (
        cloud("memory", "memory") as setup,
        setup.scheduling("h1", station=interfering.station, pace=one_by_one),
    ):
        build = all_of(1, 4)
        interfering.action = lambda: interference(setup, build)

        assert Counter(state.state for state in await setup.built(build, "error", "deleted")) == ends
        assert setup.placed == []
        await setup.until_used(h1=0)


async def test_claims_that_are_refused_again_and_again_end_all_instances() -> None:
    pace = structs.replace(QUICK_PACE, shape_tries_max=1, claims_max=2, shape_pause_ms_max=0)

    interfering = Interfering(always=True)
    async with (
        cloud("memory", "memory") as setup,
        setup.scheduling("h1", station=interfering.station, pace=pace),
    ):
        traits: list[str] = []

        async def move() -> None:
            traits.append(f"CUSTOM_{len(traits)}")
            await setup.report(a_host("h1", traits=tuple(traits)))

        interfering.action = move
        build = all_of(1, 3)
        failed = await setup.built(build, "error")

        assert {state.reason for state in failed} == {
            "all or nothing: 2 claims for all instances were refused, and no more are tried; the last: h1: its shape moved"
        }
        assert await setup.used() == {"h1": 0}
