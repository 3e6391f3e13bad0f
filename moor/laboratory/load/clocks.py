"""The processes that a load run reads: their CPU clocks and their memory, by name."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from moor.clouds.cloud_processes import Servers, WorkerProcess
from moor.laboratory.load.cpu import process_cpu_s, process_tree_cpu_s
from moor.laboratory.load.listeners import listener_of
from moor.laboratory.load.memory import process_peak_mb, process_tree_mb

# How the names of the servers' processes start.
BROKER, DATABASE = ("beam", "erl"), ("postgres", "postmaster")
GENERATOR = "load generator"
Reader = Callable[[], float]


class Clocks(Struct, frozen=True):
    """The CPU clocks that a load run reads.

    `processes` has those whose time is the cost of a boot, by name. `generator` is the load generator's; None if it runs
    in one of these processes. `publishers` are processes of its independent publishers. `notes` say what the total of `processes`
    includes or excludes. `memory_mb` reads the memory of all of them.
    """

    processes: Mapping[str, Reader]
    generator: Reader | None
    notes: tuple[str, ...]
    publishers: Mapping[str, Reader] = {}
    memory_mb: Mapping[str, Reader] = {}


def clocks_of(
    workers: Sequence[WorkerProcess], servers: Servers | None, publishers: Sequence[int] = ()
) -> Clocks:
    """A CPU clock for each worker and server process; and notes that say which servers cannot be measured, and why.

    `publishers` are the ids of the publishers' processes.
    """
    own = partial(process_cpu_s, os.getpid())
    if servers is None:
        return Clocks(
            {"embedded": own},
            None,
            ("embedded: all is in one process, so the total includes the load generator",),
            memory_mb={"embedded": partial(process_peak_mb, os.getpid())},
        )
    pids = {worker.name: worker.pid for worker in workers}
    apart = {f"publishers-{number}": pid for number, pid in enumerate(publishers, 1)}
    trees, notes = _servers(servers)
    return Clocks(
        {
            **{name: partial(process_cpu_s, pid) for name, pid in pids.items()},
            **{name: partial(process_tree_cpu_s, pid) for name, pid in trees.items()},
        },
        own,
        notes,
        publishers={name: partial(process_cpu_s, pid) for name, pid in apart.items()},
        memory_mb={
            **{name: partial(process_peak_mb, pid) for name, pid in (pids | apart).items()},
            **{name: partial(process_tree_mb, pid) for name, pid in trees.items()},
            GENERATOR: partial(process_peak_mb, os.getpid()),
        },
    )


def _servers(servers: Servers) -> tuple[dict[str, int], tuple[str, ...]]:
    """The first process of each server on this machine, and why others are not measured."""
    found: dict[str, int] = {}
    notes = []
    measured = [("broker", servers.bus_url, BROKER), ("database", servers.database_url, DATABASE)]
    if servers.placement_url:
        measured.append(("placement_database", servers.placement_url, DATABASE))
    for name, url, programs in measured:
        match listener_of(url, programs):
            case str(why):
                notes.append(f"{name}: {why}, so the total excludes it")
            case pid if pid not in found.values():
                found[name] = pid
    return found, tuple(notes)
