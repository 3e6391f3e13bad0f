"""Bare metal by command, each as a process of its own: `moor up --nodes`, `moor boot`, `moor status`; `moor node`, by which nodes are taken over and
given back; and `moor node ring`, which shows and drains the daemons that share them.
"""

import asyncio
import json
import os
import re
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from msgspec import structs

from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId
from ironic_sync.core.node import Node
from ironic_sync.core.rows import Deployed, NodeRow, Offer
from ironic_sync.membership import Membership
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import IronicStore
from kit.sql import upgrade
from moor.bare_metal.adopt_command import Adoption, rows_in_file
from tests.contracts.sql_stores import empty_database
from tests.stories.moor.moor_process import Said, Up, a_terminal, moor_json, moor_says, started_at, up
from tests.waiting import until

VERSION = {"X-OpenStack-Ironic-API-Version": "1.82"}
UNDEPLOY = ("node", "undeploy", "--settle", "0")
DEBIAN = ("--image", "http://images/debian", "--image-checksum", "0a1b")


class Metal:
    """A cloud with nodes, and its Ironic as its own operators reach it."""

    def __init__(self, cloud: Up, ironic: httpx.AsyncClient) -> None:
        self.cloud, self._ironic = cloud, ironic

    async def nodes(self) -> list[str]:
        return [each["id"] for each in await self.cloud.json("node", "list")]

    async def read(self, node: str, what: str = "") -> Any:
        return (await self._ironic.get(f"/v1/nodes/{node}{what}")).raise_for_status().json()

    async def patch(self, node: str, **values: object) -> None:
        operations = [{"op": "add", "path": f"/{name}", "value": value} for name, value in values.items()]
        (await self._ironic.patch(f"/v1/nodes/{node}", json=operations)).raise_for_status()

    async def provision(self, target: str, *nodes: str) -> None:
        """Order it of Ironic, and wait until the nodes are so."""
        for node in nodes:
            order = await self._ironic.put(f"/v1/nodes/{node}/states/provision", json={"target": target})
            order.raise_for_status()
        for node in nodes:
            await self.until_state(node, "available" if target == "deleted" else target)

    async def until_state(self, node: str, state: str) -> None:
        await until(
            lambda: self.cloud.json("node", "show", node),
            f"node {node} is {state}",
            lambda found: found["ironic"]["provision_state"] == state,
        )

    async def faults(self) -> list[tuple[str, str]]:
        ran = await self.cloud.run("audit", "--settle", "0", "-o", "json")
        lines = [json.loads(line) for line in ran.out.splitlines()]
        assert (ran.code, ran.err) == (4 if len(lines) > 1 else 0, "")
        return [(each["fault"], each["about"]) for each in lines[:-1]]


@asynccontextmanager
async def metal(home: Path, nodes: int) -> AsyncIterator[Metal]:
    async with up(home, "--hosts", "2", "--nodes", str(nodes)) as cloud:
        url = (home / "moorage" / "ironic.url").read_text().strip()
        async with httpx.AsyncClient(base_url=url, headers=VERSION) as ironic:
            yield Metal(cloud, ironic)


async def ring(cloud: Up) -> dict[str, int]:
    """How many nodes each live daemon owns."""
    shown = await cloud.json("node", "ring")
    return {each["name"]: each["nodes"] for each in shown["daemons"] if each["state"] == "alive"}


async def nodes_up(cloud: Up) -> list[tuple[str, str]]:
    hosts = await cloud.json("host", "list")
    return [(host["name"], host["cell"]) for host in hosts if host["kind"] == "ironic" and host["up"]]


async def test_a_cloud_has_nodes_that_daemons_share_and_that_outlive_a_kill(home: Path) -> None:
    async with up(home, "--nodes", "6", "--daemons", "2") as cloud:
        before = await nodes_up(cloud)
        assert sorted(cell for _, cell in before) == ["harbour"] * 3 + ["island"] * 3
        shared = await ring(cloud)
        assert ({*shared}, sum(shared.values())) == ({"ironic-1", "ironic-2"}, 6)
        cloud.process.send_signal(signal.SIGKILL)
        await cloud.process.ended()

    async with up(home, "--nodes", "7", "--daemons", "1") as cloud:
        # The new daemons do not wait for the leases of the previous ones.
        assert "ironic-2" not in await ring(cloud)

        await until(lambda: ring(cloud), "one daemon owns all nodes", lambda found: found == {"ironic-1": 7})
        assert {*before} < {*await nodes_up(cloud)}


async def test_a_node_is_built_on_and_given_back_and_one_deployed_for_nobody_is_released(home: Path) -> None:
    """The instance of the second was deleted while the order of a daemon that stood still was on its way to Ironic."""
    drive = home / "drive.gz"
    drive.write_bytes(b"\x1f\x8b a zipped image")
    async with metal(home, 2) as here:
        cloud = here.cloud
        ports = ("--port", "port-1", "--port", "port-2")
        boot = ("boot", "--flavor", "metal", "--name", "m", *DEBIAN, "--config-drive", str(drive), *ports)
        (instance,) = (await cloud.json(*boot))["instances"]
        id_, node = instance["id"], instance["host"]
        shown = await here.read(node)
        assert (instance["state"], shown["provision_state"], shown["instance_uuid"]) == (
            "active",
            "active",
            id_,
        )
        info = shown["instance_info"]
        assert (info["image_source"], info["image_checksum"]) == ("http://images/debian", "0a1b")
        # Ironic shows the instance on the node.
        assert info["configdrive"] == "******"

        fedora = ("--image", "http://images/fedora", "--image-checksum", "1b2c")
        for _ in range(2):
            rebuilt = await cloud.json("rebuild", id_, *fedora, "--request-id", str(UUID(int=7)))
            assert (rebuilt["state"], rebuilt["host"]) == ("active", node)
            assert rebuilt["rebuild"]["image"]["source"] == "http://images/fedora"
            assert rebuilt["rebuild"]["number"] < rebuilt["sequence"]
        assert (await here.read(node))["instance_info"]["image_source"] == "http://images/fedora"
        assert sorted(each["id"] for each in (await here.read(node, "/vifs"))["vifs"]) == ["port-1", "port-2"]
        await cloud.says(0, "http://images/fedora", "show", id_)

        (deleted,) = await cloud.json("delete", id_, "--wait")
        assert deleted["state"] == "deleted"
        await cloud.says(1, f"rejected: instance is '{id_}': it is deleted", "rebuild", id_, *fedora)

        await until(
            lambda: cloud.json("node", "show", node),
            "the node is clean and offered again",
            lambda found: found["offered"]["amount"] == 1,
        )

        await here.provision("active", node)
        assert await here.faults() == [("deployed for nobody", "")]
        trouble = (
            "Ironic and the books disagree about 1 bare-metal nodes",
            "has no instance there: `moor node undeploy` releases it",
        )
        await cloud.says(1, trouble, "status", "-o", "json")
        told = await cloud.says(0, "has no instance there", "node", "show", node)
        assert "an instance runs" not in told.out
        await cloud.says(0, "", *UNDEPLOY, "--yes", node)
        await here.until_state(node, "available")
        assert await here.faults() == []


# Some twenty commands, each a process: 77 s beside seven others on two cores.
@pytest.mark.timeout(300)
async def test_an_instance_that_only_ironic_has_is_found_by_an_audit_and_undeployed(home: Path) -> None:
    stray = str(UUID(int=404))
    async with metal(home, 2) as here:
        cloud = here.cloud
        (instance,) = (await cloud.json("boot", "--flavor", "metal", "--name", "db", *DEBIAN))["instances"]
        own = (await cloud.json("node", "show", "db"))["id"]
        assert own == instance["host"]
        (other,) = {*await here.nodes()} - {own}
        assert await here.faults() == []

        await here.patch(other, instance_uuid=stray)
        await here.provision("active", other)
        assert await here.faults() == [("stray on node", stray)]

        takes_off = f"`moor delete {instance['id']}` takes it off: nothing was done"
        await cloud.says(1, takes_off, *UNDEPLOY, "--yes", "db", other)
        await cloud.says(1, "say so with --yes", *UNDEPLOY, other)
        await cloud.says(0, "", *UNDEPLOY, "--yes", other)
        assert await here.faults() == []
        await here.until_state(other, "available")
        nothing = await cloud.run(*UNDEPLOY, "--yes", other)
        assert "has no instance in Ironic, so nothing was done" in nothing.err

        # An operator takes the instance off in Ironic.
        await here.provision("deleted", own)
        assert await here.faults() == [("lost", instance["id"])]
        # Its name stands for no node any more.
        await cloud.says(1, "there is no node 'db'", "node", "power", "off", "db")


ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "bare-metal.md"
SCHEMA = ROOT / "tests" / "nova" / "schemas" / "cell.sql"
IDS = [str(UUID(int=(each << 64) + 404)) for each in range(1, 5)]


async def adopt(here: Metal, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    ran = await here.cloud.run("node", "adopt", *arguments, "-o", "json")
    assert ran.code == code, (ran.out, ran.err)
    found: list[dict[str, Any]] = json.loads(ran.out)
    return found


async def test_deployed_nodes_are_adopted_many_at_once_and_given_back_as_they_are(home: Path) -> None:
    async with metal(home, 5) as here:
        nodes = await here.nodes()
        for node, id_ in zip(nodes, IDS, strict=False):
            await here.patch(node, instance_uuid=id_)
        await here.patch(nodes[0], lessee="shop", instance_info={"display_name": "db-1"})
        await here.patch(nodes[1], owner="till")
        await here.provision("active", *nodes)
        assert {each for each, _ in await here.faults()} == {
            "stray on node",
            "deployed for nobody",
        }

        # Looked at first: two have no project, and the last no instance.
        planned = await adopt(here, "--all", "--dry-run", code=1)
        assert {each["instance"]: each["stage"] for each in planned} == dict(
            zip(IDS, ["to be adopted", "to be adopted", "kept back", "kept back"], strict=True)
        )
        assert {each["node"]: (each["project"], each["name"]) for each in planned}[nodes[0]] == (
            "shop",
            "db-1",
        )
        assert {each["reason"] for each in planned[2:]} == {"Ironic names no lessee or owner: give --project"}
        assert len(await here.faults()) == 5

        table = home / "nodes.csv"
        table.write_text(f"node,project,name\n{nodes[0]},,\n{nodes[1]},shop,front\n", encoding="utf-8")
        done = await adopt(here, "--file", str(table))
        assert [(each["stage"], each["project"], each["name"]) for each in done] == [
            ("adopted", "shop", "db-1"),
            ("adopted", "shop", "front"),
        ]
        rest = await adopt(here, "--all", "--project", "till", "--user", "ann")
        assert [each["stage"] for each in rest] == ["adopted"] * 2
        kept = await adopt(here, nodes[4], "--project", "till", code=1)
        assert "Ironic has no instance on it: set its instance_uuid there" in kept[0]["reason"]
        await here.patch(nodes[4], instance_uuid=str(UUID(int=505)))
        (new,) = await adopt(here, nodes[4], "--project", "till")
        assert new["stage"] == "adopted"
        again = await adopt(here, *nodes[2:], "--project", "till")
        assert [each["stage"] for each in again] == ["adopted"] * 3
        (other,) = await adopt(here, nodes[0], "--project", "till", code=1)
        assert other["reason"] == "it was adopted before, for project 'shop'"
        assert await here.faults() == []
        listed = await here.cloud.json("list")
        assert {(each["id"], each["state"]) for each in listed} == {
            (id_, "active") for id_ in (*IDS, new["instance"])
        }

        # One is as any other is.
        await here.cloud.says(0, "", "delete", "db-1", "--yes")
        await here.until_state(nodes[0], "available")
        back = await adopt(here, "front", "--give-back")
        assert [(each["stage"], each["instance"]) for each in back] == [("given back", IDS[1])]
        states = [each["ironic"]["provision_state"] for each in await here.cloud.json("node", "list")]
        assert states == ["available", *["active"] * 4]


async def test_the_page_makes_the_file_from_the_database_of_a_nova(tmp_path: Path) -> None:
    (sql,) = re.findall(r'mysql --batch nova -e "(.*?)"', PAGE.read_text(encoding="utf-8"))
    with closing(sqlite3.connect(":memory:")) as nova:
        nova.executescript(SCHEMA.read_text(encoding="utf-8"))
        nova.execute(
            "INSERT INTO instances (uuid, node, project_id, user_id, hostname, vm_state, host, deleted)"
            " VALUES (?, 'n-1', 'shop', 'ann', 'db-1', 'active', 'NOVA_COMPUTE', 0)",
            (IDS[0],),
        )
        found = nova.execute(sql)
        rows = [[each[0] for each in found.description], *found]
    file = tmp_path / "nodes.csv"
    file.write_text("\n".join(",".join(row) for row in rows), encoding="utf-8")

    (row,) = rows_in_file(file, Adoption(flavor="gold"))

    assert row == Adoption(
        node="n-1", instance=UUID(IDS[0]), project="shop", user="ann", name="db-1", flavor="gold"
    )


async def test_wrong_words_change_nothing_and_what_is_adopted_while_an_operator_is_asked_is_not_undeployed(
    home: Path,
) -> None:
    """The books were looked at before the question, and somebody lives there by the answer."""
    async with metal(home, 1) as here:
        (node,) = await here.nodes()
        (free,) = await adopt(here, node, "--project", "shop", code=1)
        assert "it is 'available' in Ironic, and must be 'active'" in free["reason"]
        (other,) = await adopt(here, node, "--project", "shop", "--flavor", "small", code=1)
        assert "flavor 'small' is none for it" in other["reason"]
        wrong = home / "nodes.json"
        wrong.write_text(f'[{{"node": "{node}", "projekt": "shop"}}]', encoding="utf-8")
        for arguments, words in (
            ((), "give nodes, or --file, or --all"),
            (("--all", node), "give nodes, or --file, or --all"),
            (("--file", str(wrong)), "projekt"),
            (("--all", "--give-back"), "--give-back is for nodes"),
        ):
            await here.cloud.says(2, words, "node", "adopt", *arguments)

        await here.patch(node, instance_uuid=IDS[0])
        await here.provision("active", node)
        with a_terminal() as (keyboard, terminal):
            async with started_at(terminal, *UNDEPLOY, node, **here.cloud.environment) as process:
                await process.until_printed_to_stderr(f"this takes instance {IDS[0]} off node")
                (adopted,) = await adopt(here, node, "--project", "shop")
                assert adopted["stage"] == "adopted"
                os.write(keyboard, b"y\n")
                ran = await process.ended()

        told = f"instance {IDS[0]} was just adopted on node {node}: nothing was done"
        assert (ran.code, told in ran.err) == (1, True), ran.err
        shown = await here.cloud.json("node", "show", node)
        assert (shown["ironic"]["provision_state"], shown["lives"]) == ("active", IDS[0])
        assert (await here.cloud.json("show", IDS[0]))[0]["state"] == "active"
        assert await here.faults() == []


class Served:
    def __init__(self, url: str, store: IronicStore) -> None:
        self.url = url
        self.store = store

    async def save(self, *rows: NodeRow) -> None:
        async with self.store.transaction() as tx:
            await tx.save(rows)

    async def json(self, *words: str) -> Any:
        return await moor_json("node", "ring", *words, "--ironic-db", self.url)

    async def says(self, said: Said, *words: str) -> None:
        await moor_says(0, said, "node", "ring", *words, "--ironic-db", self.url)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with empty_database(request.param) as url:
        await upgrade(url, "ironic_sync")
        store = IronicStore(url)
        yield Served(url, store)
        await store.close()


def node_id(number: int) -> ProviderId:
    return ProviderId(UUID(int=number))


async def test_nodes_of_which_a_restored_ironic_tells_an_older_state_are_listed_and_answered(
    served: Served,
) -> None:
    noon = datetime(2026, 3, 4, 12, tzinfo=UTC)
    lives = Deployed(cell="c1", instance=InstanceId(ConsumerId(UUID(int=7))), attempt=1)
    older = structs.replace(a_held_row(1, "d1"), older_than=noon, deployed=lives)
    await served.save(older, a_held_row(2, "d2"))

    shown = await served.json()
    assert (shown["older"], shown["in_trouble"]) == (1, 1)
    (listed,) = await served.json("older")
    assert listed == {
        "id": str(node_id(1)),
        "name": "rack-1",
        "cell": "c1",
        "older_than": "2026-03-04T12:00:00Z",
        "state": "none",
        "instance": None,
        "lives": str(UUID(int=7)),
    }
    assert (await served.store.alarms(noon)).older == 1

    await served.says("1 nodes count again as Ironic has them", "older", "--go-on")
    row = (await served.store.read([node_id(1)]))[node_id(1)]
    assert row.older_than is None
    assert row.needs_read, "its owner looks again"
    assert (await served.store.alarms(noon)).older == 0


async def test_nodes_missing_in_ironic_are_shown_and_released_by_an_operator(served: Served) -> None:
    held = structs.replace(a_held_row(1, "d1"), missing_since_us=1_700_000_000_000_000)
    moving = structs.replace(
        a_held_row(2, "d2"), cell_wanted="c2", cell_note="it moves", report_note="1 of it is held"
    )
    await served.save(held, moving, structs.replace(a_held_row(3, "d1"), is_foreign=True))

    shown = await served.json()
    assert (shown["missing"], shown["moving"], shown["foreign"]) == (1, 1, 1)
    assert await served.json("missing") == [
        {"id": str(node_id(1)), "name": "rack-1", "cell": "c1", "since": "2023-11-14T22:13:20Z"}
    ]
    await served.says(("cell: c1", "it moves", "1 of it is held"), "show", str(node_id(2)))
    assert not (await served.store.read([node_id(1)]))[node_id(1)].is_deleted

    await served.says("1 nodes are removed once no consumer holds them", "missing", "--remove")
    (row,) = await served.store.page_of("d1", 10, needs="report")
    assert (row.id, row.is_deleted, row.missing_since_us) == (node_id(1), True, 0)
    assert await served.json("missing") == []


def a_held_row(number: int, owner: str) -> NodeRow:
    node = Node(id=node_id(number), name=f"rack-{number}")
    offer = Offer(resource_class="CUSTOM_GOLD")
    return NodeRow(
        id=node_id(number), owner=owner, epoch=1, cell="c1", node=node, offer=offer, reported=offer
    )


async def test_a_daemon_that_is_told_to_drain_hands_its_nodes_over(served: Served) -> None:
    held = Node(id=node_id(30), instance_uuid=UUID(int=9))
    free = [NodeRow(id=node_id(number), owner="", epoch=1) for number in range(1, 30)]
    await served.save(*free, NodeRow(id=held.id, owner="", epoch=4, node=held))
    settings = DaemonRules(look_s=0.05)
    d1, d2 = (Membership(served.store, name, name, settings) for name in ("d1", "d2"))
    running = [asyncio.create_task(each.run()) for each in (d1, d2)]
    await until(lambda: len(d1.owned) + len(d2.owned) == 30 and d1.owned, "both have their nodes")

    await served.says("d1 drains", "drain", "d1")
    await until(lambda: not d1.owned, "d1 has none")
    shown = await served.json()
    assert [(each["state"], each["nodes"]) for each in shown["daemons"]] == [("draining", 0), ("alive", 30)]

    await served.says("no other daemon can take its 30 nodes", "drain", "d2")
    await served.says("", "undrain", "d1")
    await until(lambda: len(d1.owned) == 30, "d1 has all")
    for each in (d1, d2):
        await each.stop()
    await asyncio.gather(*running)
