"""The hosts that the scheduler chooses for a move, and those that it does not, with the reasons."""

import asyncio
from collections.abc import Hashable, Sequence
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from bus.messages.build import BuildInstance, BuildRejected, InstanceActive, InstancesFound, MoveKind
from bus.messages.moves import MoveInstance, MoveWait
from bus.workers.handling import Answer
from bus.workers.publisher import Outgoing
from engine.flavors import InstanceId
from engine.hosts import NODE
from engine.inventories import ConsumerId
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.requests.waking import WaitingMoves
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import InstanceQuery, NewRequest, WaitingInstance
from tests.unit.choosing.scheduler_worlds import a_host, a_spec, a_state
from tests.unit.scheduler.test_moves_at_api_level import NOON, a_row, an_order
from tests.unit.scheduler.test_moves_that_wait import refused_in_cell
from tests.unit.scheduler.test_scheduler_handlers import Worker

pytestmark = pytest.mark.asyncio


async def ordered(
    kind: MoveKind, *hosts: str, state: str = "active", on: str = "h1", is_up: bool = True
) -> InstancesFound | BuildRejected:
    """The answer to an order to move an instance of cell c1. Host h3 is in another cell, and n1 is a node."""
    worker = Worker()
    names = {"h1": "c1", "h2": "c1", "h3": "c2", "n1": "c1"}
    worker.picture.apply([a_state(name, cell=cell) for name, cell in names.items()])
    known = [a_host(name, cell=cell, kind=NODE if name == "n1" else "") for name, cell in names.items()]
    worker.picture.put_hosts(
        [structs.replace(each, up=False) if each.name == on and not is_up else each for each in known]
    )
    row = structs.replace(
        a_row(state, host=on), spec=encoded(a_spec(1), BuildInstance(request_id=a_row().told.request_id))
    )
    async with worker.store.transaction() as transaction:
        await transaction.accept([NewRequest(row.told.request_id, b"digest", (row,))])
    said = await worker.handle(an_order(kind, hosts=hosts))
    (answer,) = [each.message for each in said if isinstance(each, Answer)]
    assert isinstance(answer, InstancesFound | BuildRejected)
    return answer


@pytest.mark.parametrize(
    ("kind", "state", "is_up"),
    [("migrate", "active", True), ("evacuate", "active", False), ("unshelve", "offloaded", True)],
)
async def test_an_instance_stays_in_its_cell(kind: MoveKind, state: str, *, is_up: bool) -> None:
    on = "" if state == "offloaded" else "h1"
    assert isinstance(await ordered(kind, "h2", state=state, on=on, is_up=is_up), InstancesFound)
    refused = await ordered(kind, "h3", state=state, on=on, is_up=is_up)
    assert isinstance(refused, BuildRejected)
    assert refused.reason == "no valid host: h3 is in cell c2, and the instance stays in cell c1"


async def test_a_host_that_nobody_knows_is_named_in_the_refusal() -> None:
    refused = await ordered("migrate", "h9", "h3")
    assert isinstance(refused, BuildRejected)
    assert refused.reason == (
        "no valid host: no host h9 is known; h3 is in cell c2, and the instance stays in cell c1"
    )
    assert isinstance(await ordered("migrate", "h9", "h2"), InstancesFound)


async def test_a_migration_to_the_host_where_it_is_is_refused_with_the_reason() -> None:
    refused = await ordered("migrate", "h1")
    assert isinstance(refused, BuildRejected)
    assert refused.reason == "no valid host: it is on host h1 already"


@pytest.mark.parametrize("kind", ["migrate", "shelve", "offload", "evacuate"])
async def test_an_instance_on_a_node_does_not_move(kind: MoveKind) -> None:
    refused = await ordered(kind, on="n1")
    assert isinstance(refused, BuildRejected)
    assert refused.reason == "it is on bare-metal node n1: its disk is there, so it cannot move or be shelved"


@pytest.mark.parametrize("kind", ["stop", "start", "reboot"])
async def test_the_power_of_a_node_is_that_of_ironic(kind: MoveKind) -> None:
    refused = await ordered(kind, on="n1")
    assert isinstance(refused, BuildRejected)
    assert refused.reason == (
        "it is on bare-metal node n1, whose power Ironic switches: `moor node power on|off|reboot n1`"
    )


@pytest.mark.parametrize(
    ("kind", "is_up", "why"),
    [
        ("evacuate", True, "its host h1 is up: migrate it, or say first that the host is down"),
        ("migrate", False, "its host h1 is down: evacuate it"),
        ("shelve", False, "its host h1 is down: evacuate it"),
        ("stop", False, "its host h1 is down: evacuate it"),
    ],
)
async def test_what_is_ordered_suits_its_host(kind: MoveKind, why: str, *, is_up: bool) -> None:
    refused = await ordered(kind, is_up=is_up)
    assert isinstance(refused, BuildRejected)
    assert refused.reason == why


async def test_an_order_to_resize_that_is_wrong_in_itself_is_refused_without_a_question_to_placement() -> (
    None
):
    """The placement of this worker answers none."""
    refused = await ordered("resize", "h1")
    assert isinstance(refused, BuildRejected)
    assert (refused.field, refused.reason) == (
        "flavor",
        "there is none: it says what size the instance gets",
    )


class Sent:
    """A publisher whose broker confirms at once."""

    def __init__(self) -> None:
        self.outgoing: list[Outgoing] = []
        self.kept: list[Hashable] = []

    def send_all(self, outgoing: Sequence[Outgoing], kept: Sequence[Hashable] = ()) -> asyncio.Future[None]:
        self.outgoing += outgoing
        self.kept += kept
        sent = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent


async def test_a_move_that_waits_again_is_tried_only_when_all_that_move_with_it_wait() -> None:
    worker = Worker()
    worker.picture.apply([a_state(name) for name in ("h1", "h2")])
    worker.picture.put_hosts([a_host(name) for name in ("h1", "h2")])
    one = a_row()
    spec = encoded(a_spec(1), BuildInstance(request_id=one.told.request_id))
    other = structs.replace(one, told=structs.replace(one.told, id=InstanceId(ConsumerId(UUID(int=2)))))
    rows = tuple(structs.replace(each, spec=spec) for each in (one, other))
    async with worker.store.transaction() as transaction:
        await transaction.accept([NewRequest(one.told.request_id, b"digest", rows)])
    order = an_order("migrate", together=(other.id,), wait=MoveWait(for_s=600))
    await worker.handle(order)
    waiting = WaitingMoves(
        worker.move_needs,
        worker.move_hosts,
        worker.store,
        worker.outbox,
        Sent(),  # type: ignore[arg-type]
        unclaimed=worker.unclaimed,
        specs=worker.waiting,
        settings=SchedulerSettings(),
        clock=lambda: NOON,
    )

    async def now(each: InstanceRow) -> InstanceRow:
        (row,) = await worker.store.instances(InstanceQuery(instances=(each.id,)))
        return row

    async def loses_its_room(each: InstanceRow) -> None:
        row = await now(each)
        assert row.told.state == "moving", row
        await worker.handle(InstanceActive(cell="c1", instance=refused_in_cell(row)))

    async def tried() -> list[str]:
        kept = (await now(one)).kept_move
        assert kept is not None
        kept_order = msgspec.msgpack.decode(kept.order, type=MoveInstance)
        await waiting.try_again([(WaitingInstance(one.id, kept.digest, kept.order), kept_order)])
        return [(await now(each)).told.state for each in (one, other)]

    await loses_its_room(one)
    assert await tried() == ["active", "moving"]
    assert (await now(one)).move_waits
    await loses_its_room(other)
    assert await tried() == ["moving", "moving"]
