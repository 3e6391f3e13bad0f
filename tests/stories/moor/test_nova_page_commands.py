"""docs/nova.md: its commands are run by other tests, and the settings, filters and weighers that it names are ours."""

import re

from engine.choosing.plugin_settings import OPTIONAL_FILTERS, STANDARD_WEIGHERS
from moor.worker_settings import SECTIONS
from tools.pages.commands import ROOT, commands_of

PAGE = "docs/nova.md"
# Servers, which need a Nova beside them, and what reads their notes: each of these files runs one of them.
SERVERS = {
    "moor db upgrade": "tests/placement_servers.py",
    "moor run placement-api --auth keystone --listen 0.0.0.0:8778": "tests/api/test_auth.py",
    "moor run nova-scheduler": "tests/conformance/nova/our_scheduler.py",
    "moor run nova-scheduler --shadow": "tools/real_nova/shadow.py",
    "moor nova shadow --since 24h": "tests/stories/nova/test_nova_shadow.py",
}


def test_its_commands_are_run_by_tests() -> None:
    commands = [command.text for command in commands_of(PAGE)]
    assert [each for each in commands if each.startswith("moor ") and each not in SERVERS] == []
    assert [command for command in SERVERS if command not in commands] == []
    assert [file for file in SERVERS.values() if not (ROOT / file).is_file()] == []


def test_the_settings_filters_and_weighers_that_it_names_are_ours() -> None:
    text = (ROOT / PAGE).read_text()
    named = {*re.findall(r"`(scheduler|nova)\.(\w+)`", text)}
    assert named
    assert [(section, name) for section, name in named if name not in SECTIONS[section].settings] == []
    table = text.split("| filter or weigher of Nova |")[1].split("\n\n")[0]
    ours = {each for row in table.splitlines()[1:] for each in re.findall(r"`([a-z_]+)`", row.split("|")[2])}
    assert len(ours) > 15
    assert ours - {*OPTIONAL_FILTERS, *STANDARD_WEIGHERS} == {"max_io_ops_per_host", "max_instances_per_host"}
