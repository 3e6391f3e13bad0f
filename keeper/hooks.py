"""Hooks: programs in the keepers' folder that campaigns run for a host. One installs an empty host and restarts it, another switches a lost
host off.

A hook gets the host's name and its cell as arguments. It runs in a process group of its own, which is killed when its time is up. A keeper
that dies takes its hooks with it, and the next one runs them again: so a hook must bear that.
"""

import asyncio
import logging
import os
import re
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bus.messages.keeping import CampaignHost, CampaignId, CampaignState
from engine.inventories import ProviderId
from keeper.fences import BUILT_IN, command_of, why_unusable
from kit.parts import Background

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# So much of the end of what a hook prints is told if it fails.
OUTPUT_MAX = 500
READ_BYTES = 4096
# Programs that a hook has started may hold its output open.
OUTPUT_S = 1.0

Key = tuple[CampaignId, ProviderId]
# The command that is run, and its name for people.
Program = tuple[str, Sequence[str]]
Outcome = Callable[[Program, CampaignHost, Mapping[str, str], float], Awaitable[str]]


class Hooks:
    """Runs hooks beside the keeper's rounds. Used by `async with`, whose end kills those that run."""

    def __init__(self, folder: str, controllers_file: str = "", outcome: Outcome | None = None) -> None:
        """`outcome` runs a program, and says why it failed; empty if it did not."""
        self._folder = folder
        self._controllers_file = controllers_file
        self._outcome = outcome or _run
        self._keys: set[Key] = set()
        self._running = Background(self._keys.discard)
        # How those that have ended did: empty if well, else why not.
        self._ended: dict[Key, str] = {}

    async def __aenter__(self) -> None:
        await self._running.__aenter__()

    async def __aexit__(self, *how: object) -> None:
        self._running.cancel_all()
        await self._running.__aexit__(None, None, None)

    def why_unknown(self, name: str) -> str:
        """Why there is no hook of this name; empty if there is one."""
        if not NAME.fullmatch(name):
            return "a hook's name is letters, digits, '.', '_' and '-', and no path"
        if name in BUILT_IN and not (self._folder and _is_program(Path(self._folder, name))):
            return why_unusable(name, self._controllers_file)
        if not self._folder:
            return "the keepers have no folder of hooks: set keeper.hooks_folder"
        if not _is_program(Path(self._folder, name)):
            known = sorted(each.name for each in Path(self._folder).glob("*") if _is_program(each))
            return f"the keepers' folder of hooks has no such program: there are {', '.join(known) or 'none'}"
        return ""

    def runs(self, campaign: CampaignState, host: CampaignHost) -> bool:
        """Does the hook of this host run here, or has it just ended?"""
        return (campaign.id, host.id) in {*self._keys, *self._ended}

    def result(self, campaign: CampaignState, host: CampaignHost, name: str, within_s: float) -> str | None:
        """How the hook `name` of this host has ended: empty if well. None while it runs; it is started if it does not."""
        key = campaign.id, host.id
        if key in self._ended:
            return self._ended.pop(key)
        if key not in self._running:
            self._keys.add(key)
            self._running.start(self._run(key, campaign, host, name, within_s), key)
        return None

    def keep_only(self, held: Collection[CampaignId]) -> None:
        """Kill the hooks of all other campaigns: another keeper works on them."""
        for key in [each for each in self._keys if each[0] not in held]:
            self._running.cancel(key)

    async def _run(
        self, key: Key, campaign: CampaignState, host: CampaignHost, name: str, within_s: float
    ) -> None:
        if why := self.why_unknown(name):
            self._ended[key] = why
            return
        variables = {"MOOR_CAMPAIGN": campaign.name, "MOOR_HOST": host.host, "MOOR_CELL": host.cell}
        log.info("campaign %s runs hook %s for host %s", campaign.name, name, host.host)
        own = Path(self._folder, name)
        is_built_in = name in BUILT_IN and not (self._folder and _is_program(own))
        program = command_of(name, self._controllers_file) if is_built_in else (str(own),)
        self._ended[key] = await self._outcome((name, program), host, variables, within_s)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


async def _run(program: Program, host: CampaignHost, variables: Mapping[str, str], within_s: float) -> str:
    name, command = program
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            host.host,
            host.cell,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )
    except OSError as problem:
        return f"hook {name} could not be started: {problem}"
    assert process.stdout is not None
    reading = asyncio.create_task(_last_of(process.stdout))
    try:
        async with asyncio.timeout(within_s):
            code = await process.wait()
    except TimeoutError:
        return f"hook {name} was killed: it ran for more than {within_s:g} s"
    finally:
        # And all that it has started.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await asyncio.wait((reading,), timeout=OUTPUT_S)
        reading.cancel()
    said = reading.result() if reading.done() and not reading.cancelled() else ""
    return f"hook {name} ended with code {code}: {said}".rstrip(": ") if code else ""


async def _last_of(stream: asyncio.StreamReader) -> str:
    last = b""
    while chunk := await stream.read(READ_BYTES):
        last = (last + chunk)[-OUTPUT_MAX:]
    return last.decode(errors="replace").strip()
