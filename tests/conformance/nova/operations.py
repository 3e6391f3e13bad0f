"""What is done to a Nova through its own API, and what must be seen then.

Each operation returns what was seen, in words without names that chance gives, so that two schedulers can be compared. All
are done on one cloud, one after another; each leaves nothing behind.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import httpx
from msgspec import Struct

from tests.conformance.nova.nova_api import NovaApi, NovaRefusedError
from tests.conformance.nova.stack import NotStartedError, NovaStack
from tests.conformance.nova.stub_services import IMAGE, OTHER_IMAGE

# Nova's fake driver of medium size: ten processors a host.
CELLS: Mapping[str, Sequence[str]] = {"cell1": ("c1h1", "c1h2", "c1h3"), "cell2": ("c2h1", "c2h2")}
HOSTS = tuple(host for hosts in CELLS.values() for host in hosts)
# In a process of its own, which dies.
MORTAL = "c1h4"
# Where each first build fails; disabled but for one operation.
FAILING = ("c2f1", "c2f2")
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "DEFAULT": {"compute_driver": "fake.MediumFakeDriver"},
    "filter_scheduler": {
        "enabled_filters": "ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,"
        "ServerGroupAffinityFilter,DifferentHostFilter,SameHostFilter,AggregateInstanceExtraSpecsFilter",
    },
}
FLAVOR_HOLDS = "VCPU 1, MEMORY_MB 64, DISK_GB 1"
LARGE_HOLDS = "VCPU 2, MEMORY_MB 128, DISK_GB 2"
BOOTS_WITHIN_S = 120.0
NO_HOST = "No valid host"


class Operation(Struct, frozen=True):
    what: str
    expected: str
    seen: Callable[["Cloud"], str]


class Outcome(Struct, frozen=True):
    what: str
    expected: str
    seen: str
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.seen == self.expected


class Cloud:
    """A stack, with what the operations need: flavors, questions about hosts and about what consumers hold."""

    def __init__(self, stack: NovaStack) -> None:
        self.stack = stack
        self.nova: NovaApi = stack.api
        self._placement = httpx.Client(
            base_url=stack.places.placement,
            headers={"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39"},
            timeout=60,
        )
        self._number = 0

    @cached_property
    def small(self) -> str:
        return self.nova.flavor("small", 1, 64, 1)

    @cached_property
    def large(self) -> str:
        return self.nova.flavor("large", 2, 128, 2)

    @cached_property
    def too_large(self) -> str:
        return self.nova.flavor("too-large", 11, 64, 1)

    @cached_property
    def half(self) -> str:
        """More than half of a host."""
        return self.nova.flavor("half", 6, 64, 1)

    @cached_property
    def fast(self) -> str:
        return self.nova.flavor("fast", 1, 64, 1, aggregate_instance_extra_specs__speed="fast")

    @cached_property
    def names(self) -> Mapping[str, str]:
        providers = self._placement.get("/resource_providers").json()["resource_providers"]
        return {each["uuid"]: each["name"] for each in providers}

    def name(self, what: str) -> str:
        self._number += 1
        return f"{what}-{self._number}"

    def held(self, consumer: str) -> dict[str, str]:
        """What a consumer holds, by the name of the host."""
        answer = self._placement.get(f"/allocations/{consumer}").json()
        return {
            self.names.get(provider, provider): ", ".join(
                f"{name} {each['resources'][name]}"
                for name in ("VCPU", "MEMORY_MB", "DISK_GB")
                if name in each["resources"]
            )
            for provider, each in answer["allocations"].items()
        }

    def used(self) -> dict[str, int]:
        """The sums of what is in use of each class, over all hosts."""
        sums: dict[str, int] = {}
        for provider in self.names:
            for name, amount in (
                self._placement.get(f"/resource_providers/{provider}/usages").json()["usages"].items()
            ):
                sums[name] = sums.get(name, 0) + amount
        return sums

    def started(self, flavor: str, **more: Any) -> Any:
        """A server that was booted and is settled, as Nova shows it."""
        return self.nova.until(self.boot(flavor, **more), "ACTIVE", within_s=BOOTS_WITHIN_S)

    def boot(self, flavor: str, **more: Any) -> str:
        return str(self.nova.boot(self.name("server"), flavor, IMAGE, **more)["server"]["id"])

    def boot_many(self, flavor: str, count: int, **more: Any) -> list[Any]:
        made = self.nova.boot(
            self.name("many"),
            flavor,
            IMAGE,
            min_count=count,
            max_count=count,
            return_reservation_id=True,
            **more,
        )
        reservation = made["reservation_id"]

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

    def group(self, policy: str, **more: Any) -> str:
        made = self.nova.ask(
            "POST",
            "/os-server-groups",
            {"server_group": {"name": self.name("group"), "policy": policy, **more}},
        )
        return str(made["server_group"]["id"])

    def end_group(self, group: str) -> None:
        self.nova.ask("DELETE", f"/os-server-groups/{group}")

    @contextmanager
    def aggregate(self, metadata: Mapping[str, str], *hosts: str) -> Iterator[int]:
        zone = metadata.get("availability_zone")
        made = self.nova.ask(
            "POST",
            "/os-aggregates",
            {"aggregate": {"name": self.name("aggregate"), "availability_zone": zone}},
        )
        number = int(made["aggregate"]["id"])
        path = f"/os-aggregates/{number}"
        more = {key: value for key, value in metadata.items() if key != "availability_zone"}
        try:
            if more:
                self.nova.ask("POST", f"{path}/action", {"set_metadata": {"metadata": more}})
            for host in hosts:
                self.nova.ask("POST", f"{path}/action", {"add_host": {"host": host}})
            yield number
        finally:
            for host in self.nova.ask("GET", path)["aggregate"]["hosts"]:
                self.nova.ask("POST", f"{path}/action", {"remove_host": {"host": host}})
            self.nova.ask("DELETE", path)

    def set_service(self, host: str, **changes: Any) -> None:
        self.nova.ask("PUT", f"/os-services/{self.nova.service_of(host)['id']}", changes)

    @contextmanager
    def only(self, *hosts: str) -> Iterator[None]:
        """All other hosts are disabled meanwhile."""
        others = [host for host in (*HOSTS, MORTAL) if host not in hosts]
        for host in others:
            self.set_service(host, status="disabled", disabled_reason="not for this operation")
        try:
            yield
        finally:
            for host in others:
                self.set_service(host, status="enabled")

    def migration_of(self, server: str) -> str:
        """The id under which the source holds what a move left there."""
        found = self.nova.ask("GET", f"/os-migrations?instance_uuid={server}")["migrations"]
        return str(max(found, key=lambda each: each["id"])["uuid"])


def is_settled(server: Mapping[str, Any]) -> bool:
    return server["OS-EXT-STS:task_state"] is None and server["status"] in ("ACTIVE", "SHUTOFF", "ERROR")


def host_of(server: Mapping[str, Any]) -> str:
    return str(server["OS-EXT-SRV-ATTR:host"])


def cell_of(host: str) -> str:
    return "cell" + host[1]


def _ended(cloud: Cloud, server: Mapping[str, Any]) -> str:
    """The state of a server and what it holds, in words."""
    held = cloud.held(server["id"])
    host = host_of(server)
    where = {host: "on its host"}
    holds = (
        "; ".join(f"{amounts} {where.get(name, f'on {name}')}" for name, amounts in sorted(held.items()))
        or "nothing"
    )
    why = ""
    if server["status"] == "ERROR" and "fault" not in server:
        # Nova writes the state first, and then why.
        _soon(lambda: "fault" in cloud.nova.server(server["id"]), wanted=True, within_s=5.0)
        server = cloud.nova.server(server["id"])
    if server["status"] == "ERROR" and "fault" in server:
        # After these words each scheduler has its own.
        said = server["fault"]["message"]
        why = f" ({NO_HOST})" if said.startswith(NO_HOST) else f" ({said.split('.')[0]})"
    return f"{server['status']}{why}, holds {holds}"


def boot(cloud: Cloud) -> str:
    server = cloud.started(cloud.small)
    seen = _ended(cloud, server)
    cloud.delete(server["id"])
    return f"{seen}; deleted, holds {cloud.held(server['id']) or 'nothing'}"


def boot_too_large(cloud: Cloud) -> str:
    server = cloud.started(cloud.too_large)
    seen = _ended(cloud, server)
    cloud.delete(server["id"])
    return seen


def multi_create(cloud: Cloud) -> str:
    servers = cloud.boot_many(cloud.small, 6)
    seen = {_ended(cloud, each) for each in servers}
    cloud.delete(*(each["id"] for each in servers))
    return f"{len(servers)}: {' / '.join(sorted(seen))}"


def multi_create_too_many(cloud: Cloud) -> str:
    # Six hosts have room for one such server each.
    servers = cloud.boot_many(cloud.half, 7)
    seen = {_ended(cloud, each) for each in servers}
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
    seen = f"6 members on {len(hosts)} hosts, {_statuses(servers)}; one more: {_ended(cloud, seventh)}"
    cloud.delete(*(each["id"] for each in (*servers, seventh)))
    cloud.end_group(group)
    return seen


def anti_affinity_at_once(cloud: Cloud) -> str:
    group = cloud.group("anti-affinity", rules={"max_server_per_host": 2})
    servers = cloud.boot_many(cloud.small, 8, hints={"group": group})
    hosts = [host_of(each) for each in servers]
    seen = f"at most {max(hosts.count(each) for each in hosts)} members on one host; {_statuses(servers)}"
    cloud.delete(*(each["id"] for each in servers))
    cloud.end_group(group)
    return seen


def affinity(cloud: Cloud) -> str:
    group = cloud.group("affinity")
    servers = [cloud.started(cloud.small, hints={"group": group}) for _ in range(3)]
    seen = f"3 members on {len({host_of(each) for each in servers})} host; {_statuses(servers)}"
    cloud.delete(*(each["id"] for each in servers))
    cloud.end_group(group)
    return seen


def soft_anti_affinity(cloud: Cloud) -> str:
    group = cloud.group("soft-anti-affinity")
    servers = [cloud.started(cloud.small, hints={"group": group}) for _ in range(7)]
    seen = f"7 members on {len({host_of(each) for each in servers})} hosts; {_statuses(servers)}"
    cloud.delete(*(each["id"] for each in servers))
    cloud.end_group(group)
    return seen


def aggregate_metadata(cloud: Cloud) -> str:
    with cloud.aggregate({"speed": "fast"}, "c1h2"):
        servers = [cloud.started(cloud.fast) for _ in range(2)]
    without = cloud.started(cloud.fast)
    seen = f"{sorted({host_of(each) for each in servers})}; without the aggregate: {_ended(cloud, without)}"
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
    seen = f"{host_of(server)}; too large for it: {_ended(cloud, large)}"
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


def disabled_services(cloud: Cloud) -> str:
    with cloud.only("c2h2"):
        servers = [cloud.started(cloud.small) for _ in range(3)]
    with cloud.only():
        none = cloud.started(cloud.small)
    seen = f"{sorted({host_of(each) for each in servers})}; all disabled: {_ended(cloud, none)}"
    cloud.delete(*(each["id"] for each in (*servers, none)))
    return seen


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
    seen = f"{_ended(cloud, server)}, {'a failing host' if is_there else host_of(server)}"
    cloud.delete(server["id"])
    return seen


def _moved(cloud: Cloud, *, flavor: str, move: tuple[str, Any], end: str) -> str:
    server = cloud.started(cloud.small)
    source = host_of(server)
    cloud.nova.act(server["id"], *move)
    there = cloud.nova.until(server["id"], "VERIFY_RESIZE")
    migration = cloud.held(cloud.migration_of(server["id"]))
    meanwhile = (
        f"{'elsewhere' if host_of(there) != source else 'at home'} in {'its' if cell_of(host_of(there)) == cell_of(source) else 'another'} cell, "
        f"{_ended(cloud, there)}, the source {migration.get(source, 'nothing')}"
    )
    cloud.nova.act(server["id"], end)
    ended = cloud.nova.until(server["id"], "ACTIVE")
    back = host_of(ended) == source
    left = cloud.held(cloud.migration_of(server["id"]))
    seen = f"{meanwhile}; {end}: {'back' if back else 'there'}, {_ended(cloud, ended)}, the move {left or 'nothing'}"
    cloud.delete(server["id"])
    assert flavor in (cloud.small, cloud.large)
    return seen


def resize_and_confirm(cloud: Cloud) -> str:
    return _moved(cloud, flavor=cloud.large, move=("resize", {"flavorRef": cloud.large}), end="confirmResize")


def resize_and_revert(cloud: Cloud) -> str:
    return _moved(cloud, flavor=cloud.large, move=("resize", {"flavorRef": cloud.large}), end="revertResize")


def migrate_and_confirm(cloud: Cloud) -> str:
    return _moved(cloud, flavor=cloud.small, move=("migrate", None), end="confirmResize")


def migrate_and_revert(cloud: Cloud) -> str:
    return _moved(cloud, flavor=cloud.small, move=("migrate", None), end="revertResize")


def migrate_to_a_host(cloud: Cloud) -> str:
    server = cloud.started(cloud.small, host="c1h1")
    cloud.nova.act(server["id"], "migrate", {"host": "c1h3"})
    there = cloud.nova.until(server["id"], "VERIFY_RESIZE")
    cloud.nova.act(server["id"], "confirmResize")
    seen = f"{host_of(there)}, {_ended(cloud, cloud.nova.until(server['id'], 'ACTIVE'))}"
    cloud.delete(server["id"])
    return seen


def resize_without_room(cloud: Cloud) -> str:
    server = cloud.started(cloud.small)
    source = host_of(server)
    cloud.nova.act(server["id"], "resize", {"flavorRef": cloud.too_large})
    after = cloud.nova.until(server["id"], "ACTIVE", "ERROR")
    seen = f"{'at home' if host_of(after) == source else 'elsewhere'}, {_ended(cloud, after)}"
    cloud.delete(server["id"])
    return seen


def live_migrate(cloud: Cloud) -> str:
    server = cloud.started(cloud.small, host="c1h1")
    cloud.nova.act(server["id"], "os-migrateLive", {"host": None, "block_migration": "auto"})

    def moved() -> Any:
        found = cloud.nova.server(server["id"])
        return found if found["OS-EXT-STS:task_state"] is None and host_of(found) != "c1h1" else None

    there = cloud.nova.until_true(moved, "it is elsewhere")
    left = _soon(lambda: cloud.held(cloud.migration_of(server["id"])), {})
    seen = f"{cell_of(host_of(there))}, {_ended(cloud, there)}, the move {left or 'nothing'}"
    cloud.nova.act(server["id"], "os-migrateLive", {"host": "c1h1", "block_migration": "auto"})

    def back() -> Any:
        found = cloud.nova.server(server["id"])
        return found if found["OS-EXT-STS:task_state"] is None and host_of(found) == "c1h1" else None

    again = cloud.nova.until_true(back, "it is back")
    _soon(lambda: cloud.held(cloud.migration_of(server["id"])), {})
    seen += f"; to a host that is named: {host_of(again)}, {_ended(cloud, again)}"
    cloud.delete(server["id"])
    return seen


def evacuate(cloud: Cloud) -> str:
    """The host dies; the instance is built elsewhere in its cell; the host comes back and lets go."""
    server = cloud.started(cloud.small, host=MORTAL)
    stack = cloud.stack
    process = next(each for each, hosts in stack.hosts.items() if MORTAL in hosts and stack.is_alive(each))
    stack.end(process, 9)
    cloud.set_service(MORTAL, forced_down=True)
    cloud.nova.act(server["id"], "evacuate", {})

    def evacuated() -> Any:
        found = cloud.nova.server(server["id"])
        return (
            found if is_settled(found) and (host_of(found) != MORTAL or found["status"] == "ERROR") else None
        )

    there = cloud.nova.until_true(evacuated, "it is elsewhere")
    beside = cloud.held(server["id"]).get(MORTAL, "nothing")
    meanwhile = f"{cell_of(host_of(there))}, {there['status']}, {beside} on {MORTAL} beside it"
    stack.start_computes("cell1", (MORTAL,))
    cloud.set_service(MORTAL, forced_down=False)
    held = _soon(lambda: [name for name in cloud.held(server["id"]) if name == MORTAL], [])
    cloud.nova.until_true(lambda: cloud.nova.service_of(MORTAL)["state"] == "up", f"{MORTAL} is up")
    seen = f"{meanwhile}; the host came back: {_ended(cloud, cloud.nova.server(server['id']))}{held or ''}"
    cloud.delete(server["id"])
    return seen


def shelve(cloud: Cloud) -> str:
    server = cloud.started(cloud.small)
    cloud.nova.act(server["id"], "shelve")
    shelved = cloud.nova.until(server["id"], "SHELVED_OFFLOADED")
    seen = _ended(cloud, shelved)
    cloud.nova.act(server["id"], "unshelve")
    again = cloud.nova.until(server["id"], "ACTIVE")
    seen += f"; unshelved: {_ended(cloud, again)}"
    cloud.nova.act(server["id"], "shelve")
    cloud.nova.until(server["id"], "SHELVED_OFFLOADED")
    other = "c1h2" if cell_of(host_of(again)) == "cell1" else "c2h1"
    cloud.nova.act(server["id"], "unshelve", {"host": other})
    named = cloud.nova.until(server["id"], "ACTIVE")
    seen += f"; to a host that is named: {'there' if host_of(named) == other else host_of(named)}, {_ended(cloud, named)}"
    cloud.delete(server["id"])
    return seen


def rebuild(cloud: Cloud) -> str:
    server = cloud.started(cloud.small)
    seen = []
    for image in (IMAGE, OTHER_IMAGE):
        cloud.nova.act(server["id"], "rebuild", {"imageRef": image})
        after = cloud.nova.until(server["id"], "ACTIVE")
        home = "at home" if host_of(after) == host_of(server) else "elsewhere"
        seen.append(
            f"{home}, {'that' if after['image']['id'] == image else 'another'} image, {_ended(cloud, after)}"
        )
    cloud.delete(server["id"])
    return "; another image: ".join(seen)


def audits(cloud: Cloud) -> str:
    """Nova's own audits, with servers of all kinds alive: one active, one resized, one shelved."""
    active, resized, shelved = (cloud.started(cloud.small)["id"] for _ in range(3))
    cloud.nova.act(resized, "resize", {"flavorRef": cloud.large})
    cloud.nova.until(resized, "VERIFY_RESIZE")
    cloud.nova.act(shelved, "shelve")
    cloud.nova.until(shelved, "SHELVED_OFFLOADED")
    # Exit code 3: orphans were found. 4: nothing was to be healed, 0: something was.
    audit = cloud.stack.manage("placement", "audit", "--verbose", allowed=(0, 3))
    heal = cloud.stack.manage("placement", "heal_allocations", "--verbose", allowed=(0, 4))
    found = [line for line in audit.splitlines() if "llocation" in line]
    healed = [line for line in heal.splitlines() if "uccessfully" in line]
    cloud.delete(active, resized, shelved)
    return f"audit: {' '.join(found) or 'nothing'}; heal_allocations: {' '.join(healed) or 'nothing'}"


def nothing_left(cloud: Cloud) -> str:
    left = {name: amount for name, amount in cloud.used().items() if amount}
    return f"in use: {left or 'nothing'}; servers: {len(cloud.nova.servers())}"


def _soon(asked: Callable[[], Any], wanted: Any, within_s: float = 30.0) -> Any:
    """What was seen last: the wanted, if it comes in time."""
    until_s = time.monotonic() + within_s
    while (found := asked()) != wanted and time.monotonic() < until_s:
        time.sleep(0.2)
    return found


def _statuses(servers: Sequence[Mapping[str, Any]]) -> str:
    return "/".join(sorted({each["status"] for each in servers}))


_SMALL = f"holds {FLAVOR_HOLDS} on its host"
_LARGE = f"holds {LARGE_HOLDS} on its host"
_NO_HOST = f"ERROR ({NO_HOST}), holds nothing"

OPERATIONS = (
    Operation("boot, delete", f"ACTIVE, {_SMALL}; deleted, holds nothing", boot),
    Operation("boot, larger than any host", _NO_HOST, boot_too_large),
    Operation("multi-create of 6", f"6: ACTIVE, {_SMALL}", multi_create),
    Operation("multi-create of 7, room for 6", f"7: {_NO_HOST}; in use: nothing", multi_create_too_many),
    Operation("multi-create of 6, room for 6", "6: ACTIVE, on 6 hosts", multi_create_that_fills),
    Operation(
        "server group: anti-affinity", f"6 members on 6 hosts, ACTIVE; one more: {_NO_HOST}", anti_affinity
    ),
    Operation(
        "server group: two a host, 8 at once", "at most 2 members on one host; ACTIVE", anti_affinity_at_once
    ),
    Operation("server group: affinity", "3 members on 1 host; ACTIVE", affinity),
    Operation("server group: soft anti-affinity", "7 members on 6 hosts; ACTIVE", soft_anti_affinity),
    Operation("aggregate with metadata", f"['c1h2']; without the aggregate: {_NO_HOST}", aggregate_metadata),
    Operation("availability zone", "zone: c2h1; zone and host: c1h3; an unknown zone: refused", zone),
    Operation("a host that is asked for", f"c1h3; too large for it: {_NO_HOST}", asked_host),
    Operation("hints", "different_host: apart; same_host: together", hints),
    Operation("disabled services", f"['c2h2']; all disabled: {_NO_HOST}", disabled_services),
    Operation("a service that is forced down", "['c2h2']", forced_down),
    Operation("a build fails: the alternate", f"ACTIVE, {_SMALL}, a failing host", reschedule),
    Operation(
        "resize, confirm",
        f"elsewhere in its cell, VERIFY_RESIZE, {_LARGE}, the source {FLAVOR_HOLDS}; confirmResize: there, ACTIVE, {_LARGE}, the move nothing",
        resize_and_confirm,
    ),
    Operation(
        "resize, revert",
        f"elsewhere in its cell, VERIFY_RESIZE, {_LARGE}, the source {FLAVOR_HOLDS}; revertResize: back, ACTIVE, {_SMALL}, the move nothing",
        resize_and_revert,
    ),
    Operation("resize, no room", f"at home, ACTIVE, {_SMALL}", resize_without_room),
    Operation(
        "migrate, confirm",
        f"elsewhere in its cell, VERIFY_RESIZE, {_SMALL}, the source {FLAVOR_HOLDS}; confirmResize: there, ACTIVE, {_SMALL}, the move nothing",
        migrate_and_confirm,
    ),
    Operation(
        "migrate, revert",
        f"elsewhere in its cell, VERIFY_RESIZE, {_SMALL}, the source {FLAVOR_HOLDS}; revertResize: back, ACTIVE, {_SMALL}, the move nothing",
        migrate_and_revert,
    ),
    Operation("migrate to a host", f"c1h3, ACTIVE, {_SMALL}", migrate_to_a_host),
    Operation(
        "live migrate",
        f"cell1, ACTIVE, {_SMALL}, the move nothing; to a host that is named: c1h1, ACTIVE, {_SMALL}",
        live_migrate,
    ),
    Operation(
        "evacuate",
        f"cell1, SHUTOFF, {FLAVOR_HOLDS} on {MORTAL} beside it; the host came back: SHUTOFF, {_SMALL}",
        evacuate,
    ),
    Operation(
        "shelve, unshelve",
        f"SHELVED_OFFLOADED, holds nothing; unshelved: ACTIVE, {_SMALL}; to a host that is named: there, ACTIVE, {_SMALL}",
        shelve,
    ),
    Operation(
        "rebuild",
        f"at home, that image, ACTIVE, {_SMALL}; another image: at home, that image, ACTIVE, {_SMALL}",
        rebuild,
    ),
    Operation(
        "nova-manage placement audit, heal_allocations",
        "audit: nothing; heal_allocations: nothing",
        audits,
    ),
    Operation("at the end", "in use: nothing; servers: 0", nothing_left),
)


def prepared(stack: NovaStack) -> Cloud:
    """Start the hosts that die and those that fail, too."""
    stack.start_computes("cell1", (MORTAL,))
    stack.start_computes("cell2", FAILING, driver="fake.FakeRescheduleDriver")
    stack.manage("cell_v2", "discover_hosts")
    cloud = Cloud(stack)
    for host in FAILING:
        cloud.set_service(host, status="disabled", disabled_reason="fails")
    return cloud


def done(cloud: Cloud, operation: Operation) -> Outcome:
    began_s = time.monotonic()
    try:
        seen = operation.seen(cloud)
    except (NovaRefusedError, NotStartedError, TimeoutError, httpx.HTTPError, LookupError) as problem:
        seen = f"{type(problem).__name__}: {problem}"
        _clear(cloud)
    return Outcome(operation.what, operation.expected, seen, time.monotonic() - began_s)


def _clear(cloud: Cloud) -> None:
    """After a failed operation, for the next ones."""
    for server in cloud.nova.servers():
        cloud.nova.ask("DELETE", f"/servers/{server['id']}")
    for host in (*HOSTS, MORTAL):
        cloud.set_service(host, status="enabled", forced_down=False)
