"""`python -m tests.libvirt.killed_compute FOLDER`: a compute with libvirt, which kills itself or a libvirtd at a step of its work.

The folder has the settings (`compute.json`) and the socket of the bus. The compute writes each step that it comes to into `steps`. If
there is a `kill`, it names a step and the processes to kill there by SIGKILL; the file becomes `killed` when that is done. If there is
a `fault`, the folder of the guests hangs, or answers with ESTALE, as that says.
"""

import asyncio
import errno
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from compute_sim.libvirt.running import libvirt_parts
from compute_sim.libvirt.settings import LibvirtRules
from compute_sim.wiring import run
from tests.libvirt.broken_folder import BrokenFolder
from tests.libvirt.host_devices import host_at_work
from tests.libvirt.libvirt_cloud import SETTINGS, SOCKET
from tests.waiting import has_ended, wait_for

SELF = 0


class Kill(Struct):
    """`pids` has the process to kill by the host on which the work comes to the step; SELF is the compute itself."""

    step: str
    pids: dict[str, int]


class Killer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def at_step(self, step: str) -> None:
        with self._lock:
            with (self._folder / "steps").open("a") as file:
                file.write(f"{step}\n")
            pid = self._ordered(step)
        if pid is None:
            return
        kill, killed = self._folder / "kill", self._folder / "killed"
        if pid == SELF:
            kill.rename(killed)
            os.kill(os.getpid(), signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: has_ended(pid), f"{pid} has ended")
        kill.rename(killed)

    def _ordered(self, step: str) -> int | None:
        try:
            kill = msgspec.json.decode((self._folder / "kill").read_bytes(), type=Kill)
        except FileNotFoundError:
            return None
        return kill.pids.get(host_at_work()) if kill.step == step else None


def break_as_told(folder: Path, guests: BrokenFolder) -> None:
    """Have the folder of the guests do what the file `fault` says now."""
    match (folder / "fault").read_text() if (folder / "fault").exists() else "":
        case "hang":
            guests.hang()
        case "stale":
            guests.fail(errno.ESTALE)
        case _:
            guests.heal()


def _keep_breaking(folder: Path, guests: BrokenFolder) -> None:
    while True:
        with suppress(FileNotFoundError):
            break_as_told(folder, guests)
        time.sleep(0.02)


def main(folder: Path) -> None:
    settings = msgspec.json.decode((folder / "compute.json").read_bytes(), type=LibvirtRules)
    compute = structs.replace(SETTINGS.compute, cell="c1")
    guests = BrokenFolder(folder / "instances")
    break_as_told(folder, guests)
    threading.Thread(target=_keep_breaking, args=(folder, guests), daemon=True).start()
    asyncio.run(
        run(
            f"unix://{folder / SOCKET}",
            compute,
            partial(libvirt_parts, libvirt=settings, at_step=Killer(folder).at_step),
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
