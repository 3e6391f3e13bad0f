"""All orders of the dashboard, by the name in their address; and those about instances and dead letters."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from bus.messages.build import AskInstances, DeleteInstance, InstancesFound
from engine.flavors import InstanceId
from moor.asking import answer_of
from moor.client.errors import NotFound
from moor.dashboard.host_orders import Drain, Evacuate, SetMode
from moor.dashboard.jobs import DashboardJob
from moor.dashboard.letters import LETTERS_MAX
from moor.dashboard.ordering import Clouds, DashboardOrder, Given, OrderQuestion
from moor.dashboard.rendering import PageRefused, Reader


class Delete:
    for_members = True

    async def question(self, clouds: Clouds, given: Given, reader: Reader) -> OrderQuestion:
        id_ = _instance_id(given.get("instance", ""))
        question = AskInstances(instances=(id_,), project=reader.project)
        found = await answer_of(clouds.asking, question, InstancesFound)
        if not found.instances:
            raise PageRefused(f"There is no instance {id_}.")
        (state,) = found.instances
        if state.state in ("deleting", "deleted"):
            raise PageRefused(f"Instance {id_} is {state.state} already.")
        name = state.name or str(id_)
        where = f" on {state.host} in {state.cell}" if state.host else ""
        return OrderQuestion(
            title=f"Delete {name}",
            button="Delete it",
            sentences=(
                f"The instance {id_}"
                + (f" of project {state.project}" if state.project else "")
                + f" is {state.state}{where}.",
                "It ends, and what is on its disks is lost. A deleted instance stays deleted.",
            ),
            instances=1,
            about=f"instance {id_}",
            given={"instance": str(id_)},
            back=f"/instances/{id_}",
            is_harmful=True,
        )

    async def carry_out(self, clouds: Clouds, given: Given, job: DashboardJob) -> None:
        id_ = _instance_id(given["instance"])
        order = DeleteInstance(instance=id_, project=job.project, for_user=job.by)
        async with clouds.ordering() as asking:
            answer = await answer_of(asking, order, InstancesFound)
        if not answer.instances:
            raise NotFound("instance", id_)
        job.say(f"The instance is {answer.instances[0].state}.")


def _instance_id(text: str) -> InstanceId:
    try:
        return InstanceId(UUID(text))
    except ValueError:
        raise PageRefused(f"instance is {text!r}: it is no id of an instance.") from None


class Replay:
    for_members = False

    async def question(self, clouds: Clouds, given: Given, reader: Reader) -> OrderQuestion:
        del reader
        broker, handle = given.get("broker", ""), given.get("letter", "")
        letter = await clouds.letters.letter(broker, handle)
        if letter is None:
            raise PageRefused(_no_letter(broker, handle))
        return OrderQuestion(
            title=f"Replay the dead letter {handle}",
            button="Replay it",
            sentences=(
                f"The message ({letter.type}) goes back into the queue {letter.queue}, with no attempts counted.",
                f"It is a dead letter since: {letter.reason}",
            ),
            instances=0,
            about=f"dead letter {broker} {handle}",
            given={"broker": broker, "letter": handle},
            back="/dead",
        )

    async def carry_out(self, clouds: Clouds, given: Given, job: DashboardJob) -> None:
        broker, handle = given["broker"], given["letter"]
        async with clouds.letters.opened(broker) as (connection, opened):
            tag = next((tag for tag, each in opened.letters.items() if each.handle == handle), None)
            if tag is None:
                raise PageRefused(_no_letter(broker, handle))
            queue = opened.letters[tag].queue
            await opened.replay(connection, (tag,))
        job.say(f"The dead letter {handle} is back in the queue {queue}.")


def _no_letter(broker: str, handle: str) -> str:
    return f"There is no dead letter {handle!r} of {broker!r} among the oldest {LETTERS_MAX}: it may have been replayed or dropped."


ORDERS: Final[Mapping[str, DashboardOrder]] = {
    "set-host": SetMode(),
    "drain": Drain(),
    "evacuate": Evacuate(),
    "delete": Delete(),
    "replay": Replay(),
}
