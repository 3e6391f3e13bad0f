"""Several parts together, and the statuses inside them."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from bus.parts.status import Status
from bus.process import Part


class PartGroup:
    """Several parts of a worker that run and stop as one. A bug in one of them ends all."""

    def __init__(self, *parts: Part, statuses: Sequence[Status] = ()) -> None:
        """`statuses` are those of work in the group that is no part by itself, such as asking placement.

        Health and metrics show them with the group.
        """
        self.parts: Sequence[Part | Status] = (*parts, *statuses)
        self._run_parts = parts

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for part in self._run_parts:
                tasks.create_task(part.run())

    async def stop(self) -> None:
        for part in self._run_parts:
            await part.stop()


def every_part(parts: Iterable[object]) -> Iterator[object]:
    """Yield these parts of a worker and the parts inside them (their attribute `parts`), each of them once."""
    seen: dict[int, object] = {}

    def walk(some: Iterable[object]) -> Iterator[object]:
        for part in some:
            if id(part) not in seen:
                seen[id(part)] = part
                yield part
                yield from walk(getattr(part, "parts", ()))

    return walk(parts)


def statuses(parts: Iterable[object]) -> list[Status]:
    # `isinstance` with a protocol would cost more than everything else here, and health asks several times a second.
    found = [
        part if isinstance(part, Status) else getattr(part, "status", None) for part in every_part(parts)
    ]
    return [each for each in found if isinstance(each, Status)]


def set_beside(parts: Iterable[object], what: str) -> None:
    """Mark these parts as ones whose failure does not make the worker unready, such as those for one of many cells.

    `what` is added to their names, since other parts may have the same ones.
    """
    for status in statuses(parts):
        status.is_beside = True
        status.name = f"{status.name} ({what})"
