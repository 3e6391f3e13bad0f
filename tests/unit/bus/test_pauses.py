"""The one formula of growing pauses, and those who have no test of their own pauses."""

import asyncio
import random
from itertools import pairwise

import pytest

from kit.errors import ConnectionLost, Transient
from kit.parts import Pauses, Retrying, Status, drawn, grown, what_remains
from tests.simulation.loop import run_simulated


def test_a_pause_doubles_with_each_failure_up_to_the_longest() -> None:
    assert [grown(0.5, 3.0, failures) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(("least", "low_s"), [(0.5, 4.0), (0.0, 0.0)])
def test_a_drawn_pause_is_between_its_least_share_and_all_of_it(least: float, low_s: float) -> None:
    chance = random.Random(1)

    pauses_s = sorted(drawn(8.0, chance, least=least) for _ in range(1_000))

    assert low_s <= pauses_s[0] < low_s + 0.1
    assert 7.9 < pauses_s[-1] <= 8.0


def test_a_retried_call_pauses_for_any_part_of_the_grown_pause() -> None:
    """Callers that collide on one lock are spread over all of it. The generator can be given, and is `random` otherwise."""
    limits_s = (1.0, 2.0, 4.0, 4.0, 4.0)

    async def pauses_s(retrying: Retrying) -> list[float]:
        tried_at_s: list[float] = []

        async def fails() -> None:
            tried_at_s.append(asyncio.get_running_loop().time())
            raise Transient("no")

        with pytest.raises(Transient, match="no"):
            await retrying(fails)
        return [after - before for before, after in pairwise(tried_at_s)]

    def of(chance: random.Random) -> list[float]:
        return run_simulated(pauses_s(Retrying(6, Pauses(first_s=1.0, max_s=4.0, least=0.0), chance=chance)))

    assert of(random.Random(3)) == pytest.approx(
        [limit_s * each for limit_s, each in zip(limits_s, _shares(3), strict=True)]
    )
    assert of(random.Random(3)) != of(random.Random(4))
    assert min(_shares(3)) < 0.5


async def test_parts_of_one_name_in_several_processes_do_not_try_again_together() -> None:
    pauses_s = {Status("connection").failed(ConnectionLost("the broker is away")) for _ in range(20)}

    assert len(pauses_s) == 20


@pytest.mark.hits("a call has failed for the moment, and is tried again")
def test_a_retried_call_answers_as_soon_as_a_try_succeeds() -> None:
    tried: list[int] = []

    async def second_time(number: int, *, name: str) -> str:
        tried.append(number)
        if len(tried) < 2:
            raise Transient("no")
        return name

    assert run_simulated(Retrying(3)(second_time, 7, name="done")) == "done"
    assert tried == [7, 7]


def test_a_call_that_is_made_once_raises_its_error_at_once() -> None:
    tried: list[int] = []

    async def fails() -> None:
        tried.append(1)
        raise Transient("no")

    with pytest.raises(Transient, match="no"):
        run_simulated(Retrying(1)(fails))
    assert tried == [1]


@pytest.mark.parametrize(("within_s", "remains"), [(100.0, []), (3.0, ["c"])])
def test_what_remains_is_looked_at_until_it_is_nothing_or_the_time_is_over(
    within_s: float, remains: list[str]
) -> None:
    """It looks at 0, 1, 3, 5 and 7 s."""
    found = iter([["a", "b"], ["b", "c"], ["c"], ["c"], []])

    async def look() -> list[str]:
        return next(found)

    assert run_simulated(what_remains(look, Pauses(1.0, 2.0, least=1.0), within_s)) == remains


def _shares(seed: int) -> list[float]:
    chance = random.Random(seed)
    return [chance.random() for _ in range(5)]
