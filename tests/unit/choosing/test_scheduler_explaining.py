"""Whose decisions are explained."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance
from bus.messages.planning import AskExplanation, ExplanationsFound
from bus.workers.handling import Answer, ReadOnly
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import ConsumerId, standard_vocabulary
from scheduler_worker.core.instances.rows import accepted
from scheduler_worker.questions import Planner
from scheduler_worker.requests.reading import RequestReader
from scheduler_worker.store_sql import NewRequest
from tests.plugins import standard_plugins
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_picture, asks_no_quota
from tests.unit.scheduler.lone_scheduler import an_ask


@pytest.mark.asyncio
async def test_instances_of_another_project_are_not_explained() -> None:
    now, id_ = datetime(2026, 1, 1, 12, tzinfo=UTC), InstanceId(ConsumerId(UUID(int=1)))
    request = RequestId(UUID(int=1000))
    rows = accepted(
        BuildInstance(request_id=request, flavor=Flavor(vcpus=1), project="shop"),
        [id_],
        now,
        now + timedelta(hours=1),
        b"",
    )
    store = MemorySchedulerStore()
    async with store.transaction() as transaction:
        await transaction.accept([NewRequest(request, b"", rows)])
    plugins = standard_plugins()
    reader = RequestReader(standard_vocabulary(), timedelta(hours=1), plugins)
    planner = Planner(a_picture(), plugins, reader, store, asks_no_quota)
    handler = planner.question_handlers()[AskExplanation]
    assert isinstance(handler, ReadOnly)
    about = AskExplanation(instance=id_)

    answers = await handler.handle(
        [an_ask(structs.replace(about, project=project)) for project in ("shop", "bank", "")]
    )

    told = [each.message for each in answers if isinstance(each, Answer)]
    assert [len(each.explanations) for each in told if isinstance(each, ExplanationsFound)] == [1, 0, 1]
