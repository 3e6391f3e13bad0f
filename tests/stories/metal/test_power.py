"""A bare-metal node that loses its power: its project is told, a person is asked once, and nothing is built anew or taken off."""

from collections.abc import Sequence

from msgspec import structs

from bus.messages.build import BuildRejected
from bus.messages.cell import NodePower
from bus.messages.questions import AnswerQuestion, AskQuestions, Question, QuestionsFound
from bus.topology import EVENTS
from laboratory.ironic import available_nodes
from laboratory.ironic.node import Said
from laboratory.ironic.work import POWER_OFF, POWER_ON, Step, power_synced
from tests.contracts.stores import open_keeper_store
from tests.stories.layouts import STAGES
from tests.stories.metal.test_deploys import DeploySetup, offered
from tests.waiting import until

FOUND_OFF = "its node has lost its power: Ironic found it switched off"
LOST = "its node has lost its power, or Ironic the control of it"


def say_power(metal: DeploySetup, said: Said | None) -> None:
    """As the power sync of Ironic's conductor announces it."""
    assert said is not None
    now_s, request = metal.simulation.ironic.begin()
    node = next(each for each in metal.nodes if each.uuid == said.node.uuid)
    metal.simulation.ironic.go(node, Step(said.node, said), now_s, request)


def corrected(metal: DeploySetup, power: str) -> None:
    """Somebody has switched the only node with an instance on or off by hand."""
    (node,) = [each for each in metal.nodes if each.instance_uuid]
    changed = structs.replace(node, power_state=power, bmc_power=power)
    say_power(metal, Said(changed, "power_state_corrected", "success", {"from_power": node.power_state}))


async def questions(metal: DeploySetup, *, ended: bool = False) -> Sequence[Question]:
    return (await metal.cloud.ask(AskQuestions(ended=ended), QuestionsFound)).questions


async def asked(metal: DeploySetup) -> Question:
    """The one open question, when there is one."""
    (one,) = await until(lambda: questions(metal), "a person is asked")
    return one


@STAGES
async def test_a_node_without_power_is_told_and_asked_about_once_and_its_instance_stays(
    bus: str, books: str
) -> None:
    nodes = available_nodes(2)
    async with (
        offered(bus, books, *nodes) as (metal, _),
        open_keeper_store(books) as rows,
        metal.cloud.keeper(rows),
        metal.cloud.listening("node.power.*", exchange=EVENTS) as heard,
    ):
        guest = await metal.boot(1)
        booted = await metal.cloud.until_state(guest, "active")
        (node,) = metal.with_instance(guest)

        # Its controller is silent, as if the rack had lost its power.
        say_power(metal, power_synced(node, metal.clock(), is_silent=True))
        told = await until(
            lambda: metal.cloud.instance(guest),
            "its project is told",
            lambda told: told.reason.startswith(LOST),
        )
        assert (told.state, told.host, told.changed_at) == ("active", booted.host, booted.changed_at)
        first = await asked(metal)
        assert (first.campaign, first.cell, first.host) == (None, "c1", node.name)
        assert f"instance metal-1 of project {told.project}: {LOST}" in first.text
        assert [each.answer for each in first.choices] == ["leave"]

        # It is back: nobody needs to answer, and an answer that comes nevertheless is refused.
        (silent,) = metal.with_instance(guest)
        say_power(metal, power_synced(silent, metal.clock(), is_silent=False))
        await metal.until_says(guest, "")
        await until(lambda: questions(metal), "nobody is asked any more", lambda found: not found)
        late = await metal.cloud.ask(AnswerQuestion(question=first.id, answer="leave"), BuildRejected)
        assert "void: the node has its power again" in late.reason

        # Another loss is another question. Its answer changes nothing, and ends it.
        corrected(metal, POWER_OFF)
        await metal.until_says(guest, FOUND_OFF)
        second = await asked(metal)
        assert (second.id != first.id, FOUND_OFF in second.text) == (True, True)
        wrong = await metal.cloud.ask(AnswerQuestion(question=second.id, answer="evacuate"), BuildRejected)
        assert (wrong.field, wrong.reason) == ("answer", "answer leave")
        for _ in range(2):
            left = await metal.cloud.ask(AnswerQuestion(question=second.id, answer="leave"), QuestionsFound)
            assert [each.life for each in left.questions] == ["answered"]
        corrected(metal, POWER_ON)
        await metal.until_says(guest, "")
        lives = {each.id: each.life for each in await questions(metal, ended=True)}
        assert lives == {first.id: "void", second.id: "answered"}

        # One that a person switches off by Ironic's API is no loss.
        metal.simulation.ironic.set_power(node.uuid, POWER_OFF)
        await until(
            lambda: metal.with_instance(guest)[0].power_state, "it is off", lambda is_: is_ == POWER_OFF
        )

        # Nor does anybody ask about a node whose instance is gone.
        corrected(metal, POWER_OFF)
        third = await asked(metal)
        await metal.gone(guest, node)
        await until(lambda: questions(metal), "nobody is asked any more", lambda found: not found)

    losses = [each.number for each in heard if isinstance(each, NodePower) and each.words]
    ends = [each.number for each in heard if isinstance(each, NodePower) and not each.words]
    assert losses == ends == sorted({*losses})
    assert len({first.id, second.id, third.id}) == len(losses)
    assert metal.simulation.ironic.nodes[nodes[1].uuid].instance_uuid is None
