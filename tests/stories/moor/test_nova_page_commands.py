"""The commands of docs/nova.md: `moor nova settings` runs as it is printed, and its output is a settings file."""

import shlex
from pathlib import Path

import pytest

from tests.pages.commands import ROOT, commands_of
from tests.stories.moor.moor_process import moor

pytestmark = pytest.mark.asyncio

PAGE = "docs/nova.md"
FILE = "/etc/nova/nova.conf"
# Servers, which need a Nova beside them, and what reads their notes: each of these files runs one of them.
SERVERS = {
    "moor db upgrade": "tests/placement_servers.py",
    "moor run placement-api --auth keystone --listen 0.0.0.0:8778": "tests/api/test_auth.py",
    "moor broker declare": "tests/conformance/nova/our_scheduler.py",
    "moor run placement": "tests/conformance/nova/our_scheduler.py",
    "moor run nova-scheduler": "tests/conformance/nova/our_scheduler.py",
    "moor run nova-scheduler --shadow": "tests/conformance/nova/shadow.py",
    "moor shadow report --since 24h": "tests/stories/nova/test_nova_shadow.py",
}


async def test_the_settings_that_it_prints_are_taken(tmp_path: Path) -> None:
    commands = [command.text for command in commands_of(PAGE)]
    shown = [each for each in commands if each.startswith("moor ") and each not in SERVERS]
    conf, made = tmp_path / "nova.conf", tmp_path / "moorage.toml"
    conf.write_text("[scheduler]\nmax_attempts = 4\n[filter_scheduler]\nhost_subset_size = 2\n")

    ran = await moor(*shlex.split(shown[0].replace(FILE, str(conf)))[1:])
    made.write_text(ran.out)
    read = await moor("settings", "scheduler.alternates_max", "-o", "json", MOOR_CONFIG=str(made))

    assert len(shown) == 1
    assert ran.code == 0, ran.err
    assert '"value": 3' in read.out, read.err
    assert [command for command in SERVERS if command not in commands] == []
    assert [file for file in SERVERS.values() if not (ROOT / file).is_file()] == []
