"""Which broker gets which objects, depending on the cells that have brokers of their own."""

from bus.addresses import Addresses
from bus.definitions import arguments_of
from bus.queues import QueueKind, Site
from moor.broker.deployments import BrokerDeployment, deployments_of

ALL = "amqp://api/"
C1, C2 = "amqp://user@c1/its%2Fhost", "unix:///c2.sock"


def users(deployment: BrokerDeployment) -> set[str]:
    return set(deployment.rights())


def test_a_cells_roles_have_users_on_its_own_broker_alone() -> None:
    api, one, two = deployments_of(Addresses(bus_url=ALL, cell_bus_urls={"c1": C1, "c2": C2}), ("c1", "c2"))

    above = {"moor-scheduler", "moor-placement", "moor-operator", "moor-ironic"}
    assert users(api) == above
    assert users(one) == above | {"moor-conductor-c1", "moor-compute-c1"}
    assert users(two) == above | {"moor-conductor-c2", "moor-compute-c2"}
    assert not one.rights()["moor-scheduler"].may_publish("moor.cell.c2", "place.c2")


def test_a_broker_of_several_nodes_keeps_questions_on_several_of_them() -> None:
    one, several = (
        BrokerDeployment(url, (Site.API,), ()).objects()
        for url in ("amqp://a/", "amqp://u:p@a,b:5673,c/v%2Fw")
    )

    types = [
        {
            arguments_of(queue, objects.limits)["x-queue-type"]
            for queue in objects.queues
            if queue.kind is kind
        }
        for objects in (one, several)
        for kind in (QueueKind.QUESTIONS, QueueKind.WORK)
    ]
    assert types == [{"classic"}, {"quorum"}, {"quorum"}, {"quorum"}]
    assert BrokerDeployment("amqp://u:p@a,b:5673,c/v%2Fw", (Site.API,), ()).virtual_host == "v/w"
