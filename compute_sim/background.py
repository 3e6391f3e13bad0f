"""Work that goes on until it is told to stop, and may be cut short at any point: what it did not finish is done anew."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Background:
    """A part of a process (bus/process.py) made of one endless function."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        working = asyncio.create_task(self._work())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.wait((working, stopping))

    async def stop(self) -> None:
        self._stopping.set()
