"""Whose decisions are explained."""

from bus.messages.planning import AskExplanation, ExplanationsFound
from tests.contracts.scheduler_rows import a_placed, a_request, accept, instance
from tests.unit.scheduler.lone_scheduler import LoneScheduler


async def test_instances_of_another_project_are_not_explained() -> None:
    lone = LoneScheduler()
    await accept(lone.store, a_placed(a_request(1, project="shop")))

    told = [
        await lone.ask(AskExplanation(instance=instance(1), project=project))
        for project in ("shop", "bank", "")
    ]

    assert [len(each.explanations) for each in told if isinstance(each, ExplanationsFound)] == [1, 0, 1]
