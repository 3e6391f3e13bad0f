"""A whole cloud on real servers: every worker is a process of its own, started and ended here."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from bus.broker import Broker
from bus.topology import objects_of
from compute_sim.core.faults import FaultScript
from moor.bare_metal import Metal
from moor.cloud import upgrade_all

T = TypeVar("T")

END_S_MAX = 30.0
KILL_S_MAX = 5.0
LINES_SHOWN = 15


class Duty(Struct, frozen=True):
    """One worker that is to run: what to call it, which room it is of, and what it finds in its environment."""

    name: str
    room: str
    environment: Mapping[str, str]


class Servers(Struct, frozen=True):
    """Where the workers find the broker and the databases, and the variables that state their settings."""

    bus_url: str
    database_url: str
    placement_url: str = ""
    settings: Mapping[str, str] = {}

    @property
    def environment(self) -> dict[str, str]:
        return {
            **self.settings,
            "MOOR_BUS_URL": self.bus_url,
            "MOOR_DB_URL": self.database_url,
            # Empty states nothing: what the shell has for other servers does not count here.
            "MOOR_PLACEMENT_DB_URL": self.placement_url,
            **dict.fromkeys(("MOOR_IRONIC_DB_URL", "MOOR_IRONIC_BUS_URL", "MOOR_IRONIC_SHARDS"), ""),
            "MOOR_LOG_LEVEL": "WARNING",
        }


class WorkerEnded(RuntimeError):  # noqa: N818 - named for what happened
    """A worker ended though nobody told it to; the message has its last words."""


class Worker:
    """A process that was started for a duty."""

    def __init__(self, duty: Duty, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = duty.name
        self._process = process
        self._log = log
        self._is_killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> None:
        """Raises `WorkerEnded` when it has; never returns if it was killed."""
        code = await self._process.wait()
        if self._is_killed:
            await asyncio.get_running_loop().create_future()
        words = "\n".join(self._log.read_text(errors="replace").splitlines()[-LINES_SHOWN:])
        raise WorkerEnded(f"worker {self.name} ended with code {code}:\n{words}")

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def kill(self) -> None:
        """On purpose: nobody is surprised that it has ended."""
        self._is_killed = True
        self.tell(signal.SIGKILL)

    def tell(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def wait(self) -> None:
        await self._process.wait()


class Crew:
    """`ironic_url` is where the simulated Ironic serves its API, if there is one."""

    def __init__(self, workers: Sequence[Worker], ironic_url: str = "") -> None:
        self.workers = workers
        self.ironic_url = ironic_url

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result; or `WorkerEnded`, as soon as one of the workers has."""
        working = asyncio.create_task(work)
        watching = [asyncio.create_task(worker.ended()) for worker in self.workers]
        try:
            done, _ = await asyncio.wait((working, *watching), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task is not working:
                    task.result()
            return working.result()
        finally:
            for task in (working, *watching):
                task.cancel()
            await asyncio.gather(working, *watching, return_exceptions=True)


def duties_of(cells: Mapping[str, int], counts: Mapping[str, int], script: Path) -> list[Duty]:
    """So many workers of each kind (conductors: in each cell), and in each cell computes that pretend so many hosts."""
    duties = [
        Duty(f"{kind}-{number}", f"{kind}_worker", {})
        for kind in ("placement", "scheduler")
        for number in range(1, counts[kind] + 1)
    ]
    for cell, hosts in cells.items():
        here = {"MOOR_CELL": cell}
        duties += [
            Duty(f"conductor-{cell}-{number}", "cell_conductor", here)
            for number in range(1, counts["conductor"] + 1)
        ]
        pretended = {"MOOR_COMPUTE_HOSTS": str(hosts), "MOOR_COMPUTE_FAULTS": str(script)}
        duties.append(Duty(f"compute-{cell}", "compute_sim", here | pretended))
    return duties


def duty_of_ironic(metal: Metal, bus_url: str, address: str, script: Path) -> Duty:
    """The simulated Ironic, which is to serve its API at this address."""
    return Duty(
        "simulated-ironic",
        "compute_sim.ironic",
        {
            "MOOR_IRONIC_BUS_URL": bus_url,
            "MOOR_IRONIC_SIM_NODES": str(metal.nodes),
            "MOOR_IRONIC_SIM_GROUPS": ",".join(metal.groups),
            "MOOR_IRONIC_SIM_LISTEN": address,
            "MOOR_IRONIC_SIM_PACE": str(metal.pace),
            "MOOR_IRONIC_SIM_SCRIPT": str(script),
        },
    )


def duties_of_daemons(metal: Metal, ironic_url: str) -> list[Duty]:
    here = {
        "MOOR_IRONIC_URL": ironic_url,
        "MOOR_IRONIC_CELL": metal.cells.default,
        "MOOR_IRONIC_GROUPS": ",".join(f"{group}={cell}" for group, cell in metal.cells.groups.items()),
    }
    return [Duty(name, "ironic_sync", {**here, "MOOR_IRONIC_NAME": name}) for name in metal.names]


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """So that the workers are ended, too."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "called in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@asynccontextmanager
async def cloud_apart(
    broker: Broker,
    urls: Mapping[str, str],
    cells: Mapping[str, int],
    counts: Mapping[str, int],
    faults: FaultScript,
    *,
    metal: Metal | None = None,
    ironic_url: str = "",
) -> AsyncIterator[Crew]:
    """All workers, with so many pretended hosts in each cell, and with `metal` a simulated Ironic and its daemons, for as
    long as this is open. With an `ironic_url` the simulated Ironic is the caller's. `urls` is what they find in their
    environment, where no password shows in a list of processes.
    """
    connection = await broker.connect()
    try:
        await connection.declare(objects_of(cells, create_foreign=metal is not None))
    finally:
        await connection.close()
    await upgrade_all(urls["MOOR_DB_URL"], urls["MOOR_PLACEMENT_DB_URL"], has_nodes=metal is not None)
    async with AsyncExitStack() as stack:
        stack.enter_context(_ending_on_sigterm())
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moor-workers-")))
        script = place / "faults.json"
        script.write_bytes(msgspec.json.encode(faults))
        workers: list[Worker] = []
        stack.push_async_callback(_end, workers)
        duties = duties_of(cells, counts, script)
        if metal is not None and not ironic_url:
            address = _free_address()
            mishaps = place / "ironic_script.json"
            mishaps.write_bytes(msgspec.json.encode(metal.script))
            duties.append(duty_of_ironic(metal, urls["MOOR_BUS_URL"], address, mishaps))
            ironic_url = f"http://{address}"
        if metal is not None:
            duties += duties_of_daemons(metal, ironic_url)
        for duty in duties:
            worker = await _start(duty, urls, place / f"{duty.name}.log")
            workers.append(worker)
        yield Crew(workers, ironic_url)


def _free_address() -> str:
    """On loopback, for a process that is told where to listen. Somebody else may take the port first: then it ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


async def _start(duty: Duty, urls: Mapping[str, str], log: Path) -> Worker:
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", duty.room),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            env={**os.environ, **urls, **duty.environment},
            # A Ctrl-C is for us alone: we tell them.
            start_new_session=True,
        )
    return Worker(duty, process, log)


async def _end(workers: Iterable[Worker]) -> None:
    """Told to drain, all at once; who has not ended by then is not asked again."""
    for word, patience_s in ((signal.SIGTERM, END_S_MAX), (signal.SIGKILL, KILL_S_MAX)):
        left = [worker for worker in workers if worker.is_alive]
        if not left:
            return
        for worker in left:
            worker.tell(word)
        await asyncio.wait([asyncio.create_task(worker.wait()) for worker in left], timeout=patience_s)
