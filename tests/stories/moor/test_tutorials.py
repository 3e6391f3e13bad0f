"""The tutorials of docs/tutorials, each followed from its first command to its last, as a reader copies them to a terminal.

A page runs in a directory and a cloud of its own. `exit code N` behind a command is what the reader sees, and so what is expected; a command with `again until "WORD"` is repeated
until it prints the word.
"""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import pytest

from tests.stories.moor.moor_process import Process, moor, moor_anew, started, started_anew
from tests.stories.real_servers import real_servers
from tests.waiting import until
from tools.pages.commands import ROOT, Printed, commands_of

pytestmark = pytest.mark.timeout(300)

FOLDER = "docs/tutorials"
# What is printed on these pages, among other things.
ON_ONE_MACHINE = {
    "first-boot": ("VCPU asked 500, free 128 of 128", "no faults"),
    "bare-metal": ("no host for late", "no faults"),
}
# The page on which each of the others is followed.
OTHERS = {"your-own-filter": "with a package", "your-own-compute": "on servers"}
# Run by other tests.
ELSEWHERE = ("make ", "export MOOR_BUS_URL=", "export MOOR_DB_URL=")
FILE = re.compile(r"```\w+\n# (?P<path>[\w./-]+)\n(?P<text>.*?)```", re.DOTALL)


def page_of(name: str) -> str:
    return f"{FOLDER}/{name}.md"


def said_behind(command: Printed, what: str) -> str:
    """What the page says behind the command."""
    found = re.search(rf"# {what}", (ROOT / command.page).read_text().splitlines()[command.line - 1])
    return found[1] if found else ""


class Follower:
    """A person who runs the commands of one page. What stays in the foreground runs until the page ends."""

    def __init__(self, home: Path, *, is_new_python: bool = False, **environment: str) -> None:
        self.home = home
        self.environment = {"XDG_STATE_HOME": str(home), **environment}
        self.printed = ""
        self._runs, self._starts = (moor_anew, started_anew) if is_new_python else (moor, started)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self._open.aclose()

    async def follow(self, page: str) -> None:
        """The commands in their order; what they print is `printed`."""
        commands = [each for each in commands_of(page) if not each.text.startswith(ELSEWHERE)]
        assert commands
        for command in commands:
            words = [os.path.expandvars(word) for word in shlex.split(command.text)]
            if words[0] == "export":
                name, _, value = words[1].partition("=")
                self.environment[name] = value
            elif command.goes_on or words[:2] == ["moor", "up"]:
                await self._start([self._value(word) for word in words])
            else:
                await self._run(command, words)

    def _value(self, word: str) -> str:
        return self.environment[word.removeprefix("$")] if word.startswith("$") else str(self._path(word))

    def _path(self, word: str) -> str:
        """A file that the page has the reader write is in the reader's own directory."""
        return str(self.home / word) if (self.home / word).is_file() else word

    async def _start(self, words: list[str]) -> None:
        if words[0] == "moor":
            process = await self._open.enter_async_context(self._starts(*words[1:], **self.environment))
            says_so = process.until_printed if words[1] == "up" else process.until_printed_to_stderr
            await says_so("ready")
            return
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *words[1:],
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self._open.push_async_callback(ended, child)
        await Process(child).until_printed("ready")

    async def _run(self, command: Printed, words: list[str]) -> None:
        awaited = said_behind(command, 'again until "(.+?)"')
        code, out, err = await until(
            lambda: self._run_once(words), command.where, lambda ran: awaited in ran[1]
        )
        said = f"{command.where}\n{out}{err}"
        assert code == int(said_behind(command, r"exit code (\d)") or 0), said
        assert "Traceback" not in err, said
        self.printed += f"$ {command.text}\n{out}{err}\n"
        print(f"$ {command.text}\n{out}{err}\n")

    async def _run_once(self, words: list[str]) -> tuple[int, str, str]:
        if words[0] != "moor":
            return self._run_python(words[1:])
        ran = await self._runs(*words[1:], **self.environment)
        return ran.code, ran.out, ran.err

    def _run_python(self, words: list[str]) -> tuple[int, str, str]:
        """What is installed goes to the reader's directory. pytest and the packages that build are there already."""
        if words[:3] == ["-m", "pip", "install"]:
            options = (
                "--no-deps",
                "--no-build-isolation",
                "--no-index",
                "--target",
                str(self.home / "installed"),
            )
            words = [*words[:3], *options, *(each for each in words[3:] if each != "pytest")]
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | self.environment,
        )
        return done.returncode, done.stdout, done.stderr

    def write_files(self, page: str) -> None:
        for file in FILE.finditer((ROOT / page).read_text()):
            path = self.home / file["path"]
            path.parent.mkdir(exist_ok=True)
            path.write_text(file["text"])


async def ended(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.send_signal(signal.SIGINT)
    await child.communicate()


async def test_every_tutorial_is_followed_by_a_test() -> None:
    assert {page.stem for page in (ROOT / FOLDER).glob("*.md")} == {*ON_ONE_MACHINE, *OTHERS}


@pytest.mark.parametrize("name", ON_ONE_MACHINE)
async def test_the_tutorials_for_one_machine(name: str, home: Path) -> None:
    async with Follower(home) as reader:
        await reader.follow(page_of(name))

    assert [each for each in ON_ONE_MACHINE[name] if each not in reader.printed] == []


async def test_the_tutorial_of_a_filter(home: Path) -> None:
    page = page_of("your-own-filter")
    packages = sysconfig.get_path("purelib")
    path = f"{home / 'installed'}:{ROOT}:{packages}"
    async with Follower(home, is_new_python=True, PYTHONPATH=path) as reader:
        reader.write_files(page)
        await reader.follow(page)

    assert "2 passed" in reader.printed
    assert "the best of 30 that qualified, of 40" in reader.printed
    assert "is no whole number" in reader.printed
    assert "makes 70 noise, allowed 40" in reader.printed


@pytest.mark.rabbitmq
@pytest.mark.postgresql
async def test_the_tutorial_of_a_compute(home: Path) -> None:
    async with (
        real_servers() as (bus, database),
        Follower(home, MOOR_BUS_URL=bus, MOOR_DB_URL=database) as reader,
    ):
        await reader.follow(page_of("your-own-compute"))

    assert "-2  capacity" in reader.printed
    assert "no faults" in reader.printed
