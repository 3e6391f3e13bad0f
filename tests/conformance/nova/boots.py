"""Boots of one server and of many, and what must keep them from a host or bring them to it."""

from tests.conformance.nova.cloud import (
    FAILING,
    NO_HOST_FOUND,
    SMALL,
    Cloud,
    Operation,
    host_of,
    spread,
    state_of,
    statuses,
)
from tests.conformance.nova.nova_api import NovaRefusedError


def boot(cloud: Cloud) -> str:
    server = cloud.started("small")
    seen = state_of(cloud, server)
    cloud.delete(server["id"])
    return f"{seen}; deleted, holds {cloud.held(server['id']) or 'nothing'}"


def multi_create_too_many(cloud: Cloud) -> str:
    # Six hosts have room for one such server each.
    seen = {state_of(cloud, each) for each in cloud.boot_many("half", 7)}
    used = {name: amount for name, amount in cloud.used().items() if amount}
    return f"{' / '.join(sorted(seen))}; in use: {used or 'nothing'}"


def anti_affinity(cloud: Cloud) -> str:
    *servers, seventh = cloud.members("anti-affinity", 7)
    return f"{spread(servers)}; one more: {state_of(cloud, seventh)}"


def anti_affinity_at_once(cloud: Cloud) -> str:
    servers = cloud.boot_many(
        "small", 8, hints=cloud.group("anti-affinity", rules={"max_server_per_host": 2})
    )
    hosts = [host_of(each) for each in servers]
    return f"at most {max(map(hosts.count, hosts))} members on one host; {statuses(servers)}"


def aggregate_metadata(cloud: Cloud) -> str:
    cloud.aggregate("c1h2", speed="fast")
    hosts = {host_of(cloud.started("fast")) for _ in range(2)}
    cloud.end_aggregates()
    return f"{sorted(hosts)}; without the aggregate: {state_of(cloud, cloud.started('fast'))}"


def zone(cloud: Cloud) -> str:
    cloud.aggregate("c2h1", zone="east")
    zoned, forced = (
        host_of(cloud.started("small", availability_zone=zone)) for zone in ("east", "nova:c1h3")
    )
    try:
        cloud.boot("small", availability_zone="nowhere")
        unknown = "accepted"
    except NovaRefusedError as refused:
        unknown = "refused" if ": 400 " in str(refused) else str(refused)
    return f"zone: {zoned}; zone and host: {forced}; an unknown zone: {unknown}"


def asked_host(cloud: Cloud) -> str:
    server, large = (cloud.started(flavor, host="c1h3") for flavor in ("small", "too-large"))
    return f"{host_of(server)}; too large for it: {state_of(cloud, large)}"


def hints(cloud: Cloud) -> str:
    first = cloud.started("small")
    asked = ({"different_host": [first["id"]]},) * 2 + ({"same_host": [first["id"]]},)
    near = [host_of(cloud.started("small", hints=each)) == host_of(first) for each in asked]
    return ", ".join("together" if each else "apart" for each in near)


def forced_down(cloud: Cloud) -> str:
    cloud.only("c2h1", "c2h2")
    cloud.set_service("c2h1", forced_down=True)
    return str({host_of(cloud.started("small")) for _ in range(3)})


def reschedule(cloud: Cloud) -> str:
    """The first build fails, and the cell's conductor goes to an alternate."""
    cloud.only()
    cloud.set_service(*FAILING, status="enabled")
    server = cloud.started("small")
    is_there = host_of(server) in FAILING
    return f"{state_of(cloud, server)}, {'a failing host' if is_there else host_of(server)}"


OPERATIONS = (
    Operation("boot, delete", f"ACTIVE, {SMALL}; deleted, holds nothing", boot),
    Operation("multi-create of 7, room for 6", f"{NO_HOST_FOUND}; in use: nothing", multi_create_too_many),
    Operation(
        "multi-create of 6, room for 6", "6 on 6, ACTIVE", lambda cloud: spread(cloud.boot_many("half", 6))
    ),
    Operation("server group: anti-affinity", f"6 on 6, ACTIVE; one more: {NO_HOST_FOUND}", anti_affinity),
    Operation(
        "server group: two a host, 8 at once",
        "at most 2 members on one host; ACTIVE",
        anti_affinity_at_once,
    ),
    Operation("server group: affinity", "3 on 1, ACTIVE", lambda cloud: spread(cloud.members("affinity", 3))),
    Operation(
        "server group: soft anti-affinity",
        "7 on 6, ACTIVE",
        lambda cloud: spread(cloud.members("soft-anti-affinity", 7)),
    ),
    Operation(
        "aggregate with metadata",
        f"['c1h2']; without the aggregate: {NO_HOST_FOUND}",
        aggregate_metadata,
    ),
    Operation("availability zone", "zone: c2h1; zone and host: c1h3; an unknown zone: refused", zone),
    Operation("a host that is asked for", f"c1h3; too large for it: {NO_HOST_FOUND}", asked_host),
    Operation("hints", "apart, apart, together", hints),
    Operation("a service that is forced down", "{'c2h2'}", forced_down),
    Operation("a build fails: the alternate", f"ACTIVE, {SMALL}, a failing host", reschedule),
)
