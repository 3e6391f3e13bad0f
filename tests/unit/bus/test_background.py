"""Tasks beside a part: at most one for each key, watched, and at most so many."""

import asyncio

import pytest

from kit.parts import Background
from tests.contracts.stage import until

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


async def test_what_is_started_while_the_part_ends_is_dropped_without_a_word() -> None:
    """By the callback at a task's end, by another task, and by another part."""
    ran: list[str] = []

    async def work(name: str) -> None:
        ran.append(name)

    async def ends_slowly(background: Background) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            background.start(work("by a task"))

    background = Background(lambda key: background.start(work("after a task")) if key == "slow" else None)

    async def part() -> None:
        async with background:
            background.start(ends_slowly(background), "slow")
            await asyncio.Event().wait()

    running = asyncio.create_task(part())
    await until(lambda: "slow" in background)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    background.start(work("after the part"))
    assert (ran, len(background)) == ([], 0)

    async with background:
        background.start(work("in the next run"))
    assert ran == ["in the next run"]
