"""docs/keeping.md, and the commands about campaigns and budgets of docs/commands.md, run as they are printed on a cloud with a keeper."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from moor.client import Client, Rejected
from tests.stories.moor.moor_process import up
from tests.waiting import until
from tools.pages.commands import ROOT, commands_of

HOSTS = {
    **dict.fromkeys((1, 2), "dc1/hall1/rack1"),
    3: "dc1/hall1/rack2",
    **dict.fromkeys((4, 5), "dc1/hall2/rack1"),
    6: "dc1/hall2/rack2",
}
HOOK = "#!/bin/sh\nexit 0\n"
LOST, FULL = "harbour-host-00006", "harbour-host-00003"


async def test_the_page_of_keeping_is_true(home: Path) -> None:
    (home / "places.csv").write_text(
        "".join(f"harbour-host-{number:05},{place}\n" for number, place in HOSTS.items())
    )
    page = (ROOT / "docs/keeping.md").read_text()
    (home / "budgets.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    (home / "reboot").write_text(HOOK)
    (home / "reboot").chmod(0o700)
    (home / "power-off").write_text("#!/bin/sh\necho no answer of its controller; exit 3\n")
    (home / "power-off").chmod(0o700)
    hooks = {"MOOR_KEEPER_HOOKS_FOLDER": str(home)}
    async with up(home, "--cells", "harbour", "--hosts", "6", **hooks) as cloud:
        await cloud.json("boot", "--vcpus", "1", "--ram", "64", "--count", "24", "--name", "web")

        async def life(name: str) -> str:
            found: str = (await cloud.json("campaign", "show", name))["campaign"]["life"]
            return found

        async def asked() -> str:
            (open_,) = await until(lambda: cloud.json("question", "list"), "a person is asked")
            return str(open_["id"])

        for command in commands_of("docs/keeping.md"):
            words = [
                str(home / word) if "." in word and (home / word).is_file() else word
                for word in shlex.split(command.text)[1:]
            ]
            if words[:2] == ["campaign", "cancel"]:
                # Of one that has not ended.
                await cloud.json(
                    "campaign", "start", "drain", "--domain", "dc1/hall2", "--at-once", "1", "--name", "other"
                )
                assert (await cloud.json("campaign", "cancel", "other"))["life"] == "cancelled"
                await until(lambda: life("hall1"), "it is done", lambda each: each == "done")
                continue
            if words[:4] == ["campaign", "start", "evacuate", LOST]:
                await cloud.says(0, "", "host", "set", LOST, "down")
            if words[0] == "balance":
                # Below, in a cloud whose hosts are free.
                continue
            if words[:2] == ["question", "answer"]:
                words[2] = await asked()
            ran = await cloud.run(*words)
            assert ran.code == 0, f"{command.where}\n{ran.out}{ran.err}"

        # The host goes on to send its beats, so it is not off, although a person said so.
        again = await cloud.json("question", "show", await asked())
        assert "says that it is off, and it was heard since" in again["text"]
        await cloud.says(0, "leave", "question", "answer", again["id"][:13], "leave")
        await cloud.says(1, "it is answered: leave", "question", "answer", again["id"], "off")
        assert (await cloud.json("host", "show", LOST))["setting"]["mode"] == "down"
        await cloud.says(0, "", "host", "set", LOST, "up")

        modes = {each["name"]: each["setting"]["mode"] for each in await cloud.json("host", "list")}
        assert "down" not in modes.values()
        (restart,) = [
            each
            for each in await cloud.json("campaign", "list", "--all")
            if each["work"]["kind"] == "restart"
        ]
        await until(lambda: life(restart["id"]), "it is done", lambda each: each == "done")
        assert {*(each["budget"]["name"] for each in await cloud.json("budget", "list"))} == {
            "racks",
            "cloud",
            "halls",
        }
        away = await cloud.json("campaign", "movements", "--campaign", "hall1", "--all")
        assert {each["life"] for each in away} == {"done"}
        await cloud.says(0, "no faults", "audit", "--settle", "0")


async def test_campaigns_and_budgets_by_command(home: Path) -> None:
    """What commands.md has, and the words of refusals."""
    async with up(home, "--cells", "harbour", "--hosts", "4") as cloud:
        host = (await cloud.json("boot", "--vcpus", "1", "--ram", "64", "--count", "8"))["instances"][0][
            "host"
        ]
        for command in commands_of("docs/commands.md"):
            if re.match(r"moor (campaign|budget) ", command.text):
                words = [host if each == "HOST" else each for each in shlex.split(command.text)[1:]]
                await cloud.says(0, "", *words)
        await cloud.says(1, "there is no campaign 'nothing'", "campaign", "show", "nothing")
        await cloud.says(1, "no such host", "campaign", "start", "drain", "nowhere")
        followed = await cloud.json(
            "campaign", "start", "drain", "harbour-host-00004", "--follow", "--name", "followed"
        )
        assert (followed["campaign"]["life"], {each["stage"] for each in followed["hosts"]}) == (
            "done",
            {"done"},
        )
        assert (await cloud.run("campaign", "list", "--all", "-o", "name")).out.split() == [
            "followed",
            "kernel",
        ]
        await cloud.says(1, "is up, so nothing was evacuated", "evacuate", host)
        async with Client(cloud.url, as_operator=True) as moor:
            with pytest.raises(Rejected, match="is up, so nothing is evacuated: set it down first"):
                await moor.evacuate_host(host)
        wrong = home / "wrong.toml"
        for text, said in (
            ("x = 1", "Expected `object`"),
            ('[a]\nscope = "cloud"\nat_once = 1\n[b]\nscope = "cloud"\nat_once = 0', "budget.at_once is 0"),
            ('[b]\nscope = "cloud"\nat_onc = 1', "unknown field `at_onc`"),
        ):
            wrong.write_text(text)
            await cloud.says(2, said, "budget", "set", "--file", str(wrong))
        assert [each["budget"]["name"] for each in await cloud.json("budget", "list")] == ["racks"]
        await cloud.says(0, "budget racks is deleted", "budget", "delete", "racks")
        await cloud.says(1, "there is no budget 'racks'", "budget", "show", "racks")


async def test_the_commands_of_balance_even_the_hosts(home: Path) -> None:
    async with up(home, "--cells", "harbour", "--hosts", "3") as cloud:
        # One host has much, and the others have nothing.
        small = ("--vcpus", "16", "--ram", "64", "--disk", "1")
        await cloud.json("boot", *small, "--count", "6", "--host", FULL)

        async def plan() -> dict[str, Any]:
            found: dict[str, Any] = await cloud.json("balance", "plan", "--goal", "even")
            return found

        await until(plan, "all of it is seen", lambda found: found["fit"] == 4)
        for command in commands_of("docs/keeping.md"):
            words = shlex.split(command.text)[1:]
            if words[0] == "balance":
                await cloud.says(0, "", *words)

        async def hosts() -> set[str]:
            return {each["host"] for each in await cloud.json("list")}

        await until(hosts, "they are even", lambda found: len(found) == 3)
        told = await cloud.says(0, "spread", "balance", "plan")
        assert "would move" in told.out + told.err
