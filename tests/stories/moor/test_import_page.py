"""The commands of docs/import-nova.md, in their order, against a Nova and a cloud on this machine."""

import shlex
import tempfile
from pathlib import Path

import pytest

from tests.nova.rows import SMALL, NovaRows
from tests.nova.schema import sqlite_databases
from tests.stories.moor.moor_process import moor, started
from tools.pages.commands import commands_of

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

PAGE = "docs/import-nova.md"
HOST = "harbour-host-00001"
# Those that say what is left say it with their exit code: before the first host, that is all.
LEAVES = {"moor nova import --verify": 1}


async def test_a_switch_step_by_step_and_its_way_back() -> None:
    commands = [command.text for command in commands_of(PAGE)]
    variables = [
        each.removeprefix("export ").partition("=")[0] for each in commands if each.startswith("export ")
    ]
    ordered = [each for each in commands if not each.startswith("export ")]
    assert len(variables) == 3
    assert len(ordered) == 8
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        addresses = sqlite_databases(Path(place) / "nova", ("harbour",))
        with NovaRows(addresses) as nova:
            nova.flavor(SMALL)
            nova.host("harbour", HOST)
            for number in range(3):
                nova.instance("harbour", HOST, number)
        urls = (addresses.api, f"harbour={addresses.cells['harbour']}", addresses.placement)
        environment = {"XDG_STATE_HOME": place} | dict(zip(variables, urls, strict=True))
        async with started("up", "--cells", "harbour", "--hosts", "2", **environment) as up:
            await up.until_printed("ready")
            for text in ordered:
                if text.startswith("openstack "):
                    with NovaRows.again(addresses) as nova:
                        nova.disable("harbour", HOST)
                    continue
                ran = await moor(*shlex.split(text)[1:], **environment)
                assert ran.code == LEAVES.get(text, 0), f"{text}: {ran.out}{ran.err}"
                if "--give-back" in text:
                    assert f"openstack compute service set --enable {HOST} nova-compute" in ran.out
