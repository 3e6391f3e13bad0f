"""Parts that are started when others are ready."""

import asyncio
from collections.abc import Sequence

from bus.parts import Once, PartGroup
from bus.process import Part


class Staged:
    """Runs `needed` first, and starts `workers` when the events in `ready` are set; at the end, `workers` stop before
    `needed`. The objects in `seen` are not run: health and metrics ask them.
    """

    def __init__(
        self,
        needed: Sequence[Part],
        ready: Sequence[asyncio.Event],
        workers: Sequence[Part],
        *,
        seen: Sequence[object] = (),
    ) -> None:
        self._needed = PartGroup(*needed)
        self._workers = PartGroup(*workers)
        self.parts = (*needed, *workers, *seen)
        self._waiting = Once(
            "wait for the first snapshot", lambda: asyncio.gather(*[each.wait() for each in ready])
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._needed.run())
            await self._waiting.run()
            if not self._waiting.stopping.is_set():
                await self._workers.run()
            await self._needed.stop()

    async def stop(self) -> None:
        await self._waiting.stop()
        await self._workers.stop()
