"""Tasks that a part of a worker starts and that run beside the part's own loop."""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any


class Background:
    """Tasks that a part starts and that run beside its loop, at most one for each key.

    Used by `async with`, whose end waits for the tasks. A bug in one of them ends the part. While the part ends, work
    that is started is dropped, as if the process had ended a moment earlier.
    """

    def __init__(self, ended: Callable[[Any], object] = lambda _: None) -> None:
        """`ended` is called with the key after the end of each task."""
        self._ended = ended
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[object, asyncio.Task[None]] = {}

    async def __aenter__(self) -> None:
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None
        await self._group.__aexit__(kind, problem, trace)

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, key: object) -> bool:
        return key in self._tasks

    def start(self, work: Coroutine[object, object, None], key: object = None) -> None:
        """Run this work as a task, which can be found by its key. Without a key, no other call can find it."""
        assert self._group is not None, "its part has not begun"
        try:
            task = self._group.create_task(work)
        except RuntimeError:
            # Only closed work is not reported as never awaited.
            work.close()
            return
        own = task if key is None else key
        self._tasks[own] = task
        task.add_done_callback(lambda _: self._forget(own))

    def cancel(self, key: object) -> None:
        if key in self._tasks:
            self._tasks[key].cancel()

    def cancel_all(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def until_fewer_than(self, count: int) -> None:
        while len(self._tasks) >= count:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)

    def _forget(self, key: object) -> None:
        del self._tasks[key]
        self._ended(key)
