"""A console is read in parts, each from where the last one ended, and to the end of the instance."""

from collections.abc import Sequence

import pytest

from bus.message import Message
from bus.messages.build import InstancesFound
from bus.messages.cell import AskConsole, ConsoleFound
from moor.client import instances
from moor.client.instances import last_of_console, parts_of_console
from tests.unit.examples.values import CONSUMER

QUESTION = AskConsole(instance=CONSUMER, start=-4, limit=4)


class Answers:
    """Answers questions about a console one by one, and afterwards says that there is no such instance."""

    def __init__(self, *found: ConsoleFound) -> None:
        self._found = [*found]
        self.starts: list[int] = []

    async def ask(self, question: Message) -> Message:
        if not isinstance(question, AskConsole):
            return InstancesFound(instances=())
        self.starts.append(question.start)
        return self._found.pop(0) if self._found else ConsoleFound(none="no host has it")


async def texts(found: Sequence[ConsoleFound], *, follow: bool) -> tuple[list[str], list[int]]:
    answers = Answers(*found)
    parts = (parts_of_console if follow else last_of_console)(answers, QUESTION)
    return [each.text or each.none async for each in parts], answers.starts


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "LOOK_S", 0.0)


def part(text: str, start: int, size: int, attempt: int = 1) -> ConsoleFound:
    return ConsoleFound(text=text, start=start, next=start + len(text), size=size, attempt=attempt)


@pytest.mark.asyncio
async def test_each_part_begins_where_the_last_one_ended_until_the_instance_is_gone() -> None:
    found = (part("abcd", 6, 10), part("", 10, 10), part("ef", 10, 12))

    assert await texts(found, follow=True) == (["abcd", "", "ef", "no host has it"], [-4, 10, 10, 12])


@pytest.mark.asyncio
async def test_the_console_on_another_host_is_read_from_its_beginning() -> None:
    found = (part("abcd", 6, 10), part("zz", 10, 90, attempt=2), part("new", 0, 3, attempt=2))

    assert await texts(found, follow=True) == (["abcd", "new", "no host has it"], [-4, 10, 0, 3])


@pytest.mark.asyncio
async def test_a_part_that_did_not_fit_into_a_message_is_followed_by_the_rest_and_no_more() -> None:
    found = (part("ab", 6, 10), part("cd", 8, 30), part("later", 10, 30))

    assert await texts(found, follow=False) == (["ab", "cd"], [-4, 8])
    assert await texts((), follow=False) == (["no host has it"], [-4])
