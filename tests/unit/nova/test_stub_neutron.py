"""The stand-in for Neutron that stands beside a whole real Nova."""

from typing import Any

from tests.conformance.nova.stub_neutron import Neutron

PROJECT = "7be00000-0000-4000-8000-000000000001"
REQUEST = {"request_groups": [{"id": "g", "required": [], "resources": {"NET_BW_EGR_KILOBIT_PER_SEC": 1}}]}


class Asked:
    """A stand-in that answers in bodies, and keeps the last status."""

    def __init__(self) -> None:
        self.neutron = Neutron()
        self.status = 0

    def __call__(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        filters = {name: value.split(",") for name, value in query.items()}
        self.status, answer = self.neutron.answer(method, path.split("/"), filters, body)
        return answer


def a_network(ask: Asked) -> str:
    made = ask(
        "POST", "networks", {"network": {"project_id": PROJECT, "provider:physical_network": "physnet0"}}
    )
    network = made["network"]["id"]
    ask("POST", "subnets", {"subnet": {"project_id": PROJECT, "network_id": network, "cidr": "192.0.2.0/24"}})
    return str(network)


def a_port(ask: Asked, **more: Any) -> str:
    made = ask("POST", "ports", {"port": {"project_id": PROJECT, "network_id": a_network(ask), **more}})
    return str(made["port"]["id"])


def test_a_new_port_has_an_address_and_is_bound_to_no_host() -> None:
    ask = Asked()
    port = ask("GET", f"ports/{a_port(ask, resource_request=REQUEST)}")["port"]

    assert port["fixed_ips"][0]["ip_address"] == "192.0.2.2"
    assert (port["binding:host_id"], port["binding:vif_type"], port["status"]) == ("", "unbound", "DOWN")
    assert (port["tenant_id"], port["resource_request"]) == (PROJECT, REQUEST)


def test_a_port_with_a_host_is_bound_there_until_the_host_is_taken_away() -> None:
    ask = Asked()
    port = a_port(ask)
    wanted = {"binding:host_id": "h1", "binding:profile": {"allocation": "p"}, "device_id": "i"}

    bound = ask("PUT", f"ports/{port}", {"port": wanted})["port"]
    unbound = ask(
        "PUT", f"ports/{port}", {"port": {"binding:host_id": None, "binding:profile": None, "device_id": ""}}
    )["port"]

    assert (bound["binding:host_id"], bound["binding:vif_type"], bound["status"]) == ("h1", "ovs", "ACTIVE")
    assert bound["binding:profile"] == {"allocation": "p"}
    assert (unbound["binding:host_id"], unbound["binding:profile"], unbound["status"]) == ("", {}, "DOWN")


def test_a_second_binding_is_inactive_until_it_is_activated() -> None:
    ask = Asked()
    port = a_port(ask, **{"binding:host_id": "h1"})

    made = ask("POST", f"ports/{port}/bindings", {"binding": {"host": "h2", "profile": {"a": 1}}})["binding"]
    assert (ask.status, made["status"]) == (201, "INACTIVE")
    assert ask("GET", f"ports/{port}")["port"]["binding:host_id"] == "h1"
    ask("POST", f"ports/{port}/bindings", {"binding": {"host": "h2"}})
    assert ask.status == 409

    ask("PUT", f"ports/{port}/bindings/h2/activate")
    shown = ask("GET", f"ports/{port}")["port"]
    assert (shown["binding:host_id"], shown["binding:profile"]) == ("h2", {"a": 1})
    ask("DELETE", f"ports/{port}/bindings/h1")
    assert ask.status == 204
    assert [each["host"] for each in ask("GET", f"ports/{port}/bindings")["bindings"]] == ["h2"]


def test_lists_have_the_rows_that_match_each_filter_with_the_wanted_fields() -> None:
    ask = Asked()
    first, second, third = (a_port(ask, device_id=each) for each in ("i", "i", "other"))

    assert [each["id"] for each in ask("GET", "ports", device_id="i")["ports"]] == [first, second]
    assert ask("GET", "ports", id=f"{first},{third}", fields="device_id")["ports"] == [
        {"device_id": "i"},
        {"device_id": "other"},
    ]
    assert ask("GET", "networks", shared="True")["networks"] == []
    assert len(ask("GET", "networks", shared="False", tenant_id=PROJECT)["networks"]) == 3


def test_what_is_not_there_is_refused_by_neutrons_names() -> None:
    ask = Asked()
    port = a_port(ask)
    ask("DELETE", f"ports/{port}")
    assert ask.status == 204

    assert ask("GET", f"ports/{port}")["NeutronError"]["type"] == "PortNotFound"
    assert ask.status == 404
    assert ask("GET", "trunks")["NeutronError"]["type"] == "ResourceNotFound"
