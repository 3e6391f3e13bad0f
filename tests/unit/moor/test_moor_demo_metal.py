"""The bare-metal demo: each of its checks can fail, and its picture fits the screen."""

import io
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import structs
from rich.console import Console

from bus.messages.build import AttemptFailed, InstanceActive, InstanceDeleted, InstanceState
from bus.messages.placement import LogPosition, ProvidersChanged
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import InventoryState, ProviderId, ProviderState
from ironic_sync.core.node import Node
from ironic_sync.core.rows import NodeDeploy, NodeRow, Offer
from laboratory.at_rest import Asked
from laboratory.demo import problems_of_the_kill
from laboratory.demo_screen import WIDTH, Tally, kind_of, screen
from moor.clouds.cloud import flavor_of_nodes

FREE, BUSY = (ProviderId(UUID(int=number)) for number in (1, 2))
METAL = InstanceId(UUID(int=101))
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


def provider_of(id_: ProviderId, *, reserved: int) -> ProviderState:
    stock = InventoryState(total=1, reserved=reserved)
    return ProviderState(
        internal=id_.int, id=id_, name=str(id_), root=id_, revision=1 + reserved, inventories={CLASS: stock}
    )


def row_of(id_: ProviderId, owner: str = "ironic-1") -> NodeRow:
    return NodeRow(id=id_, cell="c1", owner=owner, epoch=2, read_epoch=2, node=node_of(id_), offer=Offer())


def tally_of(count: int, state: Callable[[int], str] = lambda _: "available") -> Tally:
    tally = Tally(10)
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
        changed = provider_of(FREE, reserved=reserved)
        tally.hear(ProvidersChanged(at=LogPosition(term=1, position=1), providers=(changed,)))
    assert len(tally.flip_latencies_s) == 1


def test_what_was_asked_for_is_told_with_the_last_state_that_was_heard() -> None:
    tally = Tally(3)
    small = Flavor(name="small", vcpus=1, ram_mb=64, root_gb=5)
    ids = [InstanceId(UUID(int=number)) for number in (101, 102, 103, 104)]
    tally.flavors.update(zip(ids, (small, flavor_of_nodes(), small), strict=False))
    # The last one belongs to somebody else.
    for id_ in (*ids[:2], ids[3]):
        tally.hear(InstanceActive(cell="c1", instance=instance_of(id_, "web-001", str(BUSY))))
    gone = structs.replace(tally.states[ids[0]], state="deleted")
    tally.hear(InstanceDeleted(cell="c1", instance=gone))

    assert tally.asked(flavor_of_nodes()) == {
        ids[0]: Asked("deleted", {"VCPU": 1, "MEMORY_MB": 64, "DISK_GB": 5}),
        ids[1]: Asked("active", {"VCPU": 0, "MEMORY_MB": 0, "DISK_GB": 0, CLASS: 1}, on_node=True),
        ids[2]: Asked("", {"VCPU": 1, "MEMORY_MB": 64, "DISK_GB": 5}),
    }


@pytest.mark.parametrize("count", [2, 100, 2000])
def test_the_picture_fits(count: int) -> None:
    states = ("available", "active", "deploying", "cleaning", "clean failed", "enroll")
    tally = tally_of(count, lambda number: states[number % len(states)])
    tally.kill("ironic-2")
    failed = AttemptFailed(attempt=1, host=str(FREE), reason="deploy failed: the image cannot be written")
    active = instance_of(METAL, "metal-001", str(BUSY), failures=(failed,))
    tally.hear(InstanceActive(cell="c1", instance=active))

    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(screen(tally, "title", ("ironic-1", "ironic-2")))
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
                deploy=NodeDeploy(
                    kind="deploy", cell="c1", instance=METAL, attempt=1, started_at=datetime.now(UTC)
                ),
            ),
            "deploying",
        ),
    ],
)
def test_a_tile_shows_what_the_node_is_doing(row: NodeRow, kind: str) -> None:
    assert kind_of(row) == kind
