"""The bare-metal demo: each of its checks can fail, and its picture fits the screen."""

import io
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import structs
from rich.console import Console

from bus.message import ProviderId
from bus.messages.build import AttemptFailed, InstanceActive, InstanceId, InstanceState, RequestId
from bus.messages.placement import InventoryState, LogPosition, ProvidersChanged, ProviderState
from ironic_sync.core.node import Node
from ironic_sync.core.rows import Deploy, NodeRow, Offer
from moor.demo.metal.checking import problems_of_the_kill
from moor.demo.metal.screen import kind_of, metal_screen
from moor.demo.metal.tally import MetalTally
from moor.demo.screen import WIDTH
from moor.load.node_auditing import Reported, problems_of

FREE, BUSY = (ProviderId(UUID(int=number)) for number in (1, 2))
METAL, WEB = (InstanceId(UUID(int=number)) for number in (101, 102))
CLASS = "CUSTOM_BAREMETAL"


def node_of(id_: ProviderId, instance: InstanceId | None = None, **fields: object) -> Node:
    state = "available" if instance is None else "active"
    plain = Node(
        id=id_, name=f"n{id_.int}", provision_state=state, resource_class="baremetal", instance_uuid=instance
    )
    return structs.replace(plain, **fields)


def instance_of(id_: InstanceId, name: str, host: str, **fields: object) -> InstanceState:
    plain = InstanceState(
        id=id_, request_id=RequestId(UUID(int=1)), sequence=3, state="active", name=name, host=host, cell="c1"
    )
    return structs.replace(plain, **fields)


def provider_of(id_: ProviderId, *, reserved: int, used: int, resource: str = CLASS) -> ProviderState:
    stock = InventoryState(total=1, reserved=reserved, used=used)
    return ProviderState(internal=id_.int, id=id_, name=str(id_), root=id_, inventories={resource: stock})


def row_of(id_: ProviderId, owner: str = "ironic-1", epoch: int = 2, read_epoch: int = 2) -> NodeRow:
    return NodeRow(
        id=id_, cell="c1", owner=owner, epoch=epoch, read_epoch=read_epoch, node=node_of(id_), offer=Offer()
    )


WELL = Reported(
    wanted=2,
    ended=2,
    instances={
        METAL: instance_of(METAL, "metal-001", str(BUSY)),
        WEB: instance_of(WEB, "web-001", "c1-host-1"),
    },
    ironic={FREE: node_of(FREE), BUSY: node_of(BUSY, METAL)},
    rows={FREE: row_of(FREE), BUSY: row_of(BUSY)},
    providers={
        FREE: provider_of(FREE, reserved=0, used=0),
        BUSY: provider_of(BUSY, reserved=1, used=1),
    },
    alive=("ironic-1",),
)


def test_a_correct_state_has_no_problems() -> None:
    assert [*problems_of(WELL)] == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"ended": 1}, "2 requests were made, and 1 ended"),
        ({"dead_letters": 3}, "3 parcels are among the dead letters"),
        ({"books": ["host-1: usage is 3, claims are 2"]}, "host-1: usage is 3, claims are 2"),
        (
            {"instances": {**WELL.instances, WEB: instance_of(WEB, "web-001", str(FREE))}},
            f"instance web-001 is on {FREE}, which is a bare-metal node",
        ),
        (
            {"instances": {**WELL.instances, WEB: instance_of(WEB, "metal-002", "c1-host-1")}},
            "instance metal-002 is on c1-host-1, which is a hypervisor",
        ),
        (
            {"ironic": {**WELL.ironic, BUSY: node_of(BUSY, WEB)}},
            f"instance metal-001 is active on node n2, but Ironic has instance {WEB} there",
        ),
        (
            {"ironic": {**WELL.ironic, BUSY: node_of(BUSY, METAL, provision_state="deploying")}},
            "in state 'deploying'",
        ),
        (
            {"instances": {WEB: WELL.instances[WEB]}},
            f"node n2 has instance {METAL}, which is deleted or unknown",
        ),
        (
            {"instances": {**WELL.instances, METAL: instance_of(METAL, "m", str(BUSY), state="error")}},
            f"node n2 has instance {METAL}, which is error",
        ),
        ({"providers": {BUSY: WELL.providers[BUSY]}}, "node n1 has no inventory in placement"),
        (
            {
                "providers": {
                    **WELL.providers,
                    FREE: provider_of(FREE, reserved=0, used=0, resource="CUSTOM_OTHER"),
                }
            },
            "node n1 has no inventory in placement",
        ),
        (
            {"providers": {**WELL.providers, FREE: provider_of(FREE, reserved=1, used=0)}},
            "node n1 is 'available' in Ironic, but placement has 1 of 1 reserved",
        ),
        (
            {"ironic": {**WELL.ironic, FREE: node_of(FREE, maintenance=True)}},
            "node n1 is 'available' in Ironic, but placement has 0 of 1 reserved",
        ),
        (
            {"providers": {**WELL.providers, FREE: provider_of(FREE, reserved=0, used=1)}},
            "node n1: 1 in use in placement, but its instance is None",
        ),
        (
            {"providers": {**WELL.providers, BUSY: provider_of(BUSY, reserved=1, used=0)}},
            f"node n2: 0 in use in placement, but its instance is {METAL}",
        ),
        (
            {"rows": {**WELL.rows, FREE: row_of(FREE, "ironic-2")}},
            "node n1 is owned by ironic-2, which is not alive",
        ),
        ({"rows": {BUSY: WELL.rows[BUSY]}}, "node n1 is owned by nobody, which is not alive"),
        (
            {"rows": {**WELL.rows, FREE: row_of(FREE, epoch=3)}},
            "node n1 was not reported by its owner ironic-1",
        ),
    ],
)
def test_each_problem_is_named(wrong: dict[str, object], told: str) -> None:
    problems = [*problems_of(structs.replace(WELL, **wrong))]

    assert any(told in problem for problem in problems), problems


def tally_of(count: int, state: Callable[[int], str] = lambda _: "available") -> MetalTally:
    tally = MetalTally(10)
    ids = [ProviderId(UUID(int=number)) for number in range(1, count + 1)]
    tally.read(
        structs.replace(
            row_of(id_, f"ironic-{id_.int % 2 + 1}"), node=node_of(id_, provision_state=state(id_.int))
        )
        for id_ in ids
    )
    return tally


def test_a_kill_must_have_happened_and_been_mended() -> None:
    tally = tally_of(4)
    assert problems_of_the_kill(tally) == ["no daemon that owned nodes was killed"]

    tally.kill("ironic-2")
    tally.read([])
    assert "have no new owner" in problems_of_the_kill(tally)[0]

    mine = [row for row in tally.rows.values() if row.owner == "ironic-2"]
    tally.read(structs.replace(row, owner="ironic-1", epoch=3) for row in mine)
    assert "were not reported by their new owners" in problems_of_the_kill(tally)[0]

    tally.read(structs.replace(row, owner="ironic-1", epoch=3, read_epoch=3) for row in mine)
    assert problems_of_the_kill(tally) == []
    assert [news.text for news in tally.news] == [
        "daemon ironic-2 is killed: it owned 2 nodes",
        "all 2 nodes of ironic-2 have a new owner",
        "all 2 were read and reported by their new owners",
    ]


def test_a_flip_is_known_to_placement_when_the_node_is_reserved() -> None:
    tally = tally_of(2)
    tally.flip(FREE)
    for reserved in (0, 1):
        assert not tally.flip_latencies_s
        changed = provider_of(FREE, reserved=reserved, used=0)
        tally.hear(ProvidersChanged(at=LogPosition(term=1, position=1), providers=(changed,)))
    assert len(tally.flip_latencies_s) == 1


@pytest.mark.parametrize("count", [2, 100, 2000])
def test_the_picture_fits(count: int) -> None:
    states = ("available", "active", "deploying", "cleaning", "clean failed", "enroll")
    tally = tally_of(count, lambda number: states[number % len(states)])
    tally.kill("ironic-2")
    failed = AttemptFailed(attempt=1, host=str(FREE), reason="deploy failed: the image cannot be written")
    active = instance_of(METAL, "metal-001", str(BUSY), failures=(failed,))
    tally.hear(InstanceActive(cell="c1", instance=active))

    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(metal_screen(tally, ("ironic-1", "ironic-2"), "title"))
    lines = console.export_text().splitlines()

    assert {len(line.rstrip()) for line in lines} == {WIDTH}
    assert len(lines) < 30
    assert any("metal-001: n1, deploy failed; now on n2" in line for line in lines)


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (row_of(FREE), "available"),
        (structs.replace(row_of(FREE), node=node_of(FREE, provision_state=None)), "available"),
        (structs.replace(row_of(FREE), node=node_of(FREE, maintenance=True)), "maintenance"),
        (structs.replace(row_of(FREE), node=node_of(FREE, METAL, maintenance=True)), "active"),
        (structs.replace(row_of(FREE), node=node_of(FREE, provision_state="wait call-back")), "deploying"),
        (structs.replace(row_of(FREE), node=node_of(FREE, provision_state="clean failed")), "failed"),
        (structs.replace(row_of(FREE), node=node_of(FREE, provision_state="deleting")), "cleaning"),
        (structs.replace(row_of(FREE), node=node_of(FREE, provision_state="manageable")), "other"),
        (
            structs.replace(
                row_of(FREE),
                deploy=Deploy(
                    kind="deploy", cell="c1", instance=METAL, attempt=1, started_at=datetime.now(UTC)
                ),
            ),
            "deploying",
        ),
    ],
)
def test_a_tile_shows_what_the_node_is_doing(row: NodeRow, kind: str) -> None:
    assert kind_of(row) == kind
