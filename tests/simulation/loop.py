"""An event loop with a simulated clock: instead of waiting, time jumps to the next timer."""

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
            raise AssertionError("every task waits for another one, and no timer is set")
        self.now_s += max(0.0, timeout)
        # There is no outside input, so select never has to wait.
        return super().select(0) if timeout else []


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)


async def until_s(at_s: float) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(at_s - loop.time())
