"""Questions of tests to a whole cloud, as messages."""

from collections.abc import Sequence
from typing import Any

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import AskInstances, InstancesFound, InstanceState
from engine.flavors import InstanceId
from moor.client import Client
from moor.client.bus_client import Asks, BusClient, answer_of
from tests.waiting import until


class OnlyAsked(BusClient):
    """A client of the bus that has no connection: `asking` answers its questions."""

    trouble = ""

    def __init__(self, asking: Asks) -> None:
        self._asking = asking

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        return [await self._asking.ask(each) for each in self.sendable(questions)]


def client_of(asking: Any) -> Client:
    """A client whose bus this is: all of it, or what answers its questions."""
    moor = Client(MemoryBroker().as_user(), project="")
    moor._opened = asking if hasattr(asking, "listen") else OnlyAsked(asking)  # noqa: SLF001 - in place of a connection
    return moor


async def state_of(asking: Asks, instance: InstanceId, project: str = "") -> InstanceState | None:
    """The state of this instance of the project, or of any, if it is known."""
    question = AskInstances(instances=(instance,), project=project)
    found = await answer_of(asking, question, InstancesFound)
    return found.instances[0] if found.instances else None


async def until_state(asking: Asks, instance: InstanceId, *states: str, project: str = "") -> InstanceState:
    return await until(
        lambda: state_of(asking, instance, project),
        f"{instance} in {states}",
        lambda told: told.state in states,
    )
