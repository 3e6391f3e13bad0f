"""What people do at a running cloud, by command: they move instances, evacuate hosts, call instances by their names and the beginning of their
ids, give hosts devices, and act on many things at once.
"""

import json
from collections import Counter
from operator import itemgetter
from pathlib import Path
from typing import Any

from bus import message
from bus.addresses import broker_at
from bus.message import Parcel
from bus.topology import DEAD
from laboratory.computes.hosts import HostSize
from tests.contracts.stage import send
from tests.stories.moor.moor_process import started, up
from tests.waiting import until

FIRST, SECOND = (f"harbour-host-0000{number}" for number in (1, 2))


async def test_a_person_moves_an_instance_and_sees_how_each_move_ended(home: Path) -> None:
    async with up(home, "--cells", "harbour", "--hosts", "2") as cloud:
        boot = ("boot", "--vcpus", "1", "--ram", "64", "--disk", "1", "--host", FIRST)
        (id_,) = [each["id"] for each in (await cloud.json(*boot))["instances"]]

        there = await cloud.json("migrate", id_)
        assert (there["state"], there["host"]) == ("moved", SECOND)
        going = await cloud.json("migration", "list", "--host", SECOND)
        assert [(each["instance"], each["what"], each["outcome"]) for each in going] == [(id_, "migrate", "")]
        back = await cloud.json("migration", "revert", id_)
        assert (back["state"], back["host"], back["move"]["outcome"]) == ("active", FIRST, "reverted")
        await cloud.says(1, "rejected: how is 'confirm': the move is reverted", "migration", "confirm", id_)

        (before,) = await cloud.json("show", id_)
        assert before["size"] == {"flavor": "", "amounts": {"VCPU": 1, "MEMORY_MB": 64, "DISK_GB": 1}}
        larger = ("resize", id_, "--vcpus", "2", "--to", FIRST)
        assert (await cloud.json(*larger))["host"] == FIRST
        assert (await cloud.json("migration", "confirm", id_))["move"]["outcome"] == "confirmed"
        (listed,) = await cloud.json("list")
        assert listed["size"]["amounts"] == {"VCPU": 2, "MEMORY_MB": 64, "DISK_GB": 1}
        assert (
            listed["accepted_at"] <= listed["placed_at"] <= listed["move_placed_at"] <= listed["changed_at"]
        )
        size = "2 VCPU, 64 MEMORY_MB, 1 DISK_GB"
        await cloud.says(0, size, "list", "-o", "wide")
        await cloud.says(0, (size, "accepted", "placed", "last moved", "since"), "show", id_)
        (holder,) = await cloud.json("provider", "holders", FIRST)
        held = {each["resource"]: each["amount"] for each in holder["held"]}
        assert held == {"VCPU": 2, "MEMORY_MB": 64, "DISK_GB": 1}
        live = await cloud.json("live-migrate", id_)
        assert (live["state"], live["host"]) == ("active", SECOND)
        rebuild = ("rebuild", id_, "--image", "http://images/arch")
        rebuilt = await cloud.json(*rebuild)
        assert (rebuilt["state"], rebuilt["host"]) == ("active", SECOND)
        assert (await cloud.json("shelve", id_))["state"] == "shelved"
        await cloud.says(1, "it is shelved: only an active instance can be rebuilt", *rebuild)
        await cloud.says(1, "it is shelved: to migrate, it must be active", "migrate", id_)
        assert (await cloud.json("unshelve", id_))["state"] == "active"
        away = await cloud.json("shelve", id_, "--offload")
        assert (away["state"], away["host"], away["keeps_share"]) == ("offloaded", "", False)
        named = await cloud.json("unshelve", id_, "--to", FIRST)
        assert (named["state"], named["host"]) == ("active", FIRST)

        history = await cloud.json("history", id_)
        assert [(each["what"], each["outcome"]) for each in history] == [
            ("boot", "active"),
            ("migrate", "reverted"),
            ("resize", "confirmed"),
            ("live-migrate", "confirmed"),
            ("rebuild", "done"),
            ("shelve", "done"),
            ("unshelve", "done"),
            ("offload", "done"),
            ("unshelve", "done"),
        ]
        sizes = [each["size"] and each["size"]["amounts"]["VCPU"] for each in history]
        assert sizes == [1, None, 2, *[None] * 6]
        await cloud.says(0, "reverted", "migration", "show", id_)
        await cloud.says(0, "no moves", "migration", "list")
        await cloud.says(0, "no faults", "audit", "--settle", "0")


async def test_a_person_has_moves_wait_for_room_and_sees_why(home: Path) -> None:
    whole = ("boot", "--vcpus", "1", "--ram", str(HostSize().ram_mb * 6 // 10), "--disk", "1", "--host")

    async with up(home, "--cells", "harbour", "--hosts", "2") as cloud:
        saved = (await cloud.json(*whole, FIRST))["instances"][0]["id"]
        await cloud.json("shelve", saved, "--offload")
        full, lost = [(await cloud.json(*whole, host))["instances"][0]["id"] for host in (FIRST, SECOND)]

        async def shown(instance: str) -> dict[str, Any]:
            found: list[dict[str, Any]] = await cloud.json("show", instance)
            return found[0]

        await cloud.says(2, "nothing waits", "unshelve", saved, "--priority", "5")
        await cloud.says(1, "no valid host", "unshelve", saved)
        order = ("unshelve", saved, "--wait-for-room", "600", "--priority", "5")
        told = await cloud.json(*order, "--no-wait")
        assert (told["state"], told["waiting"]["priority"]) == ("offloaded", 5)
        why = ("for room to unshelve, since ", "with priority 5: no host among 2", "unshelve: waits for room")
        await cloud.says(0, why, "show", saved)
        for words in (("list",), ("explain", saved)):
            await cloud.says(0, "waits for room to unshelve", *words)
        (going,) = await cloud.json("migration", "list")
        assert (going["outcome"], going["failure"].partition(" until ")[0]) == ("waiting", "waits for room")

        # Its evacuation waits by itself, goes before the other, and is still done when the command has ended.
        await cloud.json("host", "set", SECOND, "down")
        evacuate = ("evacuate", SECOND, "--yes")
        await cloud.says(1, "its move waits for room until", *evacuate, "--timeout", "3")
        await cloud.says(1, "wait for its end", *evacuate, "--wait-for-room", "0")
        await cloud.json("delete", full, "--wait")
        await until(
            lambda: shown(lost),
            f"it is active on {FIRST}",
            lambda state: (state["host"], state["state"]) == (FIRST, "active"),
        )
        assert (await shown(saved))["state"] == "offloaded"

        aborted = await cloud.json("migration", "abort", saved)
        assert (aborted["state"], aborted["move"]["outcome"], aborted["waiting"]) == (
            "offloaded",
            "aborted",
            None,
        )
        history = await cloud.json("history", saved)
        assert [(each["what"], each["outcome"]) for each in history] == [
            ("boot", "active"),
            ("offload", "done"),
            ("unshelve", "aborted"),
        ]
        async with started("unshelve", saved, "--wait-for-room", "600", **cloud.environment) as waiting:
            await until(lambda: shown(saved), "it waits", itemgetter("waiting"))
            await cloud.json("delete", lost, "--wait")
            done = await waiting.ended()
        assert (done.code, FIRST in done.out) == (0, True)


async def test_a_person_works_with_names_from_boot_to_delete(home: Path) -> None:
    size = ("--vcpus", "1", "--ram", "64")
    async with up(home, "--cells", "harbour", "--hosts", "3") as cloud:
        (web,) = (await cloud.json("boot", *size, "--name", "web"))["instances"]
        many = (await cloud.json("boot", *size, "--name", "db", "--count", "2"))["instances"]
        request = many[0]["request_id"]

        assert [each["id"] for each in await cloud.json("show", "web")] == [web["id"]]
        # The beginning of an id differs from those of the others made at the same time only behind the time.
        short = next(web["id"][:end] for end in range(4, 37) if not request.startswith(web["id"][:end]))
        assert [each["id"] for each in await cloud.json("show", short)] == [web["id"]]
        # A request's id differs from those of its instances behind 12 digits.
        ids = {each["name"]: each["id"] for each in many}
        assert {each["name"]: each["id"] for each in await cloud.json("show", request[:15])} == ids
        assert [each["id"] for each in await cloud.json("list", "--name", "db-2")] == [ids["db-2"]]
        first = await cloud.run("list", "--limit", "2")
        assert first.err == "older than these: 1; a higher --limit shows them\n"

        await cloud.json("resize", "web", "--vcpus", "2")
        assert (await cloud.json("migration", "revert", "web"))["id"] == web["id"]
        assert [each["what"] for each in await cloud.json("history", "web")] == ["boot", "resize"]
        assert (await cloud.json("explain", "web"))["explanations"][0]["state"]["id"] == web["id"]

        await cloud.json("aggregate", "create", "rack")
        await cloud.json("aggregate", "add", "rack", web["host"])
        group = await cloud.json("group", "create", "pair", "--policy", "soft-affinity")
        near = ("--group", "pair", "--same-host", "web", "--aggregate", "rack")
        (beside,) = (await cloud.json("boot", *size, "--name", "web", *near))["instances"]
        assert beside["host"] == web["host"]
        assert (await cloud.json("group", "show", group["id"][:8]))["size"] == 1

        for words in (("delete", "web"), ("migrate", "db-1", "web"), ("boot", *size, "--same-host", "web")):
            await cloud.says(1, (f"{web['id']}  web  active", f"{beside['id']}  web  active"), *words)
        await cloud.says(1, "there is no instance 'db-1'", "migrate", "db-1", "--project", "another")
        await cloud.says(1, "'nobody', so nothing was done", "delete", "db-1", "nobody")
        assert {each["state"] for each in await cloud.json("list")} == {"active"}

        for name in (web["id"], "web", "db-1"):
            await cloud.json("delete", name, "--wait")
        assert [each["state"] for each in await cloud.json("show", "db-1")] == ["deleted"]
        assert (await cloud.json("group", "delete", "pair"))["id"] == group["id"]


async def test_an_operator_gives_hosts_devices_that_are_found_and_given_with_a_pools_disk(home: Path) -> None:
    async with up(home, "--cells", "harbour", "--hosts", "2", "--pool", "nfs:DISK_GB=50") as cloud:
        made = await cloud.json("provider", "create", "gpu0", "--parent", FIRST)
        assert (made["name"], made["cell"]) == ("gpu0", "harbour")
        for order in (
            ("inventory", "gpu0", "PGPU=4,reserved=1", "VGPU=8,max=2,ratio=1.5"),
            ("traits", "gpu0", "HW_GPU_API_VULKAN"),
            ("aggregates", "gpu0", made["id"]),
        ):
            await cloud.says(0, "", "provider", "set", *order)
        shown = ("below       harbour-host-00001", "VGPU   0/12", "1 to 2")
        await cloud.says(0, shown, "provider", "show", "gpu0")
        await cloud.says(0, "└── gpu0  PGPU 0/3  VGPU 0/12  HW_GPU_API_VULKAN", "provider", "tree", "gpu0")

        asked = ("candidates", "VCPU=1", "--group", "_GPU PGPU=2 HW_GPU_API_VULKAN")
        (found,) = await cloud.json(*asked)
        assert found["mappings"]["_GPU"] == [made["id"]]
        await cloud.says(0, f"{FIRST}: 1 VCPU; gpu0: 2 PGPU for _GPU", *asked)

        await cloud.json("boot", "--vcpus", "3", "--name", "web", "--project", "shop")
        (used,) = await cloud.json("quota", "usage", "shop")
        assert (used["type"], used["consumers"], used["used"]["VCPU"]) == ("INSTANCE", 1, 3)
        held = [
            holder for host in (FIRST, SECOND) for holder in await cloud.json("provider", "holders", host)
        ]
        assert [(holder["project"], holder["type"]) for holder in held] == [("shop", "INSTANCE")]

        # A port of a network card and a volume of a pool.
        await cloud.json("provider", "create", "nic", "--parent", SECOND)
        await cloud.json("provider", "trait", "create", "CUSTOM_PHYSNET_PUBLIC")
        await cloud.json("provider", "set", "traits", "nic", "CUSTOM_PHYSNET_PUBLIC")
        await cloud.json("provider", "set", "inventory", "nic", "NET_BW_EGR_KILOBIT_PER_SEC=150")

        port = ("--port", "p1 NET_BW_EGR_KILOBIT_PER_SEC=100 network=public")
        boot = ("boot", "--vcpus", "1", *port, "--volume", "v1 DISK_GB=20")
        (booted,) = (await cloud.json(*boot))["instances"]
        assert (booted["state"], booted["host"]) == ("active", SECOND)
        for provider, amount in (("nic", 100), ("harbour-nfs", 20)):
            (holder,) = await cloud.json("provider", "holders", provider)
            amounts = [each["amount"] for each in holder["held"]]
            assert (holder["id"], amount in amounts) == (booted["id"], True)
        await cloud.says(1, "port p1: NET_BW_EGR_KILOBIT_PER_SEC asked 100, free 50 of 150", *boot)


async def test_names_and_filters_are_not_mixed_and_one_refusal_stops_nothing(home: Path) -> None:
    async with up(home, "--cells", "a,b", "--hosts", "2", "--nodes", "1") as cloud:
        for both in (
            ("host", "set", "a-host-00001", "--cell", "b", "draining"),
            ("host", "delete", "a-host-00001", "--cell", "b"),
            ("host", "set", "a-host-00001", "--down", "draining"),
            ("delete", "web", "--part", "web"),
            ("dead", "delete", "0123", "--all"),
        ):
            await cloud.says(2, "give one or the other", *both)

        # A host that is heard is not set dead without a word; the others are.
        draining = await cloud.run("host", "set", "a-host-00001", "draining", "-o", "json")
        assert "uses" not in json.loads(draining.out)
        hosts = ("a-host-00002", "nowhere", "b-host-00001")
        some = await cloud.run("host", "set", *hosts, "dead", "-o", "json")
        assert (some.code, json.loads(some.out)) == (1, [])
        assert all(
            each in some.err for each in ("a-host-00002 was heard", "no host", "b-host-00001 was heard")
        )
        others = await cloud.says(1, "no host", "host", "set", *hosts, "down", "-o", "json")
        assert [each["name"] for each in json.loads(others.out)] == [hosts[0], hosts[2]]
        by_id = json.loads(others.out)[0]["id"]
        assert (await cloud.json("host", "show", by_id))["name"] == "a-host-00002"
        assert (await cloud.json("host", "set", by_id, "up"))["setting"]["mode"] == "up"

        # No text is no name.
        await cloud.says(1, "there is no node ''", "node", "power", "off", "")

        await cloud.run("group", "create", "web", "--policy", "affinity")
        assert len((await cloud.run("group", "delete", "web", "-o", "name")).out.split()) == 1

        letters = [
            Parcel(DEAD, "compute.a.work", b"{}", headers={message.REASON: str(each)}) for each in range(5)
        ]
        await send(broker_at(cloud.url), *letters)
        told = ("deleted 3", "2 dead letters are left")
        await cloud.says(0, told, "dead", "delete", "--all", "--limit", "3")


async def test_a_host_with_a_larger_affinity_group_than_one_order_moves_is_emptied(home: Path) -> None:
    """All come to one host, which has room for all; what the scheduler would choose for the first hundred has not."""
    size = ("--host-size", "vcpus=64", "--scheduler", "instances_per_host_max=1000")
    first, narrow, wide = (f"c1-host-0000{number}" for number in (1, 2, 3))
    async with up(home, "--cells", "c1", "--hosts", "3", *size) as cloud:
        await cloud.run("group", "create", "all", "--policy", "affinity")
        for host, *sizes in (
            (narrow, "--vcpus", "140"),
            (wide, "--vcpus", "1", "--ram", "100000", "--disk", "1500"),
            (first, "--vcpus", "1", "--ram", "1", "--count", "130", "--group", "all"),
        ):
            await cloud.says(0, "", "boot", "--host", host, *sizes)
        assert {
            each["to"] for each in (await cloud.json("campaign", "plan", "drain", first))["movements"]
        } == {wide}

        await cloud.says(0, "130 of 130 instances have left", "host", "drain", first)
        hosts = await cloud.json("list", "--limit", "200")
        assert Counter(each["host"] for each in hosts) == {narrow: 1, wide: 131}
