"""The queues of applications: each may have its own ones for its orders and its questions (docs/bus-concepts.md).

A worker loop reads each of them, beside those that read the queues for all. So a flood of one application leaves what others
sent where it is: at the head of another queue.
"""

import random
from collections.abc import Callable, Iterable, Mapping

from bus.broker import NotFound
from bus.parts import Background, Periodic, set_beside
from bus.process import Part
from bus.topology import application_queue
from bus.workers.link import Link

# A queue that was not there is looked for again after so many looks: RabbitMQ logs each time. An application that was registered
# without the rights on the broker has none.
LOOKS_WITHOUT = 11


class ApplicationQueues(Periodic):
    """Runs a worker loop for each queue of each known application. It looks at an interval, since operators add and remove
    applications.
    """

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        link: Link,
        readers: Mapping[str, Callable[[str], Part]],
        poll_s: float,
        chance: random.Random | None = None,
    ) -> None:
        """`names` are the known applications. `readers` makes the worker loop of an application's queue, by the queue for
        all beside which it stands.
        """
        super().__init__("look for queues of applications", self.look, poll_s, chance=chance)
        self._names = names
        self._link = link
        self._readers = readers
        # By queue.
        self._running: dict[str, Part] = {}
        # The looks until a missing queue is looked for again.
        self._missing: dict[str, int] = {}
        self._background = Background(self._running.pop)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The worker loops, whose status health and metrics show."""
        return tuple(self._running.values())

    async def run(self) -> None:
        async with self._background:
            await super().run()
            for reader in self.parts:
                await reader.stop()

    async def look(self) -> None:
        """Start to read the queues of new applications, and stop for those that were removed."""
        known = {
            application_queue(beside, name): (name, reader)
            for name in sorted(self._names())
            for beside, reader in self._readers.items()
        }
        for queue in sorted(self._running.keys() - known.keys()):
            await self._running[queue].stop()
        for queue, (name, reader) in known.items():
            if queue not in self._running and await self._is_there(queue):
                running = self._running[queue] = reader(queue)
                # It is one application's, perhaps removed: the scheduler serves all others.
                set_beside((running,), f"application {name}")
                self._background.start(running.run(), queue)

    async def _is_there(self, queue: str) -> bool:
        if looks := self._missing.pop(queue, 0):
            self._missing[queue] = looks - 1
            return False
        async with self._link.opened() as connection:
            try:
                await connection.depth(queue)
            except NotFound:
                self._missing[queue] = LOOKS_WITHOUT
                return False
        return True
