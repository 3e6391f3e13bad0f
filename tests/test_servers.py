"""The servers for tests and benchmarks start, recover from a crash, and leave nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.sql_stores import rows_of
from tests.narrowing import present
from tests.servers import (
    AMQP_CTL_VARIABLE,
    AMQP_VARIABLE,
    POSTGRES_VARIABLE,
    PrivatePostgres,
    descendants,
)
from tests.servers.installed import (
    Install,
    Machine,
    Ready,
    Software,
    decide,
)
from tests.servers.own_broker import brokers_in, take_broker
from tests.waiting import PATIENCE_S, has_ended, wait_for

ROOT = Path(__file__).parents[1]
NOWHERE = {AMQP_VARIABLE: "amqp://127.0.0.1:9/", POSTGRES_VARIABLE: "postgresql+asyncpg://127.0.0.1:9/none"}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the servers' own users may enter."""
    with tempfile.TemporaryDirectory(prefix="moor-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def test_a_private_postgres_recovers_from_a_crash_and_leaves_nothing_when_stopped(place: Path) -> None:
    server = PrivatePostgres(settings={"fsync": "off", "work_mem": "5MB"}, place=place)
    with server:
        before = server.url
        assert ask(server, "SHOW work_mem") == [("5MB",)]
        assert int(ask(server, "SHOW max_connections")[0][0]) >= 200
        ask(server, "CREATE TABLE kept AS SELECT 7 AS answer")
        crashed = server.processes()

        server.kill()

        assert server.processes() == ()
        server.start()
        assert server.url == before
        assert ask(server, "SELECT answer FROM kept") == [(7,)]
        running = server.processes()
        data = Path(ask(server, "SHOW data_directory")[0][0])
        assert data.exists()
        assert data.parent.parent == place
    assert still_there((*crashed, *running)) == []
    assert not data.exists()
    assert not data.parent.exists()


def test_the_command_gets_the_given_servers_and_its_exit_code_is_returned() -> None:
    says_what_it_got = f"import os, sys; print(os.environ['{AMQP_VARIABLE}'], os.environ['{POSTGRES_VARIABLE}']); sys.exit(7)"

    with harness(sys.executable, "-c", says_what_it_got, given=NOWHERE) as done:
        assert done.wait(PATIENCE_S) == 7
        assert said(done) == f"{NOWHERE[AMQP_VARIABLE]} {NOWHERE[POSTGRES_VARIABLE]}\n"


def test_each_test_process_takes_a_broker_of_its_own() -> None:
    two = {
        AMQP_VARIABLE: "amqp://first",
        AMQP_CTL_VARIABLE: "ctl first",
        f"{AMQP_VARIABLE}_2": "amqp://second",
        f"{AMQP_CTL_VARIABLE}_2": "ctl second",
    }
    assert (brokers_in(two), brokers_in(NOWHERE), brokers_in({})) == (2, 1, 1)

    taken = []
    for process in ("gw0", "gw1"):
        environment = dict(two)
        take_broker(environment, process)
        taken.append((environment[AMQP_VARIABLE], environment[AMQP_CTL_VARIABLE]))
    assert taken == [("amqp://first", "ctl first"), ("amqp://second", "ctl second")]


def test_processes_that_a_command_leaves_running_are_ended_daemons_too() -> None:
    # The shell ends at once; its daemon has a session of its own and would run for minutes.
    leaves_a_daemon = "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!"
    with harness("/bin/sh", "-c", leaves_a_daemon, given=NOWHERE) as done:
        assert done.wait(PATIENCE_S) == 0
        assert still_there([int(said(done))]) == []


# Not `signal.pause()`: a signal just before it has its handler called after it, and so never.
WAITS = "while True: time.sleep(0.05)\n"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_command_which_may_finish_in_its_own_time(signum: signal.Signals) -> None:
    finishes = (
        "import signal, sys, time\n"
        f"signal.signal({signum:d}, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        f"{WAITS}"
    )
    with harness(sys.executable, "-c", finishes, given=NOWHERE) as running:
        assert first_line(running) == "ready"

        running.send_signal(signum)

        assert running.wait(PATIENCE_S) == 9


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_harness_however_it_is_ended(signum: signal.Signals) -> None:
    has_a_child = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '300'], start_new_session=True, stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        f"{WAITS}"
    )
    with harness(sys.executable, "-c", has_a_child, given={AMQP_VARIABLE: NOWHERE[AMQP_VARIABLE]}) as running:
        child = int(first_line(running))
        started = descendants(running.pid)
        assert child in started
        directories = {Path(f"/proc/{pid}/cwd").readlink() for pid in started} - {Path.cwd(), ROOT}
        assert directories

        running.send_signal(signum)

        assert running.wait(PATIENCE_S) != 0
    wait_for(lambda: still_there(started) == [])
    wait_for(lambda: not any(directory.exists() for directory in directories))


def test_missing_servers_are_installed_by_a_user_who_may() -> None:
    machine = Machine(installed=frozenset({Software.POSTGRES}), has_apt=True, become_root=("sudo", "-n"))

    assert decide(machine, (Software.RABBITMQ, Software.POSTGRES)) == Install(
        (Software.RABBITMQ,), ("sudo", "-n")
    )
    assert decide(machine, (Software.POSTGRES,)) == Ready()


@contextmanager
def harness(*command: str, given: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    # None of the servers that the harness started, neither the first broker nor another.
    ours = {name: value for name, value in os.environ.items() if not name.startswith(tuple(NOWHERE))}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.servers", "--", *command],
        cwd=ROOT,
        env={**ours, **given},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def first_line(running: subprocess.Popen[str]) -> str:
    return present(running.stdout).readline().strip()


def said(done: subprocess.Popen[str]) -> str:
    return present(done.stdout).read()


def still_there(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if not has_ended(pid)]


def ask(server: PrivatePostgres, query: str) -> list[tuple[Any, ...]]:
    return asyncio.run(rows_of(server.url, query))
