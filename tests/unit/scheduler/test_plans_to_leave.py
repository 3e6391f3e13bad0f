"""Plans for instances of any hosts to leave them: where each would fit, why none does, and which cannot move now."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import AskInstances, BuildInstance, InstancesFound, InstanceState, MoveKind, Waiting
from bus.messages.planning import AskDrain, DrainedInstance, DrainFound
from engine.flavors import Flavor, InstanceId
from engine.hosts import HostState
from engine.inventories import ProviderId
from engine.requests import InstanceSpec
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.rows import InstanceRow, accepted
from scheduler_worker.store_sql import NewRequest
from tests.contracts.scheduler_rows import accept, instance, request_id
from tests.narrowing import must_be
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_state, vcpus
from tests.unit.scheduler.lone_scheduler import NOON, LoneScheduler
from tests.unit.scheduler.test_moves_at_api_level import taken

WEB, DB, GONE = instance(1), instance(2), instance(9)
HOSTS = tuple(a_host(name) for name in ("h1", "h2", "h3", "h4"))
H3, H4 = (each.id for each in HOSTS[2:])


async def a_scheduler(*rows: InstanceRow, hosts: Sequence[HostState] = HOSTS, room: int = 4) -> LoneScheduler:
    lone = LoneScheduler(plugins=standard_plugins(io_ops_max=0, instances_max=0))
    lone.picture.apply([a_state(each.name, vcpus(room), cell=each.cell) for each in hosts])
    lone.picture.put_hosts(hosts)
    requests = [NewRequest(row.told.request_id, b"same", (row,)) for row in rows]
    await accept(lone.store, *requests)
    return lone


def on(host: str, number: int = 1, state: str = "active", **told: object) -> InstanceRow:
    build = BuildInstance(request_id=request_id(number), name=f"web-{number}", flavor=Flavor(vcpus=4))
    spec = encoded(InstanceSpec((("VCPU", 4),), hosts=("h1",)), build)
    (row,) = accepted(build, [instance(number)], NOON, NOON + timedelta(minutes=10), spec)
    return structs.replace(
        row, told=structs.replace(row.told, **{"state": state, "cell": "c1", "host": host, **told})
    )


async def planned(lone: LoneScheduler, *ids: InstanceId, **asked: object) -> list[DrainedInstance]:
    found = must_be(DrainFound, await lone.ask(structs.replace(AskDrain(instances=ids), **asked)))
    assert found.fit == sum(bool(each.to) for each in found.instances)
    return [*found.instances]


@pytest.mark.parametrize(
    ("asked", "to"),
    [
        # One host has room for one of them: none goes to a host that one of them leaves.
        ({}, {"h3", "h4"}),
        ({"avoid": (H3,)}, {"h4", ""}),
        ({"avoid": (H3, H4, ProviderId(UUID(int=404)))}, {""}),
        ({"to": ("c1/H4",)}, {"h4", ""}),
        ({"to": ("h1", "h2")}, {""}),
        ({"to": ("h3", "h4"), "avoid": (H3,)}, {"h4", ""}),
    ],
)
async def test_instances_of_several_hosts_leave_at_once_for_the_hosts_that_may_take_them(
    asked: dict[str, tuple[object, ...]], to: set[str]
) -> None:
    lone = await a_scheduler(on("h1"), on("h2", 2))

    found = await planned(lone, WEB, DB, **asked)

    assert {each.to for each in found} == to
    assert all(bool(each.to) != bool(each.reason) and not each.reason.startswith("busy: ") for each in found)


MOVING = taken(on("h1")).told
WAITS = Waiting(until=NOON, since=NOON)


@pytest.mark.parametrize(
    ("told", "kind", "reason"),
    [
        (on("h1").told, "migrate", ""),
        (on("h1", state="stopped").told, "migrate", ""),
        (on("h1", state="error", keeps_share=True).told, "migrate", ""),
        (on("draining").told, "migrate", ""),
        (on("down").told, "evacuate", ""),
        (on("down", state="shelved").told, "evacuate", ""),
        (on("down", state="error", keeps_share=True).told, "evacuate", ""),
        (on("h1", state="shelved").told, "migrate", "it is shelved"),
        (on("h1", state="error").told, "migrate", "it is error"),
        (on("", state="offloaded").told, "migrate", "it is offloaded"),
        (on("", state="deleted").told, "migrate", "busy: it is deleted"),
        (on("down", state="building").told, "evacuate", "busy: it is building"),
        (MOVING, "migrate", "busy: it moves already"),
        (
            structs.replace(MOVING, state="active", waiting=WAITS),
            "migrate",
            "busy: it waits for room to migrate",
        ),
        (on("down").told, "migrate", "busy: its host down is down: evacuate it"),
        (on("h1").told, "evacuate", "busy: its host h1 is up"),
        (on("metal").told, "migrate", "it is on bare-metal node metal"),
        (on("alone", cell="c2").told, "migrate", "cell c2 has no other host"),
    ],
)
async def test_one_that_cannot_move_now_is_busy_whatever_room_there_is(
    told: InstanceState,
    kind: MoveKind,
    reason: str,
) -> None:
    others = (
        a_host("draining", mode="draining"),
        a_host("down", up=False),
        a_host("metal", kind="ironic"),
        a_host("alone", cell="c2"),
    )
    lone = await a_scheduler(structs.replace(on("h1"), told=told), hosts=(*HOSTS, *others))

    found, gone = await planned(lone, WEB, GONE, WEB, evacuate=kind == "evacuate")

    assert found.reason.startswith(reason)
    assert bool(found.to) is not bool(reason)
    assert gone == DrainedInstance(id=GONE, reason="busy: there is no such instance")


async def test_two_hundred_instances_are_planned_and_shown_at_once() -> None:
    rows = [on("h1" if number % 2 else "h2", number) for number in range(1, 201)]
    lone = await a_scheduler(*rows, room=400)
    ids = tuple(row.id for row in rows)

    found = await planned(lone, *ids)
    shown = must_be(InstancesFound, await lone.ask(AskInstances(instances=ids, limit=200)))

    assert Counter(each.to for each in found) == {"h3": 100, "h4": 100}
    assert [each.id for each in shown.instances] == [each.id for each in shown.details] == sorted(ids)
    assert shown.next is None
