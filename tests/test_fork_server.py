"""The fork server of the tests: its processes are like those that Python starts anew."""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.fork_server import start_module
from tests.waiting import has_ended, until

PIPE = asyncio.subprocess.PIPE


async def test_a_process_has_its_own_arguments_environment_and_output() -> None:
    for number in (1, 2):
        process = await start_module(
            "tests.fork_server.example",
            "say",
            "\udcff",
            env={f"ONLY_{number}": "here"},
            stdout=PIPE,
            stderr=PIPE,
        )
        out, err = await process.communicate()

        said = json.loads(out)
        assert process.returncode == 0, err
        assert said["arguments"] == ["say", "\udcff"]
        assert said["environment"] == {f"ONLY_{number}": "here"}
        assert said["pid"] == process.pid
        assert (said["name"], said["stdin"]) == ("__main__", "")
        assert err == b"to stderr\n"


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        *(("returns", 0), ("exits", 7), ("refuses", 1), ("fails", 1), ("is_interrupted", -signal.SIGINT)),
        # It leaves an object that only the garbage collector frees, and a function to call at its end.
        ("leaves", 0),
    ],
)
async def test_its_exit_code_and_its_last_words_are_those_of_a_new_python(ending: str, code: int) -> None:
    process = await start_module("tests.fork_server.example", ending, env={}, stderr=PIPE, stdout=PIPE)
    out, err = await process.communicate()
    anew = subprocess.run(  # noqa: ASYNC221 - nothing else runs
        (sys.executable, "-m", "tests.fork_server.example", ending), capture_output=True, check=False
    )

    assert process.returncode == anew.returncode == code
    assert out == anew.stdout
    assert err.splitlines()[-2:] == anew.stderr.splitlines()[-2:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_ends_one_process_and_no_other(number: signal.Signals) -> None:
    victim, other = [
        await start_module("tests.fork_server.example", "waits", env={}, stdout=PIPE) for _ in range(2)
    ]
    for each in (victim, other):
        assert each.stdout is not None
        assert await each.stdout.readline() == b"waits\n"

    victim.send_signal(number)

    assert await victim.wait() == -number
    assert other.returncode is None
    other.kill()
    await other.wait()
    await asyncio.gather(victim.communicate(), other.communicate())


async def test_the_server_ends_with_the_process_that_started_it() -> None:
    program = (
        "import asyncio, os\n"
        "from tests.fork_server import start_module\n"
        "async def main():\n"
        "    process = await start_module('tests.fork_server.example', 'returns', env={}, stdout=-3)\n"
        "    await process.wait()\n"
        "    print(*__import__('tests.servers').servers.descendants(os.getpid()), flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    with tempfile.TemporaryFile("w+") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program), stdout=file, cwd=Path(__file__).parents[1]
        )
        await process.wait()
        file.seek(0)
        started = [int(each) for each in file.read().split()]

    assert len(started) == 1
    await until(lambda: has_ended(started[0]), "what it has started ends with it")


async def test_it_is_asked_for_no_variable_that_only_python_reads_at_its_start() -> None:
    with pytest.raises(AssertionError, match="must be a new process"):
        await start_module("moor", env={"PYTHONUTF8": "0"})
