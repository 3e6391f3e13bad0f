"""What `moor broker declare` says about the nodes of a cluster, from what rabbitmqctl prints."""

import json

import pytest

from bus.topology import Queue, QueueKind
from moor.broker.replication import BrokerNodes, QueueOnNodes, nodes_in, questions_on_one_node, replication_of

A, B, C = "rabbit@a", "rabbit@b", "rabbit@c"
WORK = Queue("placement.work", QueueKind.WORK)
CLAIMS = Queue("placement.claims", QueueKind.QUESTIONS)
INBOX = Queue("ironic.events", QueueKind.INBOX)
STATUS = json.dumps({"disk_nodes": [B, A, C], "ram_nodes": [], "running_nodes": [A, B]})
LISTED = (
    f"placement.work\tquorum\t[{A}, {B}, {C}]\t<{A}.1795530063.1304.0>\n"
    f"ironic.events\tclassic\t\t<{B}.1795530063.1201.0>\n"
    "gone\tclassic\t\t\n"
)


def broker(*queues: QueueOnNodes, nodes: tuple[str, ...] = (A, B, C)) -> BrokerNodes:
    return BrokerNodes(nodes, frozenset(nodes), queues)


def on(queue: Queue, *nodes: str, kind: str = "quorum") -> QueueOnNodes:
    return QueueOnNodes(queue.name, kind, nodes)


def test_nodes_and_queues_are_read_from_what_rabbitmqctl_prints() -> None:
    found = nodes_in(STATUS, LISTED)

    assert found == BrokerNodes(
        (A, B, C),
        frozenset((A, B)),
        (
            QueueOnNodes("placement.work", "quorum", (A, B, C)),
            QueueOnNodes("ironic.events", "classic", (B,)),
            QueueOnNodes("gone", "classic", ()),
        ),
    )
    assert found.away == (C,)


@pytest.mark.parametrize("status", ["", "no json", "[]", "{}", '{"disk_nodes": 3}'])
def test_another_output_is_an_error(status: str) -> None:
    with pytest.raises(ValueError, match="something else than the state of a cluster"):
        nodes_in(status, LISTED)


def test_what_is_copied_and_what_is_on_one_node_is_said() -> None:
    said = replication_of((WORK, INBOX), nodes_in(STATUS, LISTED), "/")

    about_nodes, copied, alone, own = said.facts
    assert about_nodes == f"the broker has 3 nodes: {A}, {B}, {C}; not running: {C}"
    assert copied == "quorum queues with 3 members: 1; they go on when one of these nodes is lost"
    assert alone.startswith(
        f"ironic.events is a classic queue, on {B} alone: while the node is down, changes in Ironic"
    )
    assert "answers and feeds" in own
    assert said.warnings == ()


def test_a_queue_with_fewer_members_than_nodes_is_warned_of_with_the_commands_that_add_them() -> None:
    said = replication_of((WORK, CLAIMS), broker(on(WORK, A), on(CLAIMS, A, B, C)), "its/host-1.0")

    (warning,) = said.warnings
    assert warning == (
        "fewer members than there are nodes: placement.work; "
        f"`rabbitmq-queues grow {B} all --vhost-pattern '^its/host-1\\.0$'` and "
        f"`rabbitmq-queues grow {C} all --vhost-pattern '^its/host-1\\.0$'` adds them"
    )
    assert "quorum queues with 1 member: 1; they need every one of these nodes" in said.facts


def test_two_nodes_are_warned_of_since_none_of_them_may_be_lost() -> None:
    said = replication_of((WORK,), broker(on(WORK, A, B), nodes=(A, B)), "/")

    (warning,) = said.warnings
    assert "two nodes" in warning
    assert "they need every one of these nodes" in said.facts[1]


def test_five_members_may_lose_two() -> None:
    nodes = (A, B, C, "rabbit@d", "rabbit@e")

    said = replication_of((WORK,), broker(on(WORK, *nodes), nodes=nodes), "/")

    assert said.facts[1] == "quorum queues with 5 members: 1; they go on when 2 of these nodes are lost"


def test_the_broker_of_another_rabbitmqctl_is_noticed_by_a_missing_queue() -> None:
    with pytest.raises(
        ValueError, match=r"no queue 'placement.claims' in '/', so it is that of another broker"
    ):
        replication_of((WORK, CLAIMS), broker(on(WORK, A)), "/")


def test_only_queues_of_questions_can_be_replaced() -> None:
    found = broker(on(CLAIMS, A, kind="classic"), on(INBOX, A, kind="classic"), on(WORK, A))

    assert questions_on_one_node((WORK, CLAIMS, INBOX), found) == ("placement.claims",)
    assert questions_on_one_node((CLAIMS,), broker(on(CLAIMS, A, B, C))) == ()
