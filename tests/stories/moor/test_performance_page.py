"""The commands of docs/performance.md are run as they are printed, with smaller numbers and with servers of their own."""

import re
import shlex
from pathlib import Path

import pytest

from tests.stories.moor.moor_process import moor
from tests.stories.moor.test_printed_commands import OF_LOADS
from tests.stories.real_servers import real_servers
from tools.pages.commands import Printed, commands_of

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

# Everything else of the commands stays.
SMALL = {"boots": 60, "moves": 8, "hosts": 20, "nodes": 20, "changes": 40, "deploys": 6}
COMMANDS = commands_of(OF_LOADS)
ON_SERVERS = [each for each in COMMANDS if "URL" in each.text]
EMBEDDED = [each for each in COMMANDS if "URL" not in each.text]


async def run(command: Printed, here: Path, bus: str = "", database: str = "") -> None:
    text = re.sub(
        r"--(\w+) \d+", lambda found: f"--{found[1]} {SMALL.get(found[1], found[0].split()[1])}", command.text
    )
    words = shlex.split(text.replace("--bus URL", f"--bus {bus}").replace("--db URL", f"--db {database}"))
    words = [str(here / word) if word in ("load.json", "load.svg") else word for word in words]
    ran = await moor(*words[1:])
    assert ran.code == 0, f"{command.where}\n{ran.out}{ran.err}"
    assert "audit passed" in ran.out
    written = {"load.json", "load.svg"} & {Path(word).name for word in words}
    assert all((here / name).stat().st_size for name in written)


async def test_every_command_of_the_page_is_a_load() -> None:
    assert len(EMBEDDED) >= 5
    assert len(ON_SERVERS) >= 3
    assert {each.text.split(" --")[0] for each in COMMANDS} == {"moor load"}


@pytest.mark.parametrize("command", EMBEDDED, ids=lambda each: f"line {each.line}")
async def test_the_loads_in_one_process(command: Printed, tmp_path: Path) -> None:
    await run(command, tmp_path)


@pytest.mark.rabbitmq
@pytest.mark.postgresql
@pytest.mark.parametrize("command", ON_SERVERS, ids=lambda each: f"line {each.line}")
async def test_the_loads_on_servers(command: Printed, tmp_path: Path) -> None:
    async with real_servers() as (bus, database):
        await run(command, tmp_path, bus, database)
