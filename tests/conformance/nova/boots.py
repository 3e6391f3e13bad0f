"""Boots of one server and of many, and what must keep them from a host or bring them to it."""

from tests.conformance.nova.cloud import (
    FAILING,
    NO_HOST_FOUND,
    SMALL,
    Cloud,
    Operation,
    host_of,
    state_of,
    statuses,
)
from tests.conformance.nova.nova_api import NovaRefusedError


def boot(cloud: Cloud) -> str:
    server = cloud.started(cloud.small)
    seen = state_of(cloud, server)
    cloud.delete(server["id"])
    return f"{seen}; deleted, holds {cloud.held(server['id']) or 'nothing'}"


def multi_create_too_many(cloud: Cloud) -> str:
    # Six hosts have room for one such server each.
    servers = cloud.boot_many(cloud.half, 7)
    seen = {state_of(cloud, each) for each in servers}
    used = {name: amount for name, amount in cloud.used().items() if amount}
    cloud.delete(*(each["id"] for each in servers))
    return f"{len(servers)}: {' / '.join(sorted(seen))}; in use: {used or 'nothing'}"


def multi_create_that_fills(cloud: Cloud) -> str:
    servers = cloud.boot_many(cloud.half, 6)
    seen = {each["status"] for each in servers}
    hosts = {host_of(each) for each in servers}
    cloud.delete(*(each["id"] for each in servers))
    return f"{len(servers)}: {' / '.join(sorted(seen))}, on {len(hosts)} hosts"


def anti_affinity(cloud: Cloud) -> str:
    group = cloud.group("anti-affinity")
    servers = [cloud.started(cloud.small, hints={"group": group}) for _ in range(6)]
    hosts = {host_of(each) for each in servers}
    seventh = cloud.started(cloud.small, hints={"group": group})
    seen = f"6 members on {len(hosts)} hosts, {statuses(servers)}; one more: {state_of(cloud, seventh)}"
    cloud.delete(*(each["id"] for each in (*servers, seventh)))
    cloud.end_group(group)
    return seen


def anti_affinity_at_once(cloud: Cloud) -> str:
    group = cloud.group("anti-affinity", rules={"max_server_per_host": 2})
    servers = cloud.boot_many(cloud.small, 8, hints={"group": group})
    hosts = [host_of(each) for each in servers]
    seen = f"at most {max(hosts.count(each) for each in hosts)} members on one host; {statuses(servers)}"
    cloud.delete(*(each["id"] for each in servers))
    cloud.end_group(group)
    return seen


def affinity(cloud: Cloud) -> str:
    group = cloud.group("affinity")
    servers = [cloud.started(cloud.small, hints={"group": group}) for _ in range(3)]
    seen = f"3 members on {len({host_of(each) for each in servers})} host; {statuses(servers)}"
    cloud.delete(*(each["id"] for each in servers))
    cloud.end_group(group)
    return seen


def soft_anti_affinity(cloud: Cloud) -> str:
    group = cloud.group("soft-anti-affinity")
    servers = [cloud.started(cloud.small, hints={"group": group}) for _ in range(7)]
    seen = f"7 members on {len({host_of(each) for each in servers})} hosts; {statuses(servers)}"
    cloud.delete(*(each["id"] for each in servers))
    cloud.end_group(group)
    return seen


def aggregate_metadata(cloud: Cloud) -> str:
    with cloud.aggregate({"speed": "fast"}, "c1h2"):
        servers = [cloud.started(cloud.fast) for _ in range(2)]
    without = cloud.started(cloud.fast)
    seen = f"{sorted({host_of(each) for each in servers})}; without the aggregate: {state_of(cloud, without)}"
    cloud.delete(*(each["id"] for each in (*servers, without)))
    return seen


def zone(cloud: Cloud) -> str:
    with cloud.aggregate({"availability_zone": "east"}, "c2h1"):
        first = cloud.started(cloud.small, availability_zone="east")
        forced = cloud.started(cloud.small, availability_zone="nova:c1h3")
        try:
            cloud.boot(cloud.small, availability_zone="nowhere")
            unknown = "accepted"
        except NovaRefusedError as refused:
            unknown = "refused" if ": 400 " in str(refused) else str(refused)
        seen = f"zone: {host_of(first)}; zone and host: {host_of(forced)}; an unknown zone: {unknown}"
        cloud.delete(first["id"], forced["id"])
    return seen


def asked_host(cloud: Cloud) -> str:
    server = cloud.started(cloud.small, host="c1h3")
    large = cloud.started(cloud.too_large, host="c1h3")
    seen = f"{host_of(server)}; too large for it: {state_of(cloud, large)}"
    cloud.delete(server["id"], large["id"])
    return seen


def hints(cloud: Cloud) -> str:
    first = cloud.started(cloud.small)
    others = [cloud.started(cloud.small, hints={"different_host": [first["id"]]}) for _ in range(2)]
    same = cloud.started(cloud.small, hints={"same_host": [first["id"]]})
    apart = all(host_of(each) != host_of(first) for each in others)
    together = host_of(same) == host_of(first)
    cloud.delete(*(each["id"] for each in (first, *others, same)))
    return f"different_host: {'apart' if apart else 'together'}; same_host: {'together' if together else 'apart'}"


def forced_down(cloud: Cloud) -> str:
    with cloud.only("c2h1", "c2h2"):
        cloud.set_service("c2h1", forced_down=True)
        servers = [cloud.started(cloud.small) for _ in range(3)]
        cloud.set_service("c2h1", forced_down=False)
    seen = str(sorted({host_of(each) for each in servers}))
    cloud.delete(*(each["id"] for each in servers))
    return seen


def reschedule(cloud: Cloud) -> str:
    """The first build fails, and the cell's conductor goes to an alternate."""
    with cloud.only():
        for host in FAILING:
            cloud.set_service(host, status="enabled")
        server = cloud.started(cloud.small)
        for host in FAILING:
            cloud.set_service(host, status="disabled", disabled_reason="fails")
    is_there = host_of(server) in FAILING
    seen = f"{state_of(cloud, server)}, {'a failing host' if is_there else host_of(server)}"
    cloud.delete(server["id"])
    return seen


OPERATIONS = (
    Operation("boot, delete", f"ACTIVE, {SMALL}; deleted, holds nothing", boot),
    Operation("multi-create of 7, room for 6", f"7: {NO_HOST_FOUND}; in use: nothing", multi_create_too_many),
    Operation("multi-create of 6, room for 6", "6: ACTIVE, on 6 hosts", multi_create_that_fills),
    Operation(
        "server group: anti-affinity",
        f"6 members on 6 hosts, ACTIVE; one more: {NO_HOST_FOUND}",
        anti_affinity,
    ),
    Operation(
        "server group: two a host, 8 at once",
        "at most 2 members on one host; ACTIVE",
        anti_affinity_at_once,
    ),
    Operation("server group: affinity", "3 members on 1 host; ACTIVE", affinity),
    Operation("server group: soft anti-affinity", "7 members on 6 hosts; ACTIVE", soft_anti_affinity),
    Operation(
        "aggregate with metadata",
        f"['c1h2']; without the aggregate: {NO_HOST_FOUND}",
        aggregate_metadata,
    ),
    Operation("availability zone", "zone: c2h1; zone and host: c1h3; an unknown zone: refused", zone),
    Operation("a host that is asked for", f"c1h3; too large for it: {NO_HOST_FOUND}", asked_host),
    Operation("hints", "different_host: apart; same_host: together", hints),
    Operation("a service that is forced down", "['c2h2']", forced_down),
    Operation("a build fails: the alternate", f"ACTIVE, {SMALL}, a failing host", reschedule),
)
