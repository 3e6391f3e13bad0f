"""A person calls instances by their names, and by the beginning of their ids."""

from pathlib import Path

import pytest

from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = pytest.mark.asyncio


async def test_a_person_works_with_names_from_boot_to_delete(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    size = ("--vcpus", "1", "--ram", "64")
    async with started("up", "--cells", "harbour", "--hosts", "3", **environment) as up:
        await up.until_printed("ready")
        (web,) = (await moor_json("boot", *size, "--name", "web", **environment))["instances"]
        many = (await moor_json("boot", *size, "--name", "db", "--count", "2", **environment))["instances"]
        request = many[0]["request_id"]

        assert [each["id"] for each in await moor_json("show", "web", **environment)] == [web["id"]]
        # The beginning of an id differs from those of the others made at the same time only behind the time.
        short = next(web["id"][:end] for end in range(4, 37) if not request.startswith(web["id"][:end]))
        assert [each["id"] for each in await moor_json("show", short, **environment)] == [web["id"]]
        # A request's id differs from those of its instances behind 12 digits.
        shown = await moor_json("show", request[:15], **environment)
        assert {each["id"] for each in shown} == {each["id"] for each in many}
        assert [each["id"] for each in await moor_json("list", "--name", "db-2", **environment)] == [
            each["id"] for each in many if each["name"] == "db-2"
        ]
        first = await moor("list", "--limit", "2", **environment)
        assert first.err == "older than these: 1; a higher --limit shows them\n"

        resized = await moor_json("resize", "web", "--vcpus", "2", **environment)
        assert (resized["id"], resized["state"]) == (web["id"], "moved")
        assert (await moor_json("migration", "revert", "web", **environment))["state"] == "active"
        history = await moor_json("history", "web", **environment)
        assert [each["what"] for each in history] == ["boot", "resize"]
        (explained,) = (await moor_json("explain", "web", **environment))["explanations"]
        assert explained["state"]["id"] == web["id"]

        await moor_json("aggregate", "create", "rack", **environment)
        await moor_json("aggregate", "add", "rack", web["host"], **environment)
        group = await moor_json("group", "create", "pair", "--policy", "soft-affinity", **environment)
        near = ("--group", "pair", "--same-host", "web", "--aggregate", "rack")
        (beside,) = (await moor_json("boot", *size, "--name", "web", *near, **environment))["instances"]
        assert beside["host"] == web["host"]
        assert (await moor_json("group", "show", group["id"][:8], **environment))["size"] == 1

        for words in (("delete", "web"), ("migrate", "db-1", "web"), ("boot", *size, "--same-host", "web")):
            refused = await moor(*words, **environment)
            assert refused.code == 1
            assert f"{web['id']}  web  active" in refused.err
            assert f"{beside['id']}  web  active" in refused.err
        foreign = await moor("migrate", "db-1", "--project", "another", **environment)
        assert (foreign.code, "there is no instance 'db-1'" in foreign.err) == (1, True)
        unknown = await moor("delete", "db-1", "nobody", **environment)
        assert (unknown.code, "'nobody', so nothing was done" in unknown.err) == (1, True)
        assert {each["state"] for each in await moor_json("list", **environment)} == {"active"}

        await moor_json("delete", web["id"], "--wait", **environment)
        await moor_json("delete", "web", "--wait", **environment)
        await moor_json("delete", "db-1", "--wait", **environment)
        (gone,) = await moor_json("show", "db-1", **environment)
        assert gone["state"] == "deleted"
        assert (await moor_json("group", "delete", "pair", **environment))["id"] == group["id"]
