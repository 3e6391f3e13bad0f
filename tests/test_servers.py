"""The servers for tests and benchmarks start, recover from a crash, and leave nothing behind."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import aio_pika
import asyncpg
import pytest

from laboratory.private_servers import START_PATIENCE_S
from tests.servers import (
    AMQP_CTL_VARIABLE,
    AMQP_VARIABLE,
    POSTGRES_VARIABLE,
    PrivatePostgres,
    PrivateRabbitMQ,
    descendants,
)
from tests.servers.free_places import IN_MEMORY, place_in_memory
from tests.servers.installed import (
    AskForHelp,
    Install,
    Machine,
    Ready,
    Software,
    decide,
)
from tests.servers.own_broker import brokers_in, take_broker

ROOT = Path(__file__).parents[1]
PATIENCE_S = 60.0
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
        assert ask(server, "SHOW work_mem") == "5MB"
        assert int(str(ask(server, "SHOW max_connections"))) >= 200
        ask(server, "CREATE TABLE kept AS SELECT 7 AS answer")
        crashed = server.processes()

        server.kill()

        assert server.processes() == ()
        server.start()
        assert server.url == before
        assert ask(server, "SELECT answer FROM kept") == 7
        running = server.processes()
        data = Path(str(ask(server, "SHOW data_directory")))
        assert data.exists()
        assert data.parent.parent == place
    assert still_there((*crashed, *running)) == []
    assert not data.exists()
    assert not data.parent.exists()


def test_a_killed_postgres_leaves_no_shared_memory_in_the_kernel() -> None:
    with PrivatePostgres() as server:
        data = Path(str(ask(server, "SHOW data_directory")))
        segment = (data / "postmaster.pid").read_text().splitlines()[6].split()[1]
        assert segment in shared_memory()
        server.kill()
    assert segment not in shared_memory()


def test_a_private_rabbitmq_recovers_from_a_crash_and_leaves_nothing_when_stopped() -> None:
    server = PrivateRabbitMQ()
    with server:
        before = server.url
        server.ctl("import_definitions", stdin='{"vhosts": [{"name": "imported"}]}')
        assert "imported" in server.ctl("-q", "list_vhosts").splitlines()
        asyncio.run(leave_a_message(server.url))
        server.settle()
        crashed = server.processes()

        server.kill()

        assert server.processes() == ()
        server.start()
        assert server.url == before
        assert asyncio.run(take_the_message(server.url)) == b"kept"
        running = server.processes()
        directory = Path(server.ctl_command.split()[-1]).parent
        assert directory.exists()
    assert still_there((*crashed, *running)) == []
    assert not directory.exists()


def test_data_is_kept_in_memory_only_where_there_is_room(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free

    assert place_in_memory(tmp_path, free // 2) == tmp_path
    assert place_in_memory(tmp_path, free * 2) is None
    assert place_in_memory(tmp_path / "missing", 0) is None


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


def test_no_broker_is_started_where_one_is_given() -> None:
    says_whether_there_are_more = f"import os, sys; sys.exit('{AMQP_VARIABLE}_2' in os.environ)"

    with harness(
        sys.executable, "-c", says_whether_there_are_more, given=NOWHERE, flags=("--brokers", "2")
    ) as done:
        assert done.wait(PATIENCE_S) == 0


def test_as_many_brokers_are_started_as_are_asked_for() -> None:
    urls = f"[os.environ[name] for name in ('{AMQP_VARIABLE}', '{AMQP_VARIABLE}_2')]"
    says_which = f"import os; print(len(set({urls})), '{AMQP_CTL_VARIABLE}_2' in os.environ)"
    postgres = {POSTGRES_VARIABLE: NOWHERE[POSTGRES_VARIABLE]}

    with harness(sys.executable, "-c", says_which, given=postgres, flags=("--brokers", "2")) as done:
        assert done.wait(START_PATIENCE_S) == 0
        assert said(done) == "2 True\n"


@pytest.mark.parametrize(("flags", "fsync"), [((), "off"), (("--durable",), "on")])
def test_durable_servers_wait_for_the_disk(flags: tuple[str, ...], fsync: str) -> None:
    asks = (
        "import asyncio, asyncpg, os\n"
        "async def ask():\n"
        f"    url = os.environ['{POSTGRES_VARIABLE}'].replace('+asyncpg', '')\n"
        "    connection = await asyncpg.connect(url)\n"
        "    print(await connection.fetchval('SHOW fsync'), await connection.fetchval('SHOW data_directory'))\n"
        "asyncio.run(ask())\n"
    )
    broker = {AMQP_VARIABLE: NOWHERE[AMQP_VARIABLE]}

    with harness(sys.executable, "-c", asks, given=broker, flags=flags) as done:
        assert done.wait(START_PATIENCE_S) == 0
        waits, directory = said(done).split()
    assert waits == fsync
    if flags:
        assert not Path(directory).is_relative_to(IN_MEMORY)


def test_a_command_that_dies_of_a_signal_counts_as_128_and_the_signal() -> None:
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"

    with harness(sys.executable, "-c", suicide, given=NOWHERE) as done:
        assert done.wait(PATIENCE_S) == 128 + signal.SIGKILL


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
    wait_until(lambda: still_there(started) == [])
    wait_until(lambda: not any(directory.exists() for directory in directories))


def test_the_servers_end_even_if_the_process_that_would_end_them_is_killed() -> None:
    server = PrivatePostgres()
    server.start()
    started = server.processes()
    keeper, directory = server.keeper, Path(str(ask(server, "SHOW data_directory"))).parent
    assert keeper is not None

    os.kill(keeper, signal.SIGKILL)

    wait_until(lambda: still_there(started) == [])
    assert directory.exists()
    server.stop()
    assert not directory.exists()


def test_missing_servers_are_installed_by_a_user_who_may() -> None:
    machine = Machine(installed=frozenset({Software.POSTGRES}), has_apt=True, become_root=("sudo", "-n"))

    assert decide(machine, (Software.RABBITMQ, Software.POSTGRES)) == Install(
        (Software.RABBITMQ,), ("sudo", "-n")
    )
    assert decide(machine, (Software.POSTGRES,)) == Ready()


def test_a_user_who_may_not_install_is_told_the_command_and_the_variables() -> None:
    machine = Machine(installed=frozenset(), has_apt=True, become_root=None)

    assert decide(machine, (Software.RABBITMQ, Software.POSTGRES)) == AskForHelp(
        "RabbitMQ and PostgreSQL not found, and only root may install them. Either install them:\n"
        "    sudo apt-get install -y rabbitmq-server postgresql\n"
        "or name running ones:\n"
        "    export MOOR_TEST_AMQP_URL=amqp://USER:PASSWORD@HOST:5672/\n"
        "    export MOOR_TEST_POSTGRES_URL=postgresql+asyncpg://SUPERUSER@HOST:5432/postgres"
    )


def test_a_machine_without_apt_is_told_only_what_is_missing() -> None:
    machine = Machine(installed=frozenset({Software.RABBITMQ}), has_apt=False, become_root=())

    assert decide(machine, (Software.RABBITMQ, Software.POSTGRES)) == AskForHelp(
        "PostgreSQL not found, and there is no apt-get to install it. Either install it:\n"
        "    (your system's way to install PostgreSQL)\n"
        "or name a running one:\n"
        "    export MOOR_TEST_POSTGRES_URL=postgresql+asyncpg://SUPERUSER@HOST:5432/postgres"
    )


def test_a_browser_can_only_be_installed() -> None:
    machine = Machine(installed=frozenset({Software.RABBITMQ}), has_apt=True, become_root=None)

    assert decide(machine, (Software.RABBITMQ, Software.CHROMIUM)) == AskForHelp(
        "Chromium not found, and only root may install it. Install it:\n    sudo apt-get install -y chromium"
    )


@contextmanager
def harness(
    *command: str, given: Mapping[str, str], flags: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    # None of the servers that the harness started, neither the first broker nor another.
    ours = {name: value for name, value in os.environ.items() if not name.startswith(tuple(NOWHERE))}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.servers", *flags, "--", *command],
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
    assert running.stdout is not None
    return running.stdout.readline().strip()


def said(done: subprocess.Popen[str]) -> str:
    assert done.stdout is not None
    return done.stdout.read()


def still_there(pids: Iterable[int]) -> list[int]:
    def lives(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return False

    return [pid for pid in pids if lives(pid)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {PATIENCE_S:g} s"
        time.sleep(0.01)


def shared_memory() -> set[str]:
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def ask(server: PrivatePostgres, query: str) -> object:
    async def once() -> object:
        connection = await asyncpg.connect(server.url.replace("+asyncpg", ""))
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return asyncio.run(once())


async def leave_a_message(url: str) -> None:
    connection = await aio_pika.connect(url)
    async with connection, connection.channel(publisher_confirms=True) as channel:
        await channel.declare_queue("kept", durable=True, arguments={"x-queue-type": "quorum"})
        await channel.default_exchange.publish(
            aio_pika.Message(b"kept", delivery_mode=aio_pika.DeliveryMode.PERSISTENT), routing_key="kept"
        )


async def take_the_message(url: str) -> bytes:
    connection = await aio_pika.connect(url)
    async with connection, connection.channel() as channel:
        queue = await channel.get_queue("kept")
        message = await queue.get(timeout=PATIENCE_S)
        await message.ack()
        return message.body
