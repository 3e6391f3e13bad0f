"""The life of an instance on a bare-metal node: other orders and deadlines than on a hypervisor, the same rules."""

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed
from bus.messages.cell import (
    DeployInstance,
    DeployProgressed,
    DestroyInstance,
    InstanceSpawned,
    PlaceInCell,
    SpawnInstance,
    UndeployInstance,
)
from engine.flavors import Image
from engine.hosts import NODE
from engine.inventories import Choice
from engine.refusals import AlreadyClaimed
from tests.unit.conductor.cell import (
    CLAIMED,
    ONE,
    REMOVE,
    Cell,
    choice,
    destroy,
    destroyed,
    failed,
    host,
    kinds,
    place,
    released,
    spawned,
)

DEPLOY_S, UNDEPLOY_S = 2_700, 1_800
IMAGE = Image(source="http://images/debian", checksum="0a1b")


def a_node(name: str) -> Choice:
    return structs.replace(choice(name), kind=NODE)


def place_on_node(*alternates: Choice, ends_in_s: float = 7_200) -> PlaceInCell:
    return structs.replace(
        place(ends_in_s=ends_in_s),
        chosen=a_node("n1"),
        alternates=alternates,
        project="shop",
        image=IMAGE,
        config_drive="http://drives/1",
        ports=("port-1",),
        image_properties={"trait:CUSTOM_GOLD": "required"},
    )


def progressed(attempt: int, name: str) -> DeployProgressed:
    return DeployProgressed(cell="c1", instance=ONE, attempt=attempt, host=host(name), words="wait call-back")


def undeploy(attempt: int, name: str) -> UndeployInstance:
    return UndeployInstance(cell="c1", instance=ONE, attempt=attempt, host=host(name))


def test_an_instance_placed_on_a_node_is_deployed_there_with_all_fields_of_the_request() -> None:
    order = place_on_node()

    (said,) = Cell().hear(order)

    assert isinstance(said, DeployInstance)
    assert (said.host, said.attempt, said.share) == (host("n1"), 1, order.chosen.share)
    for field in ("flavor", "project", "user", "image", "config_drive", "ports", "image_properties"):
        assert getattr(said, field) == getattr(order, field)


def test_a_deployed_instance_is_active_and_the_order_is_not_sent_again() -> None:
    cell = Cell(place_on_node())

    assert kinds(cell.hear(spawned(1, "n1"))) == [InstanceActive]
    assert kinds([each.message for each in cell.row.outbox]) == [InstanceActive]


def test_a_node_that_fails_to_deploy_gives_way_to_the_next_alternate_of_any_kind() -> None:
    cell = Cell(place_on_node(choice("h2"), a_node("n3")))

    cell.hear(failed(1, "n1"))
    (spawn,) = cell.swap(CLAIMED)
    assert isinstance(spawn, SpawnInstance)
    assert spawn.host == host("h2")

    cell.hear(failed(2, "h2"))
    (deploy,) = cell.swap(CLAIMED)
    assert isinstance(deploy, DeployInstance)
    assert (deploy.host, deploy.attempt) == (host("n3"), 3)


def test_the_node_that_is_really_held_is_deployed_whichever_was_asked_for() -> None:
    cell = Cell(place_on_node(choice("h2"), a_node("n3")))
    cell.hear(failed(1, "n1"))

    (said,) = cell.swap(AlreadyClaimed(share=a_node("n3").share, attempt=2))

    assert isinstance(said, DeployInstance)
    assert said.host == host("n3")


def test_progress_restarts_the_attempts_timeout() -> None:
    cell = Cell(place_on_node(a_node("n2"), ends_in_s=9_000))
    for _ in range(2):
        cell.after_s(DEPLOY_S - 1)
        assert cell.row.state == "building"
        assert cell.hear(progressed(1, "n1")) == []
        # The answer shows that the order has arrived.
        assert cell.row.outbox == ()

    cell.after_s(DEPLOY_S - 1)
    assert cell.row.state == "building"
    assert kinds(cell.after_s(1)) == [UndeployInstance]


def test_progress_never_lasts_longer_than_the_request() -> None:
    cell = Cell(place_on_node(ends_in_s=3_000))
    cell.after_s(2_600)
    cell.hear(progressed(1, "n1"))

    said = cell.after_s(400)

    assert kinds(said) == [UndeployInstance, InstanceFailed]
    assert cell.row.reason == "the time of the request is up"


def test_a_silent_node_keeps_its_share_until_it_reports_that_it_is_clean() -> None:
    cell = Cell(place_on_node(a_node("n2")))

    said = cell.after_s(DEPLOY_S)

    assert said == [undeploy(1, "n1")]
    assert cell.row.failures[-1].reason == f"no message from the host within {DEPLOY_S} s"
    swap = cell.swap_asked
    assert swap.heir is not None
    cell.swap(CLAIMED)
    assert released(cell.hear(destroyed(1, "n1"))) == [(swap.heir.id, 1)]


def test_a_silent_node_is_reminded() -> None:
    cell = Cell(place_on_node())
    cell.after_s(DEPLOY_S)
    cell.confirm_all()

    assert cell.after_s(100) == [undeploy(1, "n1")]


def test_each_kind_of_host_gets_its_own_order_to_clean_up() -> None:
    cell = Cell(place_on_node(choice("h2")))
    cell.after_s(DEPLOY_S)
    cell.swap(CLAIMED)
    said = cell.after_s(60)

    assert destroy(2, "h2") in said
    cell.confirm_all()
    assert sorted(kinds(cell.after_s(100)), key=str) == [DestroyInstance, UndeployInstance]


def test_a_deleted_instance_is_undeployed_and_ends_when_the_node_is_clean() -> None:
    cell = Cell(place_on_node(), spawned(1, "n1"))

    assert cell.hear(REMOVE) == [undeploy(1, "n1")]
    assert cell.after_s(UNDEPLOY_S - 1) == [undeploy(1, "n1")]
    assert cell.row.state == "deleting"
    said = cell.hear(destroyed(1, "n1"))

    assert released(said) == [(ONE, 1)]
    assert kinds(said)[-1] is InstanceDeleted


def test_a_delete_waits_for_a_node_no_longer_than_it_may() -> None:
    cell = Cell(place_on_node(), spawned(1, "n1"), REMOVE)

    assert InstanceDeleted in kinds(cell.after_s(UNDEPLOY_S))
    assert len(cell.row.cleanups) == 1


@pytest.mark.parametrize("word", [spawned(1, "n1"), progressed(1, "n1")])
def test_a_late_report_of_a_superseded_attempt_is_answered_by_an_undeploy(
    word: InstanceSpawned | DeployProgressed,
) -> None:
    cell = Cell(place_on_node(choice("h2")))
    cell.hear(failed(1, "n1"))
    cell.swap(CLAIMED)
    cell.confirm_all()

    assert cell.hear(word) == [undeploy(1, "n1")]
    assert cell.row.state == "building"


def test_a_node_that_deploys_an_unknown_instance_is_told_to_undeploy_it() -> None:
    assert Cell().hear(structs.replace(spawned(1, "n1"), kind=NODE)) == [undeploy(1, "n1")]
    assert Cell().hear(progressed(1, "n1")) == [undeploy(1, "n1")]
    assert Cell().hear(spawned(1, "h1")) == [destroy(1, "h1")]


def test_progress_of_an_active_instance_changes_nothing() -> None:
    cell = Cell(place_on_node(), spawned(1, "n1"))
    cell.confirm_all()
    before = cell.row

    assert cell.hear(progressed(1, "n1")) == []
    assert cell.row == before


def test_an_active_instance_whose_node_is_gone_says_so_keeps_its_share_and_can_be_deleted() -> None:
    cell = Cell(place_on_node(a_node("n2")), spawned(1, "n1"))
    gone = structs.replace(failed(1, "n1"), reason="the node is deleted", number=1)

    cell.confirm_all()
    (said,) = cell.hear(gone)

    assert isinstance(said, InstanceFailed)
    assert (said.instance.state, said.instance.reason) == ("error", "the node is deleted")
    assert cell.row.state == "broken"
    cell.confirm_all()
    assert cell.hear(gone, spawned(1, "n1")) == [], "late copies change nothing"
    assert cell.hear(REMOVE) == [undeploy(1, "n1")]
    assert InstanceDeleted in kinds(cell.hear(destroyed(1, "n1")))


def test_an_instance_whose_node_is_back_is_active_again_and_late_copies_change_nothing() -> None:
    cell = Cell(place_on_node(), spawned(1, "n1"))
    gone = [structs.replace(failed(1, "n1"), number=number) for number in (1, 3)]
    back = [structs.replace(spawned(1, "n1"), number=number) for number in (2, 4)]

    assert kinds(cell.hear(gone[0])) == [InstanceFailed]
    cell.confirm_all()
    (said,) = cell.hear(back[0])
    assert isinstance(said, InstanceActive)
    assert (said.instance.host, said.instance.reason) == ("n1", "")
    cell.confirm_all()
    assert cell.hear(gone[0], back[0]) == []
    assert kinds(cell.hear(gone[1])) == [InstanceFailed]
    cell.confirm_all()
    assert cell.hear(back[0], spawned(1, "n1")) == []
    assert kinds(cell.hear(back[1])) == [InstanceActive]
    cell.hear(REMOVE)
    cell.confirm_all()
    assert cell.hear(structs.replace(back[1], number=6)) == [undeploy(1, "n1")], "its delete is not over"


def test_a_failure_of_an_earlier_attempt_or_on_a_hypervisor_leaves_an_active_instance_as_it_is() -> None:
    on_node = Cell(place_on_node(), spawned(1, "n1"))
    assert on_node.hear(failed(2, "n1"), failed(1, "n2"))[1:] == []
    assert on_node.row.state == "active"

    on_hypervisor = Cell(place(), spawned(1, "h1"))
    on_hypervisor.hear(failed(1, "h1"))
    assert on_hypervisor.row.state == "active"
