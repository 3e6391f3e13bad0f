"""Conductors, schedulers and computes are killed in the middle of moves on the real servers: everything settles, and nothing is left
over.

`MOVES_UNDER_KILLS=200` makes it larger.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from uuid import UUID

import pytest

from bus.messages.build import InstancesFound, InstanceState, MoveKind
from bus.messages.moves import EndMove, MoveInstance
from engine.flavors import Flavor, InstanceId, RequestId
from tests.adversity.real_cloud import SMALL, RealCloud, a_build, instance_of, real_cloud
from tests.waiting import until

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(600)]

MOVES = int(os.environ.get("MOVES_UNDER_KILLS", "16"))
HOSTS = 10
CELL = "c2"
CONDUCTORS = (f"conductor-{CELL}", f"conductor-{CELL}+2")
SCHEDULERS = ("scheduler-1", "scheduler-2")
WORKERS = ("placement-1", *SCHEDULERS, *CONDUCTORS, f"compute-{CELL}")
LARGE = Flavor(name="large", vcpus=2, ram_mb=128, root_gb=1)
KINDS: tuple[MoveKind, ...] = ("migrate", "live-migrate", "resize", "resize")
# These wait to be confirmed, and are reverted.
REVERTED = len(KINDS) - 1


async def booted(here: RealCloud, *workers: str) -> None:
    """These workers run, and as many instances as move."""
    await here.start(*workers)
    await here.until_up(HOSTS)
    builds = [a_build(number) for number in range(1, MOVES + 1)]
    await here.send(builds)
    for build in builds:
        await here.until_state(instance_of(build), "active")


def a_move(number: int) -> MoveInstance:
    kind = KINDS[number % len(KINDS)]
    return MoveInstance(
        request_id=RequestId(UUID(int=1_000_000 + number)),
        instance=instance_of(a_build(number)),
        kind=kind,
        flavor=LARGE if kind == "resize" else None,
        confirm_s=None if number % len(KINDS) == REVERTED else 0,
    )


async def ask(here: RealCloud, orders: Sequence[MoveInstance | EndMove]) -> None:
    """Each order is taken, whichever scheduler dies meanwhile."""
    answers = await asyncio.gather(*[here.client.ask(order) for order in orders])
    assert [each for each in answers if not isinstance(each, InstancesFound)] == []


def has_settled(state: InstanceState) -> bool:
    """It waits for the client, or the move is over and the instance runs."""
    return state.state == "moved" or bool(state.state == "active" and state.move and state.move.outcome)


async def until_settled(here: RealCloud, count: int) -> list[InstanceState]:
    return await until(
        here.instances,
        f"{count} of {MOVES} moves have settled",
        lambda states: sum(map(has_settled, states)) >= count,
    )


def flavor_of(state: InstanceState) -> Flavor:
    """The flavor that the instance has after its move."""
    is_larger = state.move is not None and (state.move.kind, state.move.outcome) == ("resize", "confirmed")
    return LARGE if is_larger else SMALL


async def test_conductors_and_schedulers_are_killed_in_the_middle_of_moves_and_everything_settles() -> None:
    async with real_cloud(CELL, HOSTS_PER_CELL=str(HOSTS)) as here:
        await booted(here, *WORKERS)

        began_s = time.monotonic()
        asking = asyncio.create_task(ask(here, [a_move(number) for number in range(1, MOVES + 1)]))
        victims = (SCHEDULERS[0], CONDUCTORS[0], SCHEDULERS[1], CONDUCTORS[1])
        for number, victim in enumerate(victims):
            await until_settled(here, MOVES * number // (len(victims) + 1))
            await here.kill_and_start_again(victim)
        await asking

        reverting = asyncio.create_task(ask(here, reverts_of(await until_settled(here, MOVES))))
        await asyncio.gather(*[here.kill_and_start_again(victim) for victim in CONDUCTORS])
        await reverting
        await until_all(here, is_back)
        await here.until_at_rest(flavor_of)
        print(
            f"{MOVES} moves settled in {time.monotonic() - began_s:.1f} s: {outcomes(await here.instances())}"
        )


def reverts_of(states: Sequence[InstanceState]) -> list[EndMove]:
    """The orders to revert what waits to be confirmed."""
    return [
        EndMove(request_id=state.move.request_id, instance=state.id, how="revert")
        for state in states
        if state.state == "moved" and state.move is not None
    ]


def outcomes(states: Sequence[InstanceState]) -> dict[str, int]:
    return dict(Counter(f"{each.move.kind} {each.move.outcome}" for each in states if each.move is not None))


KILLS = int(os.environ.get("COMPUTES_KILLED", "3"))
COMPUTE = f"compute-{CELL}"
WITH_COMPUTE = ("placement-1", "scheduler-1", f"conductor-{CELL}", COMPUTE)


def is_back(state: InstanceState) -> bool:
    return state.state == "active" and has_settled(state)


def is_over(state: InstanceState) -> bool:
    return has_settled(state) or state.state == "error"


async def test_computes_that_keep_their_instances_are_killed_in_the_middle_of_moves_and_lose_none() -> None:
    async with real_cloud(CELL, HOSTS_PER_CELL=str(HOSTS), SPAWN_MS="400", COMPUTES_KEEP="1") as here:
        states = await moved_under_kills(here)
        assert {state.state for state in states} <= {"active", "moved"}

        reverts = reverts_of(states)
        assert reverts
        reverting = asyncio.create_task(ask(here, reverts))
        await here.kill_and_start_again(COMPUTE)
        await reverting
        states = await until_all(here, is_back)

        assert outcomes(states).keys() - {f"{kind} failed" for kind in KINDS}, "some moves came to their end"
        await here.until_at_rest(flavor_of)


def is_any_moving(states: Sequence[InstanceState]) -> bool:
    return any(each.state == "moving" for each in states)


def is_under_way_or_over(moving: Collection[InstanceId], states: Sequence[InstanceState]) -> bool:
    return is_any_moving(states) or all(is_over(each) for each in states if each.id in moving)


async def moved_under_kills(here: RealCloud) -> list[InstanceState]:
    """The instances, when all moves have ended."""
    await booted(here, *WITH_COMPUTE)

    # Some for each kill: they would all be over before the last one.
    asking, in_the_middle = [], 0
    for kill in range(KILLS):
        moves = [a_move(number) for number in range(1 + kill, MOVES + 1, KILLS)]
        asking.append(asyncio.create_task(ask(here, moves)))
        moving = {each.instance for each in moves}
        # On a busy machine these may be over before they are looked at.
        found = await until(
            here.instances,
            f"one of {moving} moves, or all have moved",
            partial(is_under_way_or_over, moving),
        )
        in_the_middle += is_any_moving(found)
        await here.kill_and_start_again(COMPUTE)
    assert in_the_middle
    await asyncio.gather(*asking)
    states = await until_all(here, is_over)
    print(f"{MOVES} moves, computes killed {KILLS} times: {outcomes(states)}")
    assert len(states) == MOVES
    return states


async def until_all(here: RealCloud, condition: Callable[[InstanceState], bool]) -> list[InstanceState]:
    return await until(here.instances, "every move has ended", lambda states: all(map(condition, states)))
