"""The computes of a cell are killed again and again in the middle of moves on the real servers: everything settles, and nothing
is lost, doubled or left over.

A compute whose hosts keep their instances goes on where it was. One that forgets them is like hosts that lost power: then an
instance that was there may end in error, with its reason. `COMPUTES_KILLED=20` makes it longer.
"""

import asyncio
import os
from collections.abc import Callable

import pytest

from bus.messages.build import InstanceState
from bus.messages.moves import EndMove
from tests.adversity.real_cloud import RealCloud, real_cloud
from tests.adversity.test_killed_workers import (
    a_build,
    instance_of,
    kill_and_start_again,
    send,
)
from tests.adversity.test_moves_under_kills import (
    CELL,
    HOSTS,
    KINDS,
    MOVES,
    a_move,
    ask,
    flavor_of,
    has_settled,
    outcomes,
)
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(600)]

KILLS = int(os.environ.get("COMPUTES_KILLED", "3"))
COMPUTE = f"compute-{CELL}"
WORKERS = ("placement-1", "scheduler-1", f"conductor-{CELL}", COMPUTE)


def is_over(state: InstanceState) -> bool:
    return has_settled(state) or state.state == "error"


async def test_computes_that_keep_their_instances_are_killed_in_the_middle_of_moves_and_lose_none() -> None:
    async with real_cloud(CELL, HOSTS_PER_CELL=str(HOSTS), SPAWN_MS="400", COMPUTES_KEEP="1") as here:
        states = await moved_under_kills(here)
        assert {state.state for state in states} <= {"active", "moved"}

        reverts = [
            EndMove(request_id=state.move.request_id, instance=state.id, how="revert")
            for state in states
            if state.state == "moved" and state.move is not None
        ]
        assert reverts
        reverting = asyncio.create_task(ask(here, reverts))
        await kill_and_start_again(here, COMPUTE)
        await reverting
        states = await until_all(here, lambda state: state.state == "active" and has_settled(state))

        assert outcomes(states).keys() - {f"{kind} failed" for kind in KINDS}, "some moves came to their end"
        await here.until_at_rest(flavor_of)


async def moved_under_kills(here: RealCloud) -> list[InstanceState]:
    """The instances, when all moves have ended."""
    await here.start(*WORKERS)
    await here.until_up(HOSTS)
    builds = [a_build(number) for number in range(1, MOVES + 1)]
    await send(here, builds)
    for build in builds:
        await here.until_state(instance_of(build), "active")

    # Some for each kill: they would all be over before the last one.
    asking = []
    for kill in range(KILLS):
        moves = [a_move(number) for number in range(1 + kill, MOVES + 1, KILLS)]
        asking.append(asyncio.create_task(ask(here, moves)))
        await until(
            here.instances, "a move is under way", lambda found: any(each.state == "moving" for each in found)
        )
        await kill_and_start_again(here, COMPUTE)
    await asyncio.gather(*asking)
    states = await until_all(here, is_over)
    print(f"{MOVES} moves, computes killed {KILLS} times: {outcomes(states)}")
    assert len(states) == MOVES
    return states


async def until_all(here: RealCloud, condition: Callable[[InstanceState], bool]) -> list[InstanceState]:
    return await until(here.instances, "every move has ended", lambda states: all(map(condition, states)))
