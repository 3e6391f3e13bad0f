"""Past decisions explained from the rows, and plans to drain a host."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import (
    BuildInstance,
    Rebuild,
)
from bus.messages.planning import (
    AskDrain,
    AskExplanation,
    DrainFound,
    ExplanationsFound,
)
from bus.workers.handling import Answer, ReadOnly
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.inventories import ConsumerId
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.rows import (
    DELETED,
    ERROR,
    InstanceRow,
    accepted,
)
from scheduler_worker.questions import Explainer
from scheduler_worker.store import NewRequest
from tests.plugins import standard_plugins
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_picture, a_spec, a_state, asks_no_quota, vcpus
from tests.unit.scheduler.lone_scheduler import an_ask

M = TypeVar("M", bound=Message)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
PLUGINS = standard_plugins(io_ops_max=0)
BUILD = BuildInstance(
    request_id=RequestId(UUID(int=1000)), flavor=Flavor(vcpus=1), name="web", project="shop"
)


def a_row(number: int, spec: InstanceSpec | None = None, **told: object) -> InstanceRow:
    request = structs.replace(BUILD, request_id=RequestId(UUID(int=1000 + number)))
    kept = b"" if spec is None else encoded(spec)
    (row,) = accepted(request, [InstanceId(ConsumerId(UUID(int=number)))], NOON, LATER, kept)
    where = {"cell": "c1"} if told.get("host") else {}
    return structs.replace(row, told=structs.replace(row.told, **where | told))


async def a_store(rows: Sequence[InstanceRow]) -> MemorySchedulerStore:
    store = MemorySchedulerStore()
    async with store.transaction() as transaction:
        await transaction.accept([NewRequest(row.told.request_id, b"", (row,)) for row in rows])
    return store


async def asked(question: Message, kind: type[M], picture: Picture, *rows: InstanceRow) -> M:
    explainer = Explainer(await a_store(rows), picture, PLUGINS, asks_no_quota)
    handler = explainer.question_handlers()[type(question)]
    assert isinstance(handler, ReadOnly)
    (answer,) = await handler.handle([an_ask(question)])
    assert isinstance(answer, Answer)
    assert isinstance(answer.message, kind), answer.message
    return answer.message


def three() -> Picture:
    return a_picture(
        a_state("full", vcpus(1, used=1)),
        *(a_state(f"h{free}", vcpus(9, used=9 - free)) for free in (3, 2, 1)),
    )


@pytest.mark.asyncio
async def test_instances_of_another_project_are_not_explained() -> None:
    row = a_row(1)

    mine = await asked(structs.replace(about(1), project="shop"), ExplanationsFound, three(), row)
    others = await asked(structs.replace(about(1), project="bank"), ExplanationsFound, three(), row)

    assert (len(mine.explanations), others.explanations) == (1, ())


# Draining


@pytest.mark.asyncio
async def test_the_instances_of_a_host_are_placed_elsewhere_all_together() -> None:
    # One fits on h3 and one on h2; the drained host itself has room, too, and does not count.
    picture = a_picture(
        *(a_state(f"h{free}", vcpus(9, used=9 - free)) for free in (3, 2, 1)), a_state("old", vcpus(90))
    )
    rows = [a_row(number, a_spec(2), state="active", host="old") for number in range(1, 5)]

    found = await asked(AskDrain(host="old"), DrainFound, picture, *rows)

    assert sorted(each.to for each in found.instances[:2]) == ["h2", "h3"]
    assert [each.to for each in found.instances[2:]] == ["", ""]
    assert (found.fit, found.more) == (2, False)
    assert found.instances[2].reason == (
        "no host among 4: 1 removed by asked hosts (old: is to be ignored), "
        "3 removed by capacity (h3: VCPU asked 2, free 1 of 9)"
    )


@pytest.mark.asyncio
async def test_only_instances_that_live_on_the_host_are_drained() -> None:
    image = Image(source="http://images/debian")
    failed = Rebuild(
        request_id=BUILD.request_id or RequestId(UUID(int=0)), number=1, image=image, ends_by=LATER
    )
    rows = [
        a_row(1, a_spec(), state="active", host="full"),
        a_row(2, a_spec(), state="active", host="h1"),
        a_row(3, a_spec(), state=DELETED, host="full"),
        a_row(4, a_spec(), state=ERROR, host="full"),
        a_row(5, a_spec(), state=ERROR, host="full", rebuild=failed),
        a_row(6, a_spec(), state="placed", host="full"),
    ]

    found = await asked(AskDrain(host="full"), DrainFound, three(), *rows)

    assert [each.id.int for each in found.instances] == [1, 5, 6]


def about(number: int) -> AskExplanation:
    return AskExplanation(instance=InstanceId(ConsumerId(UUID(int=number))))
