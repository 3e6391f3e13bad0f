"""After a move, an explanation is about the choice for that move; a plan to drain a host stays in its cell."""

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import FlavorChange, InstancesFound
from bus.messages.planning import AskDrain, AskExplanation, DrainFound, Explanation, ExplanationsFound
from bus.workers.handling import Answer, ReadOnly
from scheduler_worker.core.instances.rows import HostDecision
from scheduler_worker.questions import Explainer
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_state, asks_no_quota
from tests.unit.scheduler.test_moves_at_api_level import NOON, ONE
from tests.unit.scheduler.test_resizes import CLASSES, ROOM, TRAITS, Cloud
from tests.unit.scheduler.test_scheduler_handlers import an_ask

pytestmark = pytest.mark.asyncio


async def asked(here: Cloud, question: AskExplanation | AskDrain) -> Message:
    explainer = Explainer(here.worker.store, here.worker.picture, standard_plugins(), asks_no_quota)
    handler = explainer.question_handlers()[type(question)]
    assert isinstance(handler, ReadOnly)
    (said,) = await handler.handle([an_ask(question)])
    assert isinstance(said, Answer)
    return said.message


async def explained(here: Cloud) -> Explanation:
    found = await asked(here, AskExplanation(instance=ONE))
    assert isinstance(found, ExplanationsFound)
    return found.explanations[0]


async def drained(here: Cloud) -> DrainFound:
    found = await asked(here, AskDrain(host="h1"))
    assert isinstance(found, DrainFound)
    return found


async def test_an_explanation_is_about_the_last_choice_and_has_the_first_one_too() -> None:
    here = await Cloud.with_instance()
    boot = HostDecision(NOON, 5, 3, "h1", ("h2",))
    async with here.worker.store.transaction() as transaction:
        (row,) = (await transaction.lock([ONE])).values()
        await transaction.save([structs.replace(row, decision=boot)])
    first = await explained(here)
    assert (first.what, first.chosen, first.qualified, first.boot) == ("boot", "h1", 3, None)

    assert isinstance(await here.resize(FlavorChange(vcpus=4)), InstancesFound)
    last = await explained(here)
    assert last.state.move is not None
    assert (last.what, last.request_id) == ("resize", last.state.move.request_id)
    assert (last.chosen, last.hosts, last.qualified, last.chosen_at) == ("h2", 2, 1, NOON)
    assert last.boot is not None
    assert (last.boot.what, last.boot.chosen, last.boot.request_id) == ("boot", "h1", None)


async def test_a_plan_to_drain_names_hosts_of_the_own_cell_only_or_says_that_there_are_none() -> None:
    here = await Cloud.with_instance(hosts=("h1",))
    (there,) = (await drained(here)).instances
    assert (there.to, there.cell, there.reason) == ("h2", "c1", "")

    elsewhere = a_state("h2", dict.fromkeys(CLASSES, ROOM), traits=TRAITS, cell="c2", revision=2)
    here.worker.picture.apply([elsewhere])
    here.worker.picture.put_hosts([a_host("h2", cell="c2", sequence=2)])
    (stays,) = (await drained(here)).instances
    assert stays.to == ""
    assert stays.reason == "cell c1 has no other host, and an instance moves only within its cell"
