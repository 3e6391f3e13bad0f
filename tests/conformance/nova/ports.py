"""Servers with ports, some of which want bandwidth or packets of the host's network.

Below the root providers of some hosts stand such providers as Neutron's agents write: an agent with a bridge to the physical network below it,
and another agent without a bridge. Nova reads in the scheduler's answer which of them serves a port, and tells it to Neutron with the port.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from tests.conformance.nova.cloud import (
    BOOTS_WITHIN_S,
    FAILING,
    FLAVOR_HOLDS,
    MORTAL,
    NO_HOST_FOUND,
    NOTHING_FOUND,
    SMALL,
    Cloud,
    Operation,
    audited,
    host_of,
    place_at,
    soon,
    spread,
    state_of,
)
from tests.conformance.nova.header_identity import PROJECT
from tests.conformance.nova.moves import evacuated, moved

EGRESS, INGRESS = "NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC"
PACKETS = "NET_PACKET_RATE_KILOPACKET_PER_SEC"
PHYSNET, OTHER_PHYSNET = "CUSTOM_PHYSNET_PHYSNET0", "CUSTOM_PHYSNET_PHYSNET1"
VNIC_TYPE = "CUSTOM_VNIC_TYPE_NORMAL"
# Of each bridge, in each direction, and of each agent.
BRIDGE_KBPS = 10_000
AGENT_KPPS = 1_000
# Two that could be moved to each other, one that dies, and one in another cell.
HOSTS_ON_NETWORK = ("c1h2", "c1h3", MORTAL, "c2h1")
# With a bridge to another network. Where builds fail there are bridges, too.
HOST_ELSEWHERE = "c1h1"

Group = dict[str, Any]


def bandwidth(kbps: int) -> Group:
    """What a port wants: half as much out as in."""
    return {
        "id": str(uuid.uuid4()),
        "required": [PHYSNET, VNIC_TYPE],
        "resources": {EGRESS: kbps // 2, INGRESS: kbps},
    }


def packets(kpps: int) -> Group:
    return {"id": str(uuid.uuid4()), "required": [VNIC_TYPE], "resources": {PACKETS: kpps}}


def bandwidth_holds(kbps: int) -> str:
    return f"{EGRESS} {kbps // 2}, {INGRESS} {kbps}"


def add_agents(cloud: Cloud) -> None:
    """Providers below those hosts that have none. They stay: a compute does not forget providers below its own."""
    known = {name: id_ for id_, name in cloud.names().items()}
    for host in (*HOSTS_ON_NETWORK, *FAILING, HOST_ELSEWHERE):
        if f"{host}:agent" in known:
            continue
        # The first that a search finds by name or by age must not always be the right one.
        _add_provider(cloud, f"{host}:a lonely agent", known[host], {PACKETS: AGENT_KPPS}, VNIC_TYPE)
        agent = _add_provider(cloud, f"{host}:agent", known[host], {PACKETS: AGENT_KPPS}, VNIC_TYPE)
        physnet = OTHER_PHYSNET if host == HOST_ELSEWHERE else PHYSNET
        both_ways = dict.fromkeys((EGRESS, INGRESS), BRIDGE_KBPS)
        _add_provider(cloud, f"{host}:bridge", agent, both_ways, VNIC_TYPE, physnet)


def _add_provider(cloud: Cloud, name: str, parent: str, amounts: Mapping[str, int], *traits: str) -> str:
    ask = cloud.placement
    id_ = str(uuid.uuid4())
    path = f"/resource_providers/{id_}"
    body: dict[str, object] = {"uuid": id_, "name": name, "parent_provider_uuid": parent}
    made = ask.post("/resource_providers", json=body).raise_for_status().json()
    inventories = {
        resource: {"total": total, "max_unit": total, "reserved": 0, "allocation_ratio": 1.0}
        for resource, total in amounts.items()
    }
    body = {"resource_provider_generation": made["generation"], "inventories": inventories}
    given = ask.put(f"{path}/inventories", json=body).raise_for_status().json()
    for trait in traits:
        ask.put(f"/traits/{trait}").raise_for_status()
    body = {"resource_provider_generation": given["resource_provider_generation"], "traits": traits}
    ask.put(f"{path}/traits", json=body).raise_for_status()
    return id_


class PhysicalNetwork:
    """A network in Neutron, with its ports and their servers."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        add_agents(cloud)
        self.id = self._create("networks", name="physical", **{"provider:physical_network": "physnet0"})["id"]
        self._create("subnets", network_id=self.id, cidr="10.0.0.0/16", ip_version=4, gateway_ip="10.0.0.1")

    def _create(self, kind: str, **row: Any) -> Any:
        answer = self.cloud.neutron.post(f"/{kind}", json={kind[:-1]: {"project_id": PROJECT, **row}})
        return answer.raise_for_status().json()[kind[:-1]]

    def port(self, *groups: Group) -> str:
        """A port that wants these groups of resources, all of them of one agent."""
        request = (
            {"request_groups": groups, "same_subtree": [each["id"] for each in groups]} if groups else None
        )
        return str(self._create("ports", network_id=self.id, resource_request=request)["id"])

    def boot(self, *ports: str, **more: Any) -> str:
        return self.cloud.boot("small", networks=[{"port": each} for each in ports] or "none", **more)

    def settled(self, server: str) -> Any:
        return self.cloud.nova.until(server, "ACTIVE", within_s=BOOTS_WITHIN_S)

    def started(self, *ports: str, **more: Any) -> Any:
        """A server with these ports that was booted and is settled."""
        return self.settled(self.boot(*ports, **more))

    def port_state(self, port: str, host: str = "") -> str:
        """Where a port is, and which provider serves each of its groups as Nova has told Neutron; in words."""
        shown = self.cloud.neutron.get(f"/ports/{port}").raise_for_status().json()["port"]
        profile = shown["binding:profile"]
        if not shown["binding:host_id"]:
            return (
                "a free port" if not shown["device_id"] and not profile else f"an unbound port with {profile}"
            )
        bound = shown["binding:host_id"]
        where = f"a port {shown['status']} on {place_at(bound, host)}"
        if not shown["resource_request"]:
            return f"{where} with {profile}" if profile else where
        names = self.cloud.names()
        told = profile.pop("allocation", {})
        served = [
            place_at(names.get(told.get(group["id"]), "nowhere"), bound)
            for group in shown["resource_request"]["request_groups"]
        ]
        return f"{where}, served by {', '.join(served)}{f' with {profile}' if profile else ''}"

    def states(self, server: Mapping[str, Any], *ports: str) -> str:
        seen = [self.port_state(each, host_of(server)) for each in ports]
        return f"{state_of(self.cloud, server)}, {', '.join(seen)}"


def with_bandwidth(cloud: Cloud) -> str:
    seen, hosts = set(), set()
    network = PhysicalNetwork(cloud)
    for _ in range(3):
        port = network.port(bandwidth(4_000))
        server = network.started(port)
        hosts.add(host_of(server))
        before = network.states(server, port)
        # On an empty cloud each time: chance has the same to choose from.
        cloud.delete(server["id"])
        held = cloud.held(server["id"]) or "nothing"
        seen.add(f"{before}; deleted, holds {held}, {network.port_state(port)}")
    on = "hosts on the network" if hosts <= {*HOSTS_ON_NETWORK} else sorted(hosts)
    return f"{' / '.join(sorted(seen))}; on {on}"


def filled_bridges(cloud: Cloud) -> str:
    network = PhysicalNetwork(cloud)
    servers = [network.started(network.port(bandwidth(6_000))) for _ in HOSTS_ON_NETWORK]
    port = network.port(bandwidth(6_000))
    refused = network.states(network.started(port), port)
    cloud.delete(servers[0]["id"])
    again = network.started(port)
    back = "there" if host_of(again) == host_of(servers[0]) else host_of(again)
    return (
        f"{spread(servers)}; one more: {refused}; "
        f"after one was deleted: {back}, {network.states(again, port)}"
    )


def of_one_agent(cloud: Cloud) -> str:
    network = PhysicalNetwork(cloud)
    port = network.port(bandwidth(4_000), packets(100))
    return network.states(network.started(port), port)


def eight_at_once(cloud: Cloud) -> str:
    """They need all the room that there is."""
    network = PhysicalNetwork(cloud)
    ports = [network.port(bandwidth(4_000)) for _ in range(2 * len(HOSTS_ON_NETWORK))]
    servers = [network.settled(each) for each in [network.boot(port) for port in ports]]
    seen = {network.states(server, port) for server, port in zip(servers, ports, strict=True)}
    hosts = [host_of(each) for each in servers]
    return f"{' / '.join(sorted(seen))}; at most {max(map(hosts.count, hosts))} on one host"


def alternate_with_bandwidth(cloud: Cloud) -> str:
    """The first build fails; the cell's conductor claims what the answer says of the alternate, and the port goes with it."""
    cloud.only()
    network = PhysicalNetwork(cloud)
    cloud.set_service(*FAILING, status="enabled")
    port = network.port(bandwidth(4_000))
    server = network.started(port)
    is_there = host_of(server) in FAILING
    return f"{network.states(server, port)}, {'a failing host' if is_there else host_of(server)}"


def migrate_and_confirm(cloud: Cloud) -> str:
    cloud.only("c1h1", "c1h2", "c1h3")
    network = PhysicalNetwork(cloud)
    port = network.port(bandwidth(4_000))
    return moved(
        cloud,
        network.started(port),
        ("migrate", None),
        "confirmResize",
        lambda now: _with(network, port, now),
    )


def migrate_without_room(cloud: Cloud) -> str:
    """The only other host of its cell with a bridge has no bandwidth left."""
    cloud.only("c1h1", "c1h2", "c1h3")
    network = PhysicalNetwork(cloud)
    port, other = (network.port(bandwidth(6_000)) for _ in range(2))
    server = network.started(port, host="c1h2")
    network.started(other, host="c1h3")
    cloud.nova.act(server["id"], "migrate")
    after = soon(lambda: _settled_action(cloud, server["id"]), "Error")
    shown = cloud.nova.until(server["id"], "ACTIVE")
    home = "at home" if host_of(shown) == "c1h2" else host_of(shown)
    return f"{after}, {home}, {network.states(shown, port)}"


def evacuate(cloud: Cloud) -> str:
    network = PhysicalNetwork(cloud)
    port = network.port(bandwidth(4_000))
    return evacuated(cloud, network.started(port, host=MORTAL), lambda now: _with(network, port, now))


def _with(network: PhysicalNetwork, port: str, server: Mapping[str, Any]) -> str:
    return f", {network.port_state(port, host_of(server))}"


def audits(cloud: Cloud) -> str:
    """With a server whose port has bandwidth."""
    network = PhysicalNetwork(cloud)
    network.started(network.port(bandwidth(4_000)))
    return audited(cloud)


def _settled_action(cloud: Cloud, server: str) -> str:
    """How the last action on the server ended."""
    actions = cloud.nova.ask("GET", f"/servers/{server}/os-instance-actions")["instanceActions"]
    return str(actions[0]["message"])


_BANDWIDTH = f"{bandwidth_holds(4_000)} on its bridge"
_SERVED = "a port ACTIVE on its host, served by its bridge"
_HAS_BANDWIDTH = f"ACTIVE, {SMALL}; {_BANDWIDTH}, {_SERVED}"
_HAS_MORE = f"ACTIVE, {SMALL}; {bandwidth_holds(6_000)} on its bridge, {_SERVED}"
_LEFT = f"{FLAVOR_HOLDS} on the source's host; {bandwidth_holds(4_000)} on the source's bridge"
_THERE = "elsewhere in its cell, VERIFY_RESIZE, holds"

OPERATIONS = (
    Operation(
        "a port with bandwidth",
        f"{_HAS_BANDWIDTH}; deleted, holds nothing, a free port; on hosts on the network",
        with_bandwidth,
    ),
    Operation(
        "ports with bandwidth: all bridges are full",
        f"4 on 4, ACTIVE; one more: {NO_HOST_FOUND}, a free port; after one was deleted: there, {_HAS_MORE}",
        filled_bridges,
    ),
    Operation(
        "ports with bandwidth: eight servers at once",
        f"{_HAS_BANDWIDTH}; at most 2 on one host",
        eight_at_once,
    ),
    Operation(
        "a port with bandwidth and packets of one agent",
        f"ACTIVE, {SMALL}; {PACKETS} 100 on its agent; {_BANDWIDTH}, {_SERVED}, its agent",
        of_one_agent,
    ),
    Operation(
        "a port with bandwidth: a build fails", f"{_HAS_BANDWIDTH}, a failing host", alternate_with_bandwidth
    ),
    Operation(
        "a port with bandwidth: migrate, confirm",
        f"{_THERE} {FLAVOR_HOLDS} on its host; {_BANDWIDTH}, {_SERVED}, the move {_LEFT}; "
        f"confirmResize: there, {_HAS_BANDWIDTH}, the move nothing",
        migrate_and_confirm,
    ),
    Operation(
        "a port with bandwidth: migrate, no room", f"Error, at home, {_HAS_MORE}", migrate_without_room
    ),
    Operation(
        "a port with bandwidth: evacuate",
        f"cell1, SHUTOFF, {_SERVED}, and {_LEFT}; "
        f"the host came back: SHUTOFF, {SMALL}; {_BANDWIDTH}, {_SERVED}",
        evacuate,
    ),
    Operation("a port with bandwidth: audit, heal_allocations", NOTHING_FOUND, audits),
)
