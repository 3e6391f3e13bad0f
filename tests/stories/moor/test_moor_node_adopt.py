"""`moor node adopt`: deployed nodes are taken over, many at once, with what the command, a file or Ironic says; and given back."""

import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from moor.bare_metal.adopt_command import Adoption, rows_in_file
from tests.stories.moor.moor_process import moor, moor_json, started_at
from tests.stories.moor.test_moor_bare_metal import VERSION, faults, ironic_url, until_state, up

pytestmark = pytest.mark.asyncio

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "bare-metal.md"
SCHEMA = ROOT / "tests" / "nova" / "schemas" / "cell.sql"
IDS = [str(UUID(int=(each << 64) + 404)) for each in range(1, 5)]


async def patch(ironic: httpx.AsyncClient, node: str, **values: object) -> None:
    operations = [{"op": "add", "path": f"/{name}", "value": value} for name, value in values.items()]
    (await ironic.patch(f"/v1/nodes/{node}", json=operations)).raise_for_status()


async def deploy(ironic: httpx.AsyncClient, node: str) -> None:
    order = {"target": "active"}
    (await ironic.put(f"/v1/nodes/{node}/states/provision", json=order)).raise_for_status()


async def adopt(home: Path, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    ran = await moor("node", "adopt", *arguments, "-o", "json", XDG_STATE_HOME=str(home))
    assert ran.code == code, (ran.out, ran.err)
    found: list[dict[str, Any]] = json.loads(ran.out)
    return found


async def test_deployed_nodes_are_adopted_many_at_once_and_given_back_as_they_are(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with up(home, "--nodes", "5"):
        nodes = [each["id"] for each in await moor_json("node", "list", **environment)]
        async with httpx.AsyncClient(base_url=ironic_url(home), headers=VERSION) as ironic:
            for node, id_ in zip(nodes, IDS, strict=False):
                await patch(ironic, node, instance_uuid=id_)
            await patch(ironic, nodes[0], lessee="shop", instance_info={"display_name": "db-1"})
            await patch(ironic, nodes[1], owner="till")
            for node in nodes:
                await deploy(ironic, node)
            for node in nodes:
                await until_state(node, "active", **environment)
            assert {each for each, _ in await faults(**environment)} == {
                "stray on node",
                "deployed for nobody",
            }

            # Looked at first: two have no project, and the last no instance.
            planned = await adopt(home, "--all", "--dry-run", code=1)
            assert {each["instance"]: each["stage"] for each in planned} == dict(
                zip(IDS, ["to be adopted", "to be adopted", "kept back", "kept back"], strict=True)
            )
            assert {each["node"]: (each["project"], each["name"]) for each in planned}[nodes[0]] == (
                "shop",
                "db-1",
            )
            assert {each["reason"] for each in planned[2:]} == {
                "Ironic names no lessee or owner: give --project"
            }
            assert len(await faults(**environment)) == 5

            table = home / "nodes.csv"
            table.write_text(f"node,project,name\n{nodes[0]},,\n{nodes[1]},shop,front\n", encoding="utf-8")
            done = await adopt(home, "--file", str(table))
            assert [(each["stage"], each["project"], each["name"]) for each in done] == [
                ("adopted", "shop", "db-1"),
                ("adopted", "shop", "front"),
            ]
            rest = await adopt(home, "--all", "--project", "till", "--user", "ann")
            assert [each["stage"] for each in rest] == ["adopted"] * 2
            kept = await adopt(home, nodes[4], "--project", "till", code=1)
            assert "Ironic has no instance on it: set its instance_uuid there" in kept[0]["reason"]
            await patch(ironic, nodes[4], instance_uuid=str(UUID(int=505)))
            (new,) = await adopt(home, nodes[4], "--project", "till")
            assert new["stage"] == "adopted"
            again = await adopt(home, *nodes[2:], "--project", "till")
            assert [each["stage"] for each in again] == ["adopted"] * 3
            (other,) = await adopt(home, nodes[0], "--project", "till", code=1)
            assert other["reason"] == "it was adopted before, for project 'shop'"
            assert await faults(**environment) == []
            listed = await moor_json("list", **environment)
            assert {(each["id"], each["state"]) for each in listed} == {
                (id_, "active") for id_ in (*IDS, new["instance"])
            }

            # One is as any other is.
            deleted = await moor("delete", "db-1", "--yes", **environment)
            assert deleted.code == 0, deleted.err
            await until_state(nodes[0], "available", **environment)
            back = await adopt(home, "front", "--give-back")
            assert [(each["stage"], each["instance"]) for each in back] == [("given back", IDS[1])]
            states = [
                each["ironic"]["provision_state"] for each in await moor_json("node", "list", **environment)
            ]
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


async def test_wrong_words_say_what_is_wrong_and_change_nothing(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with up(home, "--nodes", "1"):
        (node,) = [each["id"] for each in await moor_json("node", "list", **environment)]
        free = await adopt(home, node, "--project", "shop", code=1)
        assert "it is 'available' in Ironic, and must be 'active'" in free[0]["reason"]
        other = await adopt(home, node, "--project", "shop", "--flavor", "small", code=1)
        assert "flavor 'small' is none for it" in other[0]["reason"]
        wrong = home / "nodes.json"
        wrong.write_text(f'[{{"node": "{node}", "projekt": "shop"}}]', encoding="utf-8")
        for arguments, words in (
            ((), "give nodes, or --file, or --all"),
            (("--all", node), "give nodes, or --file, or --all"),
            (("--file", str(wrong)), "projekt"),
            (("--all", "--give-back"), "--give-back is for nodes"),
        ):
            ran = await moor("node", "adopt", *arguments, **environment)
            assert (ran.code, words in ran.err) == (2, True), ran.err


async def test_a_node_that_is_adopted_while_an_operator_is_asked_is_not_undeployed(home: Path) -> None:
    """The books were looked at before the question, and somebody lives there by the answer."""
    environment = {"XDG_STATE_HOME": str(home)}
    async with up(home, "--nodes", "1"):
        (node,) = [each["id"] for each in await moor_json("node", "list", **environment)]
        async with httpx.AsyncClient(base_url=ironic_url(home), headers=VERSION) as ironic:
            await patch(ironic, node, instance_uuid=IDS[0])
            await deploy(ironic, node)
        await until_state(node, "active", **environment)
        keyboard, terminal = os.openpty()
        try:
            undeploy = ("node", "undeploy", "--settle", "0", node)
            async with started_at(terminal, *undeploy, **environment) as process:
                await process.until_printed_to_stderr(f"this takes instance {IDS[0]} off node")
                (adopted,) = await adopt(home, node, "--project", "shop")
                assert adopted["stage"] == "adopted"
                os.write(keyboard, b"y\n")
                ran = await process.ended()
        finally:
            os.close(keyboard)
            os.close(terminal)

        told = f"instance {IDS[0]} was just adopted on node {node}: nothing was done"
        assert (ran.code, told in ran.err) == (1, True), ran.err
        shown = await moor_json("node", "show", node, **environment)
        assert (shown["ironic"]["provision_state"], shown["lives"]) == ("active", IDS[0])
        assert (await moor_json("show", IDS[0], **environment))[0]["state"] == "active"
        assert await faults(**environment) == []
