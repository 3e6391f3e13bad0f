"""A running Nova with what its operations need: hosts, and the words for what is seen of servers and of what they hold."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
from msgspec import Struct

from tests.conformance.nova.stack import NovaStack
from tests.conformance.nova.stub_services import IMAGE
from tests.waiting import NeverTrueError, wait_for

# Nova's fake driver of medium size: ten processors a host.
CELLS: Mapping[str, Sequence[str]] = {"cell1": ("c1h1", "c1h2", "c1h3"), "cell2": ("c2h1", "c2h2")}
HOSTS = tuple(host for hosts in CELLS.values() for host in hosts)
# In a process of its own, which dies.
MORTAL = "c1h4"
# Where each first build fails; disabled but for one operation.
FAILING = ("c2f1", "c2f2")
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "DEFAULT": {"compute_driver": "fake.MediumFakeDriver"},
    # The fake driver plugs nothing, and the stand-in for Neutron tells of nothing.
    "compute": {"live_migration_wait_for_vif_plug": "false"},
    "filter_scheduler": {
        "enabled_filters": "ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,"
        "ServerGroupAffinityFilter,DifferentHostFilter,SameHostFilter,AggregateInstanceExtraSpecsFilter",
    },
}
# Processors, memory and disk. Two of the half ones are more than a host.
FLAVORS = {
    "small": (1, 64, 1),
    "large": (2, 128, 2),
    "too-large": (11, 64, 1),
    "half": (6, 64, 1),
    "fast": (1, 64, 1),
}
_FIRST = ("VCPU", "MEMORY_MB", "DISK_GB")
FLAVOR_HOLDS = "VCPU 1, MEMORY_MB 64, DISK_GB 1"
LARGE_HOLDS = "VCPU 2, MEMORY_MB 128, DISK_GB 2"
BOOTS_WITHIN_S = 120.0
NO_HOST = "No valid host"
TASK = "OS-EXT-STS:task_state"


class Cloud:
    """A stack, with what the operations need: questions about hosts and about what consumers hold."""

    def __init__(self, stack: NovaStack) -> None:
        self.stack = stack
        self.nova = stack.api
        self.placement = httpx.Client(
            base_url=stack.places.placement,
            headers={"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39"},
            timeout=60,
        )
        self.neutron = httpx.Client(base_url=f"{stack.places.stub}/v2.0", timeout=60)
        self._number = 0

    def names(self) -> Mapping[str, str]:
        """Of all providers that there are now."""
        providers = self.placement.get("/resource_providers").json()["resource_providers"]
        return {each["uuid"]: each["name"] for each in providers}

    def name(self, what: str) -> str:
        self._number += 1
        return f"{what}-{self._number}"

    def held(self, consumer: str) -> dict[str, str]:
        """What a consumer holds, by the name of the provider."""
        answer = self.placement.get(f"/allocations/{consumer}").json()
        names = self.names()
        return {
            names.get(provider, provider): ", ".join(
                f"{name} {each['resources'][name]}" for name in sorted(each["resources"], key=_place_in_words)
            )
            for provider, each in answer["allocations"].items()
        }

    def used(self) -> dict[str, int]:
        """The sums of what is in use of each class, over all hosts."""
        sums: Counter[str] = Counter()
        for provider in self.names():
            sums.update(self.placement.get(f"/resource_providers/{provider}/usages").json()["usages"])
        return sums

    def started(self, flavor: str, **more: Any) -> Any:
        """A server that was booted and is settled, as Nova shows it."""
        return self.nova.until(self.boot(flavor, **more), "ACTIVE", within_s=BOOTS_WITHIN_S)

    def boot(self, flavor: str, **more: Any) -> str:
        return str(self.nova.boot(self.name("server"), flavor, IMAGE, **more)["server"]["id"])

    def boot_many(self, flavor: str, count: int, **more: Any) -> list[Any]:
        many = {"min_count": count, "max_count": count, "return_reservation_id": True, **more}
        reservation = self.nova.boot(self.name("many"), flavor, IMAGE, **many)["reservation_id"]

        def settled() -> list[Any]:
            found = self.nova.servers(reservation_id=reservation)
            return found if len(found) == count and all(is_settled(each) for each in found) else []

        return list(
            self.nova.until_true(settled, f"{count} servers of {reservation} are settled", BOOTS_WITHIN_S)
        )

    def delete(self, *servers: str) -> None:
        for server in servers:
            self.nova.ask("DELETE", f"/servers/{server}")
        for server in servers:
            self.nova.until_gone(server)

    def group(self, policy: str, **more: Any) -> Mapping[str, str]:
        """A hint that makes a server a member of this new group."""
        group = {"server_group": {"name": self.name("group"), "policy": policy, **more}}
        return {"group": self.nova.ask("POST", "/os-server-groups", group)["server_group"]["id"]}

    def members(self, policy: str, count: int) -> list[Any]:
        """One after another, of one group."""
        group = self.group(policy)
        return [self.started("small", hints=group) for _ in range(count)]

    def aggregate(self, host: str, zone: str | None = None, **metadata: str) -> None:
        made = {"aggregate": {"name": self.name("aggregate"), "availability_zone": zone}}
        path = f"/os-aggregates/{self.nova.ask('POST', '/os-aggregates', made)['aggregate']['id']}/action"
        if metadata:
            self.nova.ask("POST", path, {"set_metadata": {"metadata": metadata}})
        self.nova.ask("POST", path, {"add_host": {"host": host}})

    def end_aggregates(self) -> None:
        for each in self.nova.ask("GET", "/os-aggregates")["aggregates"]:
            for host in each["hosts"]:
                self.nova.ask("POST", f"/os-aggregates/{each['id']}/action", {"remove_host": {"host": host}})
            self.nova.ask("DELETE", f"/os-aggregates/{each['id']}")

    def set_service(self, *hosts: str, **changes: Any) -> None:
        for host in hosts:
            self.nova.ask("PUT", f"/os-services/{self.nova.service_of(host)['id']}", changes)

    def only(self, *hosts: str) -> None:
        """All other hosts are disabled, until the operation has ended."""
        others = [host for host in (*HOSTS, MORTAL) if host not in hosts]
        self.set_service(*others, status="disabled", disabled_reason="not for this operation")

    def clear(self) -> None:
        """Take all away that an operation has made, and let hosts be as they were."""
        self.delete(*(each["id"] for each in self.nova.servers()))
        for group in self.nova.ask("GET", "/os-server-groups")["server_groups"]:
            self.nova.ask("DELETE", f"/os-server-groups/{group['id']}")
        self.end_aggregates()
        for kind in ("ports", "subnets", "networks"):
            for row in self.neutron.get(f"/{kind}?fields=id").raise_for_status().json()[kind]:
                self.neutron.delete(f"/{kind}/{row['id']}").raise_for_status()
        for each in self.nova.services():
            status = "disabled" if each["host"] in FAILING else "enabled"
            if each["binary"] == "nova-compute" and (each["status"], each["forced_down"]) != (status, False):
                self.set_service(each["host"], status=status, forced_down=False)

    def migration_of(self, server: str) -> str:
        """The id under which the source holds what a move left there."""
        found = self.nova.ask("GET", f"/os-migrations?instance_uuid={server}")["migrations"]
        return str(max(found, key=lambda each: each["id"])["uuid"])


def is_settled(server: Mapping[str, Any]) -> bool:
    return server[TASK] is None and server["status"] in ("ACTIVE", "SHUTOFF", "ERROR")


def host_of(server: Mapping[str, Any]) -> str:
    return str(server["OS-EXT-SRV-ATTR:host"])


def spread(servers: Sequence[Mapping[str, Any]]) -> str:
    return f"{len(servers)} on {len({host_of(each) for each in servers})}, {statuses(servers)}"


def cell_of(host: str) -> str:
    return "cell" + host[1]


def held_at(held: Mapping[str, str], host: str, whose: str = "its") -> str:
    """What is held, in words; providers below the host are named by what follows its name."""
    return "; ".join(f"{held[name]} on {place_at(name, host, whose)}" for name in sorted(held)) or "nothing"


def place_at(provider: str, host: str, whose: str = "its") -> str:
    if provider == host:
        return f"{whose} host"
    below = provider.removeprefix(f"{host}:")
    return f"{whose} {below}" if below != provider else provider


def _place_in_words(resource: str) -> tuple[int, str]:
    return _FIRST.index(resource) if resource in _FIRST else len(_FIRST), resource


def state_of(cloud: Cloud, server: Mapping[str, Any]) -> str:
    """The state of a server and what it holds, in words."""
    holds = held_at(cloud.held(server["id"]), host_of(server))
    why = ""
    if server["status"] == "ERROR" and "fault" not in server:
        # Nova writes the state first, and then why.
        soon(lambda: "fault" in cloud.nova.server(server["id"]), wanted=True, within_s=5.0)
        server = cloud.nova.server(server["id"])
    if server["status"] == "ERROR" and "fault" in server:
        # After these words each scheduler has its own.
        said = server["fault"]["message"]
        why = f" ({NO_HOST})" if said.startswith(NO_HOST) else f" ({said.split('.')[0]})"
    return f"{server['status']}{why}, holds {holds}"


def audited(cloud: Cloud) -> str:
    # Exit code 3: orphans were found. 4: nothing was to be healed, 0: something was.
    audit = cloud.stack.manage("placement", "audit", "--verbose", allowed=(0, 3))
    heal = cloud.stack.manage("placement", "heal_allocations", "--verbose", allowed=(0, 4))
    found = [line for line in audit.splitlines() if "llocation" in line]
    healed = [line for line in heal.splitlines() if "uccessfully" in line]
    return f"audit: {' '.join(found) or 'nothing'}; heal_allocations: {' '.join(healed) or 'nothing'}"


def soon(asked: Callable[[], Any], wanted: Any, within_s: float = 30.0) -> Any:
    """What was seen last: the wanted, if it comes in time."""
    try:
        return wait_for(asked, holds=lambda found: found == wanted, within_s=within_s)
    except NeverTrueError:
        return asked()


def statuses(servers: Sequence[Mapping[str, Any]]) -> str:
    return "/".join(sorted({each["status"] for each in servers}))


SMALL = f"holds {FLAVOR_HOLDS} on its host"
NOTHING_FOUND = "audit: nothing; heal_allocations: nothing"
LARGE = f"holds {LARGE_HOLDS} on its host"
NO_HOST_FOUND = f"ERROR ({NO_HOST}), holds nothing"


class Operation(Struct, frozen=True):
    what: str
    expected: str
    seen: Callable[[Cloud], str]
