"""Every command that README.md and docs/ print is run as it is printed, with real names in place of the reader's own.

The commands of a page run in its order, on one cloud. So a page may use only what it has created before.
"""

import json
import re
import shlex
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from operator import not_
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import pytest

from engine.choosing.plugin_settings import OPTIONAL_FILTERS, STANDARD_WEIGHERS
from moor.worker_settings import SECTIONS
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.sql_stores import empty_database
from tests.nova.rows import SMALL as FLAVOR
from tests.nova.rows import NovaRows
from tests.nova.schema import sqlite_databases
from tests.running import closing
from tests.stories.moor.moor_process import Up, moor, moor_json, moor_says, started, up
from tests.stories.real_servers import real_servers, url_of
from tests.waiting import until
from tools.pages.commands import PAGES, ROOT, Printed, commands_of

# Commands of other programs, and of servers that no test machine has, with the file that runs or checks the same.
ELSEWHERE = {
    "make ": "Makefile",
    ".venv/bin/": "Makefile",
    "python -m tests.simulation": "tests/simulation/test_simulation.py",
    "python -m laboratory.check": "tests/stories/cells/test_compute_check.py",
    "python3 -c ": "tests/stories/moor/test_package.py",
    "docker compose": "deploy/compose.yaml",
    "openstack ": "tests/conformance/clients.py",
    "oslopolicy-": "tests/api/test_policy.py",
    "export ": "tests/stories/moor/test_printed_commands.py",
    "moor host delete ": "tests/stories/cells/test_deleted_hosts.py",
    "moor campaign ": "tests/stories/moor/test_keeping_page.py",
    "moor budget ": "tests/stories/moor/test_keeping_page.py",
    "moor history export ": "tests/stories/moor/test_moor_replay.py",
    "moor replay ": "tests/stories/moor/test_moor_replay.py",
    "moor application ": "tests/stories/moor/test_moor_applications.py",
    "moor node adopt ": "tests/stories/moor/test_moor_bare_metal.py",
    "mysql ": "tests/stories/moor/test_moor_bare_metal.py",
    "moor node undeploy ": "tests/stories/moor/test_moor_bare_metal.py",
    "moor run placement-api --auth keystone": "tests/api/test_auth.py",
}
# A page with its own test, which runs its commands with flavors of its own; and the folder of pages that test_tutorials.py runs.
OF_FLAVORS = "docs/scheduling.md"
TUTORIALS = "docs/tutorials/"
# Others: test_keeping_page.py, test_bad_night_page.py.
OF_KEEPING = ("docs/keeping.md", "docs/bad-night.md")
# Three pages with tests of their own, below.
OF_NOVA = "docs/import-nova.md"
OF_A_NOVA = "docs/nova.md"
OF_LOADS = "docs/performance.md"
# Another one: tests/libvirt/test_libvirt_page.py.
OF_LIBVIRT = "docs/libvirt.md"
# Pages with a test of their own, which runs them in order: tests/deploy/test_operators_pages.py.
OPERATE = tuple(
    f"docs/operate/{page}.md" for page in ("deploying", "monitoring", "troubleshooting", "backup", "upgrades")
)
# Another one: tests/deploy/test_clusters_page.py.
OF_CLUSTERS = "docs/operate/clusters.md"
ONE_MACHINE = (
    "README.md",
    "docs/running.md",
    "docs/bare-metal.md",
    "docs/commands.md",
    "docs/placement-api.md",
)
SERVERS = ("moor db upgrade", "moor broker declare", "moor run ", "moor broker show", "moor dead list")
DATABASE = "postgresql+asyncpg://moorage:...@localhost/moorage"
CELL = "harbour"
SMALL = ("--vcpus", "1", "--ram", "512", "--disk", "5")
# In the other cell, hosts are so slow to receive an instance that its move can be aborted.
SLOW = "island-host-0000"
# On a page that evacuates it, it is silent before that.
LOST = "harbour-host-00009"
FAULTS = f"""
[[faults]]
is = "receives_slowly"
hosts = ["{SLOW}*"]
receive_ms = 600000
"""
DIES = f"""
[[faults]]
is = "dies"
hosts = ["{LOST}"]
after_s = 20
"""


def is_for_servers(command: Printed) -> bool:
    return command.text.startswith(SERVERS)


def runs_elsewhere(command: Printed) -> bool:
    return command.text.startswith(tuple(ELSEWHERE))


@pytest.mark.timeout(300)
def test_every_page_with_commands_is_run() -> None:
    left = [
        command.where
        for page in PAGES
        for command in commands_of(page)
        if page
        not in (
            *ONE_MACHINE,
            OF_FLAVORS,
            *OF_KEEPING,
            OF_NOVA,
            OF_A_NOVA,
            OF_LOADS,
            OF_LIBVIRT,
            OF_CLUSTERS,
            *OPERATE,
        )
        and not page.startswith(TUTORIALS)
        and not runs_elsewhere(command)
    ]

    assert left == []
    assert [file for file in ELSEWHERE.values() if not (ROOT / file).is_file()] == []


class Reader:
    """A person who copies the commands of one page to a terminal, and puts in the names that the page leaves open.

    Commands about an instance get one that is in the state that the command needs.
    """

    def __init__(self, home: Path, cloud: Up) -> None:
        self._home, self._cloud = home, cloud
        self.json = cloud.json
        self._group = ""
        # All commands of one line are about one instance.
        self._line = 0
        self._instance: dict[str, Any] | None = None
        self._states: tuple[tuple[str, Callable[[], Awaitable[dict[str, Any]]]], ...] = (
            (r"moor migration (confirm|revert) ", partial(self.active, "migrate")),
            (r"moor unshelve \S+ --to", partial(self.active, "shelve", "--offload")),
            (r"moor unshelve ", partial(self.active, "shelve")),
            (r"moor migration abort ", self._moving),
            (r"moor migration show ", partial(self.active, "migrate")),
            (r"moor evacuate ", self._on_a_lost_host),
            (r"moor host drain ", self._on_its_own_host),
            (r"moor balance run ", self._on_a_full_host),
            (r"moor node .*\bID\b", partial(self._booted, "--flavor", "metal")),
            (r".*\b(ID|HOST|host-7|host-9)\b", self.active),
        )

    async def run(self, command: Printed) -> None:
        if command.line != self._line:
            self._line, self._instance = command.line, None
        text = await self._with_names(command.text)
        words = shlex.split(text)
        if words[0] == "curl":
            await self._fetch(words)
        elif words[:2] == ["moor", "events"] or "--follow" in words:
            await self._watch(words[1:])
        else:
            try:
                ran = await self._cloud.run(*words[1:])
            except TimeoutError:
                raise AssertionError(f"{command.where}\n{text}: it does not end") from None
            assert ran.code == 0, f"{command.where}\n{text}\n{ran.out}{ran.err}"
            assert "Traceback" not in ran.err, f"{command.where}\n{ran.err}"
            if text.startswith("moor group create"):
                self._group = re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", ran.out)[0]

    # Names

    async def _with_names(self, text: str) -> str:
        if re.search(r"--group ID|group (show|delete) ID", text):
            return text.replace("ID", self._group)
        prepare = next((each for pattern, each in self._states if re.match(pattern, text)), None)
        if prepare is not None and self._instance is None:
            self._instance = await prepare()
        instance = self._instance
        if instance is not None:
            host = instance["host"] or instance["source"]
            text = re.sub(r"--to host-\d", f"--to {self._other_host(host)}", text)
            text = re.sub(r"\b(HOST|host-\d|h-17)\b", host, text)
            text = re.sub(r"\bID\b", instance["id"], text)
        if "FILE" in text:
            file = self._home / "request.json"
            file.write_text(json.dumps({"type": "build.request", "flavor": {"vcpus": 2, "ram_mb": 1024}}))
            text = text.replace("FILE", str(file))
        if "ring show" in text:
            nodes = await self.json("node", "list")
            text = re.sub(r"show \S+", f"show {nodes[0]['id']}", text)
        places = {"WHY": "disk", "PROJECT": "shop", "h-17": f"{CELL}-host-00001", "rack-3": "ironic-2"}
        places |= {"compute-1": f"{CELL}-host-00001"}
        for name, real in places.items():
            text = re.sub(rf"\b{name}\b", real, text)
        return text

    def _other_host(self, host: str) -> str:
        return f"{CELL}-host-00006" if host != f"{CELL}-host-00006" else f"{CELL}-host-00007"

    # States

    async def active(self, *order: str) -> dict[str, Any]:
        """A new instance in the cell, on a host that no earlier command has put away; or what becomes of it by this order."""
        instance = await self._booted(*SMALL, *[f"--host={CELL}-host-{number:05}" for number in range(1, 8)])
        if not order:
            return instance
        told: dict[str, Any] = await self.json(order[0], instance["id"], *order[1:])
        return told if told["host"] else instance

    async def _booted(self, *words: str) -> dict[str, Any]:
        instance: dict[str, Any] = (await self.json("boot", *words))["instances"][0]
        return instance

    async def _moving(self) -> dict[str, Any]:
        instance = await self._booted(*SMALL, f"--host={SLOW}1")
        moving: dict[str, Any] = await self.json("migrate", instance["id"], "--no-wait")
        return moving

    async def _on_a_lost_host(self) -> dict[str, Any]:
        """One was booted there before the host was lost."""
        (instance,) = await self.json("list", "--host", LOST)
        await self.json("host", "set", LOST, "down", "--reason", "lost")
        return dict(instance)

    async def _on_its_own_host(self) -> dict[str, Any]:
        host = f"{CELL}-host-00008"
        await self._leave_only(host)
        return await self._booted(*SMALL, f"--host={host}")

    async def _on_a_full_host(self) -> dict[str, Any]:
        """It has more than the others of its cell."""
        some = [await self._booted(*SMALL, f"--host={CELL}-host-00005") for _ in range(6)]
        return some[0]

    async def _leave_only(self, host: str) -> None:
        """Deletes what else is on the host: what was moved there, and not confirmed, could not leave it."""
        listed = await self.json("list")
        if others := [each["id"] for each in listed if each["host"] == host]:
            await self.json("delete", "--wait", *others)

    # Commands that are not over by themselves, and other programs

    async def _watch(self, words: Sequence[str]) -> None:
        async with started(*words, **self._cloud.environment) as watching:
            if words[0] == "events":
                await watching.until_printed_to_stderr("listening")
                await self.active()
                await watching.until_printed("instance.active")
            else:
                await watching.until_printed("")
            watching.send_signal(signal.SIGINT)
            ended = await watching.ended()
        assert ended.code in (0, 130), ended
        assert "Traceback" not in ended.err, ended

    async def _fetch(self, words: Sequence[str]) -> None:
        url = next(word for word in words if word.startswith("http"))
        headers = dict(each.split(": ", 1) for flag, each in pairwise(words) if flag == "-H")
        async with httpx.AsyncClient() as client:
            answer = await client.get(
                url.replace("http://127.0.0.1:8780", self._cloud.address_of("placement")), headers=headers
            )
        assert answer.status_code == 200, answer.text


@asynccontextmanager
async def a_reader(home: Path, *, evacuates: bool) -> AsyncIterator[Reader]:
    faults = home / "faults.toml"
    faults.write_text(FAULTS + DIES if evacuates else FAULTS)
    hooks = home / "hooks"
    hooks.mkdir()
    fence = hooks / "power-off"
    fence.write_text("#!/bin/sh\nexit 0\n")
    fence.chmod(0o700)
    words = ("--hosts", "9", "--nodes", "4", "--daemons", "2", "--faults", str(faults))
    pace = {"MOOR_BUS_HOST_DOWN_S": "8", "MOOR_COMPUTE_BEAT_S": "2"}
    async with up(home, *words, MOOR_KEEPER_HOOKS_FOLDER=str(hooks), **pace) as cloud:
        if evacuates:
            # It stays alone there.
            await cloud.json("boot", *SMALL, "--host", LOST)
            await cloud.json("host", "set", LOST, "draining")
        yield Reader(home, cloud)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ONE_MACHINE)
async def test_the_commands_for_one_machine(page: str, home: Path) -> None:
    commands = [each for each in commands_of(page) if not (runs_elsewhere(each) or is_for_servers(each))]
    assert commands
    wrong = []
    # Where a person has set the host down, any host will do.
    set_down = {each.line for each in commands if each.text.startswith("moor host set HOST down")}
    evacuates = any(each.text.startswith("moor evacuate ") for each in commands if each.line not in set_down)
    async with a_reader(home, evacuates=evacuates) as reader:
        for command in commands:
            if not command.text.startswith("moor up"):
                try:
                    await reader.run(command)
                except AssertionError as problem:
                    wrong.append(str(problem))

    assert not wrong, "\n\n".join(wrong)


# On servers

ALL_ROLES = {
    *(("placement", "cell0"), ("scheduler", "cell0"), ("ironic", "cell0")),
    *((role, cell) for role in ("conductor", "compute") for cell in ("harbour", "island")),
}


@asynccontextmanager
async def a_broker() -> AsyncIterator[str]:
    """The URL of a virtual host of its own: a broker for one cell."""
    async with closing(await RabbitMQUnderTest.start()) as (under_test,):
        yield url_of(under_test)


@pytest.mark.rabbitmq
@pytest.mark.postgresql
@pytest.mark.parametrize("has_own", [False, True], ids=["one broker", "a broker for island"])
async def test_the_commands_for_servers(has_own: bool, home: Path) -> None:  # noqa: FBT001 - a parameter of pytest
    """The blocks for servers, with the last paragraph of docs/running.md's: a cell that has a broker and a database of its own."""
    users = home / "users"
    users.write_text(f"admin:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    async with AsyncExitStack() as stack:
        bus, database = await stack.enter_async_context(real_servers())
        environment = {"MOOR_BUS_URL": bus, "MOOR_DB_URL": database, "XDG_STATE_HOME": str(home)}
        if has_own:
            of_island = await stack.enter_async_context(a_broker())
            rows = await stack.enter_async_context(empty_database("postgresql"))
            environment |= {
                "MOOR_CELL_BUS_URLS": f"island={of_island}",
                "MOOR_CELL_DB_URLS": f"island={rows}",
            }

        async def run(text: str, *, goes_on: bool) -> None:
            words = shlex.split(text.replace("FILE", str(users)).replace(DATABASE, database))[1:]
            if goes_on:
                process = await stack.enter_async_context(started(*words, **environment))
                await process.until_printed_to_stderr("ready")
                return
            await moor_says(0, "", *words, **environment)

        commands = [
            each
            for page in ONE_MACHINE
            for each in commands_of(page)
            if is_for_servers(each) and not runs_elsewhere(each)
        ]
        simulated = "moor run simulated-ironic --nodes 2"
        for command in commands:
            if command.text.startswith("moor run ironic") and "MOOR_IRONIC_URL" not in environment:
                ironic = await stack.enter_async_context(started(*shlex.split(simulated)[1:], **environment))
                line = await ironic.until_printed_to_stderr("http://")
                url = re.search(r"http://[\d.]+:\d+", line)
                assert url is not None
                environment |= {"MOOR_IRONIC_URL": url[0], "MOOR_IRONIC_CELL": CELL}
            await run(command.text, goes_on=command.text.startswith("moor run"))
        await run("moor run conductor --cell island", goes_on=True)
        await run("moor run compute --cell island --hosts 2", goes_on=True)
        for cell in ("harbour", "island"):
            booted = await moor_json("boot", "--vcpus", "1", "--host", f"{cell}-host-00001", **environment)
            assert booted["instances"][0]["state"] == "active", booted
        await moor_says(0, "", "audit", "--settle", "0", **environment)

        # Whatever the last commands started is heard by its next heartbeat.
        async def missing() -> list[object]:
            status = json.loads((await moor("status", "-o", "json", **environment)).out)
            workers = status["overview"]["workers"] if status["overview"] else []
            roles = {(each["beat"]["role"], each["beat"]["cell"]) for each in workers}
            return [*(ALL_ROLES - roles), *status["troubles"]]

        await until(missing, "all are heard, and nothing troubles", not_)


HOST = "harbour-host-00001"
# Those that say what is left say it with their exit code: before the first host, that is all.
LEAVES = {"moor nova import --verify": 1}


@pytest.mark.timeout(300)
async def test_a_switch_step_by_step_and_its_way_back(home: Path) -> None:
    commands = [command.text for command in commands_of(OF_NOVA)]
    variables = [
        each.removeprefix("export ").partition("=")[0] for each in commands if each.startswith("export ")
    ]
    ordered = [each for each in commands if not each.startswith("export ")]
    assert len(variables) == 3
    assert len(ordered) == 8
    addresses = sqlite_databases(home / "nova", ("harbour",))
    with NovaRows(addresses) as nova:
        nova.flavor(FLAVOR)
        nova.host("harbour", HOST)
        for number in range(3):
            nova.instance("harbour", HOST, number)
    urls = (addresses.api, f"harbour={addresses.cells['harbour']}", addresses.placement)
    exported = dict(zip(variables, urls, strict=True))
    async with up(home, "--cells", "harbour", "--hosts", "2", **exported) as cloud:
        for text in ordered:
            if text.startswith("openstack "):
                with NovaRows.again(addresses) as nova:
                    nova.disable("harbour", HOST)
            else:
                enabled = f"openstack compute service set --enable {HOST} nova-compute"
                told = enabled if "--give-back" in text else ""
                await cloud.says(LEAVES.get(text, 0), told, *shlex.split(text)[1:])


# Servers, which need a Nova beside them, and what reads their notes: each of these files runs one of them.
BESIDE_A_NOVA = {
    "moor db upgrade": "tests/placement_servers.py",
    "moor run placement-api --auth keystone --listen 0.0.0.0:8778": "tests/api/test_auth.py",
    "moor run nova-scheduler": "tests/conformance/nova/our_scheduler.py",
    "moor run nova-scheduler --shadow": "tools/real_nova/shadow.py",
    "moor nova shadow --since 24h": "tests/stories/nova/test_nova_shadow.py",
}


def test_the_commands_for_a_nova_are_run_by_tests() -> None:
    commands = [command.text for command in commands_of(OF_A_NOVA)]
    assert [each for each in commands if each.startswith("moor ") and each not in BESIDE_A_NOVA] == []
    assert [command for command in BESIDE_A_NOVA if command not in commands] == []
    assert [file for file in BESIDE_A_NOVA.values() if not (ROOT / file).is_file()] == []


def test_the_settings_filters_and_weighers_that_the_page_about_a_nova_names_are_ours() -> None:
    text = (ROOT / OF_A_NOVA).read_text()
    named = {*re.findall(r"`(scheduler|nova)\.(\w+)`", text)}
    assert named
    assert [(section, name) for section, name in named if name not in SECTIONS[section].settings] == []
    table = text.split("| filter or weigher of Nova |")[1].split("\n\n")[0]
    ours = {each for row in table.splitlines()[1:] for each in re.findall(r"`([a-z_]+)`", row.split("|")[2])}
    assert len(ours) > 15
    assert ours - {*OPTIONAL_FILTERS, *STANDARD_WEIGHERS} == {"max_io_ops_per_host", "max_instances_per_host"}


# Everything else of the commands stays.
FEW = {"boots": 60, "moves": 8, "hosts": 20, "nodes": 20, "changes": 40, "deploys": 6}
LOADS = commands_of(OF_LOADS)
ON_SERVERS = [each for each in LOADS if "URL" in each.text]
EMBEDDED = [each for each in LOADS if "URL" not in each.text]


async def run_load(command: Printed, here: Path, bus: str = "", database: str = "") -> None:
    text = re.sub(
        r"--(\w+) \d+", lambda found: f"--{found[1]} {FEW.get(found[1], found[0].split()[1])}", command.text
    )
    words = shlex.split(text.replace("--bus URL", f"--bus {bus}").replace("--db URL", f"--db {database}"))
    words = [str(here / word) if word in ("load.json", "load.svg") else word for word in words]
    await moor_says(0, "audit passed", *words[1:])
    written = {"load.json", "load.svg"} & {Path(word).name for word in words}
    assert all((here / name).stat().st_size for name in written)


@pytest.mark.timeout(300)
async def test_every_command_of_the_page_is_a_load() -> None:
    assert len(EMBEDDED) >= 5
    assert len(ON_SERVERS) >= 3
    assert {each.text.split(" --")[0] for each in LOADS} == {"moor load"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", EMBEDDED, ids=lambda each: f"line {each.line}")
async def test_the_loads_in_one_process(command: Printed, tmp_path: Path) -> None:
    await run_load(command, tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.rabbitmq
@pytest.mark.postgresql
@pytest.mark.parametrize("command", ON_SERVERS, ids=lambda each: f"line {each.line}")
async def test_the_loads_on_servers(command: Printed, tmp_path: Path) -> None:
    async with real_servers() as (bus, database):
        await run_load(command, tmp_path, bus, database)
