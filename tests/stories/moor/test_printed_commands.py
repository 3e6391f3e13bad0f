"""Every command that README.md and docs/ print is run as it is printed, with real names in place of the reader's own.

The commands of a page run in its order, on one cloud. So a page may use only what it has created before.
"""

import json
import os
import re
import shlex
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from operator import not_
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import bcrypt
import httpx
import pytest

from tests.contracts.rabbitmq_under_test import URL_VARIABLE, RabbitMQUnderTest
from tests.contracts.sql_stores import empty_database
from tests.stories.moor.moor_process import moor, moor_json, started
from tests.stories.real_servers import real_servers
from tests.waiting import until
from tools.pages.commands import PAGES, ROOT, Printed, commands_of

pytestmark = pytest.mark.timeout(300)

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
    "moor application ": "tests/stories/moor/test_moor_applications.py",
    "moor node adopt ": "tests/stories/moor/test_moor_node_adopt.py",
    "mysql ": "tests/stories/moor/test_moor_node_adopt.py",
    "moor node undeploy ": "tests/stories/moor/test_moor_bare_metal.py",
    "moor run placement-api --auth keystone": "tests/api/test_auth.py",
}
# A page with its own test, which runs its commands with flavors of its own; and the folder of pages that test_tutorials.py runs.
OF_FLAVORS = "docs/scheduling.md"
TUTORIALS = "docs/tutorials/"
# A page with its own test: test_import_page.py.
OF_NOVA = "docs/import-nova.md"
# Another one: test_nova_page_commands.py.
OF_A_NOVA = "docs/nova.md"
# A page with its own test, which makes its loads small: test_performance_page.py.
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
# In the other cell, hosts are so slow to receive an instance that its move can be aborted.
SLOW = "island-host-0000"
FAULTS = f"""
[[faults]]
is = "receives_slowly"
hosts = ["{SLOW}*"]
receive_ms = 600000
"""


def is_for_servers(command: Printed) -> bool:
    return command.text.startswith(SERVERS)


def runs_elsewhere(command: Printed) -> bool:
    return command.text.startswith(tuple(ELSEWHERE))


def test_every_page_with_commands_is_run() -> None:
    left = [
        command.where
        for page in PAGES
        for command in commands_of(page)
        if page
        not in (*ONE_MACHINE, OF_FLAVORS, OF_NOVA, OF_A_NOVA, OF_LOADS, OF_LIBVIRT, OF_CLUSTERS, *OPERATE)
        and not page.startswith(TUTORIALS)
        and not runs_elsewhere(command)
    ]

    assert left == []
    assert [file for file in ELSEWHERE.values() if not (ROOT / file).is_file()] == []


class Reader:
    """A person who copies the commands of one page to a terminal, and puts in the names that the page leaves open.

    Commands about an instance get one that is in the state that the command needs.
    """

    def __init__(self, home: Path, api: str) -> None:
        self._home = home
        self._api = api
        self._group = ""
        # All commands of one line are about one instance.
        self._line = 0
        self._instance: dict[str, Any] | None = None
        self._environment = {
            "XDG_STATE_HOME": str(home),
            "PATH": f"{home}:/usr/bin:/bin",
        }
        self._states: tuple[tuple[str, Callable[[], Awaitable[dict[str, Any]]]], ...] = (
            (r"moor migration (confirm|revert) ", self._moved),
            (r"moor unshelve \S+ --to", self._offloaded),
            (r"moor unshelve ", self._shelved),
            (r"moor migration abort ", self._moving),
            (r"moor migration show ", self._moved),
            (r"moor evacuate ", self._on_a_lost_host),
            (r"moor host drain ", self._on_its_own_host),
            (r"moor node .*\bID\b", self._on_a_node),
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
                ran = await moor(*words[1:], **self._environment)
            except TimeoutError:
                raise AssertionError(f"{command.where}\n{text}: it does not end") from None
            assert ran.code == 0, f"{command.where}\n{text}\n{ran.out}{ran.err}"
            assert "Traceback" not in ran.err, f"{command.where}\n{ran.err}"
            if text.startswith("moor group create"):
                self._group = re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", ran.out)[0]

    async def json(self, *words: str) -> Any:
        return await moor_json(*words, **self._environment)

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

    async def active(self) -> dict[str, Any]:
        """A new instance in the cell, on a host that no earlier command has put away."""
        return await self._booted(*[f"{CELL}-host-{number:05}" for number in range(1, 8)])

    async def _booted(self, *hosts: str) -> dict[str, Any]:
        named = [word for host in hosts for word in ("--host", host)]
        booted = await self.json("boot", "--vcpus", "1", "--ram", "512", "--disk", "5", *named)
        instance: dict[str, Any] = booted["instances"][0]
        return instance

    async def _moved(self) -> dict[str, Any]:
        return await self._after("migrate")

    async def _shelved(self) -> dict[str, Any]:
        return await self._after("shelve")

    async def _offloaded(self) -> dict[str, Any]:
        instance = await self.active()
        await self.json("shelve", instance["id"], "--offload")
        return instance

    async def _moving(self) -> dict[str, Any]:
        instance = await self._booted(f"{SLOW}1")
        moving: dict[str, Any] = await self.json("migrate", instance["id"], "--no-wait")
        return moving

    async def _after(self, move: str) -> dict[str, Any]:
        instance = await self.active()
        moved: dict[str, Any] = await self.json(move, instance["id"])
        return moved

    async def _on_a_lost_host(self) -> dict[str, Any]:
        """Alone there, as on a host that is drained."""
        instance = await self.active()
        await self._leave_only(instance["host"], instance["id"])
        await self.json("host", "set", instance["host"], "down", "--reason", "lost")
        return instance

    async def _on_a_node(self) -> dict[str, Any]:
        booted = await self.json("boot", "--flavor", "metal")
        instance: dict[str, Any] = booted["instances"][0]
        return instance

    async def _on_its_own_host(self) -> dict[str, Any]:
        host = f"{CELL}-host-00008"
        await self._leave_only(host)
        return await self._booted(host)

    async def _leave_only(self, host: str, kept: str = "") -> None:
        """Deletes what else is on the host: what was moved there, and not confirmed, could not leave it."""
        listed = await self.json("list")
        if others := [each["id"] for each in listed if each["host"] == host and each["id"] != kept]:
            await self.json("delete", "--wait", *others)

    # Commands that are not over by themselves, and other programs

    async def _watch(self, words: Sequence[str]) -> None:
        async with started(*words, **self._environment) as watching:
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
            answer = await client.get(url.replace("http://127.0.0.1:8780", self._api), headers=headers)
        assert answer.status_code == 200, answer.text


@asynccontextmanager
async def a_reader(home: Path) -> AsyncIterator[Reader]:
    faults = home / "faults.toml"
    faults.write_text(FAULTS)
    fence = home / "ipmi-off"
    fence.write_text("#!/bin/sh\nexit 0\n")
    fence.chmod(0o700)
    words = ("--hosts", "8", "--nodes", "4", "--daemons", "2", "--faults", str(faults))
    async with started("up", *words, XDG_STATE_HOME=str(home)) as cloud:
        await cloud.until_printed("ready")
        served = next(line for line in cloud.told if "placement is served at" in line)
        yield Reader(home, served.split()[-1])


@pytest.mark.asyncio
@pytest.mark.parametrize("page", ONE_MACHINE)
async def test_the_commands_for_one_machine(page: str, home: Path) -> None:
    commands = [each for each in commands_of(page) if not (runs_elsewhere(each) or is_for_servers(each))]
    assert commands
    wrong = []
    async with a_reader(home) as reader:
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
    under_test = await RabbitMQUnderTest.start()
    try:
        yield url_of(under_test)
    finally:
        await under_test.close()


def url_of(under_test: RabbitMQUnderTest) -> str:
    server = urlsplit(os.environ[URL_VARIABLE])
    return server._replace(path="/" + quote(under_test.virtual_host, safe="")).geturl()


@pytest.mark.asyncio
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
            ran = await moor(*words, **environment)
            assert ran.code == 0, f"{text}\n{ran.out}{ran.err}"

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
        audited = await moor("audit", "--settle", "0", **environment)
        assert audited.code == 0, audited.out + audited.err

        # Whatever the last commands started is heard by its next heartbeat.
        async def missing() -> list[object]:
            status = json.loads((await moor("status", "-o", "json", **environment)).out)
            workers = status["overview"]["workers"] if status["overview"] else []
            roles = {(each["beat"]["role"], each["beat"]["cell"]) for each in workers}
            return [*(ALL_ROLES - roles), *status["troubles"]]

        await until(missing, "all are heard, and nothing troubles", not_)
