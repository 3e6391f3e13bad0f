"""Which broker gets which objects, depending on the cells that have brokers of their own."""

from bus.addresses import Addresses
from bus.definitions import arguments_of
from bus.queues import QueueKind, Site
from ironic_sync.settings import IronicSettings
from moor.broker.deployments import BrokerDeployment, deployments_of

ALL = "amqp://api/"
C1, C2 = "amqp://user@c1/its%2Fhost", "unix:///c2.sock"


def names(deployment: BrokerDeployment) -> set[str]:
    return {queue.name for queue in deployment.objects().queues}


def users(deployment: BrokerDeployment) -> set[str]:
    return set(deployment.rights())


def test_without_cell_brokers_everything_is_on_the_one_broker() -> None:
    (one,) = deployments_of(Addresses(bus_url=ALL), ("c1", "c2"))

    assert one == BrokerDeployment(ALL, (Site.API, Site.CELL, Site.IRONIC), ("c1", "c2"))
    assert one.names == ("api", "c1", "c2")
    assert "ironic.events" in names(one)
    assert {"scheduler.requests", "scheduler.events", "conductor.c1.work", "compute.c2.work"} <= names(one)
    assert {"moor-scheduler", "moor-conductor-c1", "moor-compute-c2"} <= users(one)


def test_a_cell_with_a_broker_of_its_own_is_there_only() -> None:
    api, there = deployments_of(Addresses(bus_url=ALL, cell_bus_urls={"c1": C1}), ("c1", "c2"))

    assert (api.names, there.names) == (("api", "c2"), ("c1",))
    assert "conductor.c1.work" not in names(api)
    assert names(there) == {
        "scheduler.events",
        "placement.work",
        "placement.claims",
        "conductor.c1.work",
        "conductor.c1.questions",
        "compute.c1.work",
        "compute.c1.questions",
        "ironic.c1.work",
        "dead",
    }


def test_a_cells_roles_have_users_on_its_own_broker_alone() -> None:
    api, one, two = deployments_of(Addresses(bus_url=ALL, cell_bus_urls={"c1": C1, "c2": C2}), ("c1", "c2"))

    above = {"moor-scheduler", "moor-placement", "moor-operator", "moor-ironic"}
    assert users(api) == above
    assert users(one) == above | {"moor-conductor-c1", "moor-compute-c1"}
    assert users(two) == above | {"moor-conductor-c2", "moor-compute-c2"}
    assert not one.rights()["moor-scheduler"].may_publish("moor.cell.c2", "place.c2")


def test_cells_that_share_a_broker_are_on_it_together() -> None:
    addresses = Addresses(bus_url=ALL, cell_bus_urls={"c1": C1, "c2": ALL, "c3": C1})

    api, there = deployments_of(addresses, ("c1", "c2", "c3"))

    assert (api.names, there.names) == (("api", "c2"), ("c1", "c3"))


def test_ironics_own_broker_has_its_inbox_and_the_api_levels_has_none() -> None:
    api, there = deployments_of(Addresses(bus_url=ALL, ironic_bus_url="amqp://ironic/"), ("c1",))

    assert (api.names, there.names) == (("api", "c1"), ("ironic",))
    assert "ironic.events" not in names(api)
    assert names(there) == {"ironic.events"}
    assert users(there) == {"moor-ironic"}
    rights = there.rights()["moor-ironic"]
    assert rights.may_bind("ironic", "ironic_versioned_notifications.*")
    assert not rights.may_configure("ironic.events")
    assert not rights.may_write("moor.dead")


def test_an_ironic_with_other_names_has_its_inbox_bound_there_and_the_rights_to_it() -> None:
    settings = IronicSettings(exchange="metal", topics=("for_us", "for_all"), queue="ironic.south")
    api, there = deployments_of(Addresses(bus_url=ALL, ironic_bus_url="amqp://ironic/"), ("c1",), settings)

    assert names(there) == {"ironic.south"}
    assert {each.name for each in there.objects().exchanges} == {"metal"}
    (inbox,) = there.objects().queues
    assert [(each.exchange, each.pattern) for each in inbox.bindings] == [
        ("metal", "for_us.*"),
        ("metal", "for_all.*"),
    ]
    rights = there.rights()["moor-ironic"]
    assert rights.may_read("ironic.south")
    assert not rights.may_read("ironic.events")
    assert rights.may_bind("metal", "for_us.*")
    assert rights.may_write("ironic.south")
    for key in ("#", "ironic_versioned_notifications.*", "ironic.conductor_manager"):
        assert not rights.may_bind("metal", key), key
    assert not rights.may_publish("metal", "for_us.info")
    # A dead letter of it has the name of the inbox in the topology.
    assert api.rights()["moor-ironic"].may_publish("moor.dead", "ironic.events")


def test_ironic_may_share_a_cells_broker() -> None:
    api, there = deployments_of(Addresses(bus_url=ALL, ironic_bus_url=C1, cell_bus_urls={"c1": C1}), ("c1",))

    assert "ironic.events" not in names(api)
    assert {"ironic.events", "conductor.c1.work"} <= names(there)
    assert there.names == ("c1",)


def test_users_get_their_rights_on_the_virtual_host_of_the_url() -> None:
    hosts = [BrokerDeployment(url, (Site.API,), ()).virtual_host for url in (ALL, C1, "amqp://api")]

    assert hosts == ["/", "its/host", "/"]


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
