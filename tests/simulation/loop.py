"""A loop whose clock jumps: nobody is waited for, time goes to where something is due."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits for somebody else, and nothing is due")
        self.now_s += max(0.0, timeout)
        # Nothing comes from outside: whoever runs here talks to nobody but itself.
        return super().select(0) if timeout else []


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def live(day: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(day)


async def until_s(at_s: float) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(at_s - loop.time())
