"""A whole cloud on real servers: starts each worker as its own process, and ends them all."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec
import typer
from msgspec import Struct

from bus.addresses import ADDRESSES, limits_at
from bus.broker import Broker
from kit.errors import Failure
from kit.settings import without_password
from laboratory.computes.faults import FaultScript
from moor.clouds.cloud import BareMetalPlan, prepare
from moor.options import broker_of, flag_of, found, tell, wrong_value
from moor.settings import GENERAL

END_S_MAX = 30.0
KILL_S_MAX = 5.0
LINES_SHOWN = 15


class WorkerSpec(Struct, frozen=True):
    """A worker to start: its name, the package that is run with `python -m`, and its environment variables."""

    name: str
    package: str
    environment: Mapping[str, str]


class Servers(Struct, frozen=True):
    bus_url: str
    database_url: str
    placement_url: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {
            "MOOR_BUS_URL": self.bus_url,
            "MOOR_DB_URL": self.database_url,
            # Empty counts as not set: variables of the operator's shell, for other servers, must not leak in.
            "MOOR_PLACEMENT_DB_URL": self.placement_url,
            **dict.fromkeys(("MOOR_IRONIC_DB_URL", "MOOR_IRONIC_BUS_URL", "MOOR_IRONIC_SHARDS"), ""),
            "MOOR_LOG_LEVEL": "WARNING",
        }


def servers_at(bus: str, db: str, placement_db: str) -> Servers | None:
    """The servers that the flags of a demo or load run name; None if the run is in one process, without servers."""
    if bool(bus) != bool(db):
        raise typer.BadParameter(
            "only one of --bus and --db is given: a real broker needs a real database; give both or neither"
        )
    if placement_db and not db:
        raise typer.BadParameter(
            f"--placement-db is {without_password(placement_db)!r} without --db: then everything is in one SQLite file; give both or neither"
        )
    if not bus:
        stated = found().stated(GENERAL)
        if named := [
            f"{field} ({stated[field].where})" for field in ("bus_url", "db_url") if field in stated
        ]:
            # These may be the servers of a cloud that works.
            tell(
                f"not used: {' and '.join(named)}; without --bus and --db all runs in this process", "yellow"
            )
        return None
    with wrong_value():
        urls = {
            field: ADDRESSES.stated(field, url, flag_of(field.removesuffix("_url"))).value
            for field, url in (("bus_url", bus), ("db_url", db), ("placement_db_url", placement_db))
            if url
        }
    # Refuses a memory bus, which exists in one process only.
    broker_of(bus)
    return Servers(urls["bus_url"], urls["db_url"], urls.get("placement_db_url", ""))


class WorkerEnded(Failure):
    """A worker ended although nobody stopped it; the message has the last lines of its log."""


class WorkerProcess:
    def __init__(self, spec: WorkerSpec, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = spec.name
        self._process = process
        self._log = log
        self._is_killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> None:
        """Wait until the process ends, and raise `WorkerEnded`. After `kill`, never return."""
        code = await self._process.wait()
        if self._is_killed:
            await asyncio.get_running_loop().create_future()
        last_lines = "\n".join(self._log.read_text(errors="replace").splitlines()[-LINES_SHOWN:])
        raise WorkerEnded(f"worker {self.name} ended with code {code}:\n{last_lines}")

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def kill(self) -> None:
        """Kill the process on purpose: `ended` does not raise for it."""
        self._is_killed = True
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def wait(self) -> None:
        await self._process.wait()


def worker_specs(cells: Mapping[str, int], counts: Mapping[str, int], script: Path) -> list[WorkerSpec]:
    """The worker processes to start. `counts` says how many of each kind (conductors: in each cell), `cells` how many simulated
    hosts each cell has.
    """
    specs = [
        WorkerSpec(f"{kind}-{number}", f"{kind}_worker", {})
        for kind in ("placement", "scheduler")
        for number in range(1, counts[kind] + 1)
    ]
    for cell, hosts in cells.items():
        here = {"MOOR_CELL": cell}
        specs += [
            WorkerSpec(f"conductor-{cell}-{number}", "cell_conductor", here)
            for number in range(1, counts["conductor"] + 1)
        ]
        simulated = {"MOOR_COMPUTE_HOSTS": str(hosts), "MOOR_COMPUTE_FAULTS": str(script)}
        specs.append(WorkerSpec(f"compute-{cell}", "compute_sim", here | simulated))
    return specs


def daemon_specs(metal: BareMetalPlan, ironic_url: str) -> list[WorkerSpec]:
    here = {
        "MOOR_IRONIC_URL": ironic_url,
        "MOOR_IRONIC_CELL": metal.cells.default,
        "MOOR_IRONIC_GROUPS": ",".join(f"{group}={cell}" for group, cell in metal.cells.groups.items()),
    }
    return [WorkerSpec(name, "ironic_sync", {**here, "MOOR_IRONIC_NAME": name}) for name in metal.names]


@contextmanager
def _cancelled_by_sigterm() -> Iterator[None]:
    """Let SIGTERM cancel this task, so that its cleanup ends the workers."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "called in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@asynccontextmanager
async def cloud_in_processes(
    broker: Broker,
    urls: Mapping[str, str],
    cells: Mapping[str, int],
    counts: Mapping[str, int],
    faults: FaultScript,
    *,
    metal: BareMetalPlan | None = None,
    ironic_url: str = "",
) -> AsyncIterator[Sequence[WorkerProcess]]:
    """Run all workers while this context is open; with `metal`, also its daemons, for the Ironic at `ironic_url`.

    `urls` go into the workers' environment, so that no password shows in a list of processes.
    """
    databases = urls["MOOR_DB_URL"], urls["MOOR_PLACEMENT_DB_URL"]
    limits = limits_at(urls["MOOR_BUS_URL"])
    await prepare(broker, cells, *databases, has_nodes=metal is not None, limits=limits)
    async with AsyncExitStack() as stack:
        stack.enter_context(_cancelled_by_sigterm())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moor-workers-")))
        script = directory / "faults.json"
        script.write_bytes(msgspec.json.encode(faults))
        workers: list[WorkerProcess] = []
        stack.push_async_callback(_end, workers)
        specs = worker_specs(cells, counts, script)
        if metal is not None:
            specs += daemon_specs(metal, ironic_url)
        for spec in specs:
            worker = await _start(spec, urls, directory / f"{spec.name}.log")
            workers.append(worker)
        yield workers


async def _start(spec: WorkerSpec, urls: Mapping[str, str], log: Path) -> WorkerProcess:
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", spec.package),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            env={**os.environ, **urls, **spec.environment},
            # The terminal sends Ctrl-C only to this process, which then ends the workers itself.
            start_new_session=True,
        )
    return WorkerProcess(spec, process, log)


async def _end(workers: Iterable[WorkerProcess]) -> None:
    """Tell all workers to drain, and kill those that are still alive after END_S_MAX."""
    for number, patience_s in ((signal.SIGTERM, END_S_MAX), (signal.SIGKILL, KILL_S_MAX)):
        left = [worker for worker in workers if worker.is_alive]
        if not left:
            return
        for worker in left:
            worker.send_signal(number)
        await asyncio.wait([asyncio.create_task(worker.wait()) for worker in left], timeout=patience_s)
