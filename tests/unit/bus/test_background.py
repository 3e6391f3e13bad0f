"""Tasks beside a part: at most one for each key, watched, and at most so many."""

import asyncio

import pytest

from bus.parts import Background

pytestmark = pytest.mark.asyncio


async def test_the_key_of_a_task_is_known_until_its_end_which_is_told() -> None:
    ended: list[object] = []
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()

    background = Background(ended.append)
    async with background:
        background.start(work(), "one")
        background.start(work(), "two")
        assert ("one" in background, "three" in background, len(background)) == (True, False, 2)
        background.cancel("one")
        background.cancel("three")
        await background.until_fewer_than(2)
        assert (ended, len(background)) == (["one"], 1)
        go.set()
    assert (ended, len(background)) == (["one", "two"], 0)


async def test_it_is_waited_until_there_are_fewer_tasks() -> None:
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()

    background = Background()
    async with background:
        for _ in range(3):
            background.start(work())
        waiting = asyncio.create_task(background.until_fewer_than(3))
        await asyncio.sleep(0)
        assert not waiting.done()
        go.set()
        await waiting
        assert len(background) < 3


async def test_a_bug_in_a_task_ends_the_part() -> None:
    async def bug() -> None:
        raise ZeroDivisionError

    async def part() -> None:
        background = Background()
        async with background:
            background.start(bug())
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        await part()
    assert raised.group_contains(ZeroDivisionError)
