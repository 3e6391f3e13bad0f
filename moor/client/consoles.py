"""Reads what guests have written to their serial consoles."""

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID

from msgspec import structs

from bus.messages.build import AskInstances, InstanceId, InstancesFound
from bus.messages.consoles import CONSOLE_BYTES_MAX, AskConsole, ConsoleFound
from moor.client.errors import NoConsoleFound
from moor.client.questions import Asks, answer_of
from moor.client.session import ClientSession

LOOK_S = 1.0


class ConsoleCalls(ClientSession):
    """The client's methods about consoles."""

    async def console(self, instance: UUID, *, start: int = -4096, limit: int = 4096) -> ConsoleFound:
        """What the guest has written to its serial console: `text`, which begins at the byte `start`; if negative, so many bytes before the end.

        The next part begins at `next`, and all of it has `size` bytes now. Raises `NoConsoleFound`.
        """
        question = AskConsole(
            instance=InstanceId(instance),
            project=self.project,
            start=start,
            limit=min(limit, CONSOLE_BYTES_MAX),
        )
        found = await self._ask(question, ConsoleFound)
        if found.none:
            raise NoConsoleFound(found.none)
        return found

    async def follow_console(self, instance: UUID, *, start: int = -4096) -> AsyncGenerator[str, None]:
        """What the guest has written from the byte `start` on, and what it writes from now on, until the instance is deleted.

        While there is no console, as during a move, it waits for one.
        """
        question = AskConsole(
            instance=InstanceId(instance), project=self.project, start=start, limit=CONSOLE_BYTES_MAX
        )
        parts = parts_of_console(self._bus, question)
        while True:
            with self._raising(question):
                part = await anext(parts, None)
            if part is None:
                return
            if part.text:
                yield part.text


async def parts_of_console(asking: Asks, question: AskConsole) -> AsyncGenerator[ConsoleFound, None]:
    """The parts of a console, each from where the last one ended, as the guest writes them, until the instance is deleted.

    Parts may be empty. One with `none` says that there is no console now.
    """
    attempt = 0
    while True:
        found = await answer_of(asking, question, ConsoleFound)
        if not found.none and attempt not in (0, found.attempt):
            # It is another host's console, from its beginning.
            question, attempt = structs.replace(question, start=0), found.attempt
            continue
        yield found
        if found.none and await _is_over(asking, question):
            return
        if not found.none:
            question, attempt = structs.replace(question, start=found.next), found.attempt
        if found.none or found.next >= found.size:
            await asyncio.sleep(LOOK_S)


async def last_of_console(asking: Asks, question: AskConsole) -> AsyncGenerator[ConsoleFound, None]:
    """The same parts, up to what there is now. A part with `none` is the only one."""
    first: ConsoleFound | None = None
    async for part in parts_of_console(asking, question):
        yield part
        first = first or part
        if part.none or not part.text or part.attempt != first.attempt or part.next >= first.size:
            return


async def _is_over(asking: Asks, question: AskConsole) -> bool:
    asked = AskInstances(instances=(question.instance,), project=question.project, limit=1)
    found = (await answer_of(asking, asked, InstancesFound)).instances
    return not found or found[0].state == "deleted"
