"""docs/bad-night.md, run as it is printed on a cloud one of whose racks falls silent; and each output that it prints."""

import re
import shlex
from pathlib import Path

import pytest

from tests.stories.moor.moor_process import Up, up
from tests.waiting import until
from tools.pages.commands import ROOT, commands_of

PAGE = "docs/bad-night.md"
# The guests are there by then.
SILENT_S = 30
FAULTS = f"""
[[faults]]
is = "falls_silent"
hosts = ["harbour-host-0000[5-8]"]
after_s = {SILENT_S}
"""
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{4,27}")


def outputs() -> dict[str, list[str]]:
    """The lines of each block of output, by the last command above it."""
    found: dict[str, list[str]] = {}
    for above, block in re.findall(
        r"((?:    moor [^\n]*\n)+)\n```text\n(.*?)```", (ROOT / PAGE).read_text(), re.DOTALL
    ):
        found[above.strip().splitlines()[-1].strip()] = lines_of(block)
    return found


def lines_of(text: str) -> list[str]:
    """The lines without what is another each time: ids, numbers and times, and how wide columns are."""
    masked = re.sub(r"[0-9]+", "#", _ID.sub("ID", text))
    return [" ".join(line.split()) for line in masked.splitlines() if line.strip()]


async def question(cloud: Up) -> str:
    (found,) = await until(lambda: cloud.json("question", "list"), "a person is asked", within_s=90)
    return str(found["id"])


@pytest.mark.proof
async def test_a_bad_night_is_as_the_page_says(home: Path) -> None:
    (home / "rack.toml").write_text(FAULTS)
    hooks = home / "hooks"
    hooks.mkdir()
    (hooks / "power-off").write_text("#!/bin/sh\nexit 0\n")
    (hooks / "power-off").chmod(0o700)
    environment = {
        "MOOR_KEEPER_HOOKS_FOLDER": str(hooks),
        "MOOR_BUS_HOST_DOWN_S": "4",
        "MOOR_COMPUTE_BEAT_S": "1",
    }
    where = ("--cells", "harbour", "--hosts", "8", "--host-place", "dc1/rack{4}")
    printed, compared = outputs(), set[str]()
    async with up(home, *where, "--faults", str(home / "rack.toml"), **environment) as cloud:
        small = ("--vcpus", "1", "--ram", "64")
        await cloud.json("boot", *small, "--count", "24", "--name", "web", "--project", "shop")
        await cloud.json("boot", *small, "--count", "8", "--name", "test", "--project", "lab")
        for command in commands_of(PAGE):
            words = shlex.split(command.text)[1:]
            if words[:2] in (["question", "list"], ["question", "answer"]):
                asked = await question(cloud)
                words = [asked if word == "QUESTION" else word for word in words]
            if words[:2] == ["campaign", "show"]:
                await until(
                    lambda: cloud.json("campaign", "show", "lost-dc1-rack2"),
                    "the rack is emptied",
                    lambda told: told["campaign"]["life"] == "done",
                )
            ran = await cloud.run(*words)
            assert ran.code == 0, f"{command.where}\n{ran.out}{ran.err}"
            if wanted := printed.get(command.text):
                assert {*wanted} <= {*lines_of(ran.out)}, command.where
                compared.add(command.text)
    assert compared == printed.keys()
