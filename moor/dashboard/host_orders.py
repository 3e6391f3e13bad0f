"""Orders about hosts: their modes, and how they are emptied. Sent as `moor host set`, `moor host drain` and `moor evacuate` send them."""

from collections.abc import Mapping, Sequence
from typing import Final, get_args
from urllib.parse import quote

from bus.messages.build import MoveKind
from bus.messages.hosts import AskHosts, HostSet, HostsFound, SetHost
from engine.hosts import NODE, HostMode, HostState, host_in_cell, names_clash
from moor.asking import CommandClient, answer_of
from moor.client.errors import Rejected
from moor.client.moving import HostMoves, instances_on
from moor.dashboard.jobs import DashboardJob
from moor.dashboard.ordering import Clouds, Given, OrderQuestion
from moor.dashboard.rendering import PageRefused, Reader
from moor.showing import time_in_words

MOVES_AT_ONCE: Final = 10
EVACUATIONS_AT_ONCE: Final = 50


async def host_named(asking: CommandClient, name: str) -> HostState:
    """The only host of this name. Raises PageRefused."""
    found = (await answer_of(asking, AskHosts(name=name), HostsFound)).hosts if name else ()
    if not found:
        raise PageRefused(f"There is no host {name!r}.")
    if len(found) > 1:
        raise PageRefused(f"host is {name!r}: {names_clash(name, [each.cell for each in found])}")
    return found[0]


def whole_name(host: HostState) -> str:
    return host_in_cell(host.cell, host.name)


def page_of(host: HostState) -> str:
    return f"/hosts/{quote(host.cell)}/{quote(host.name)}"


def counted(number: int) -> str:
    return "1 instance" if number == 1 else f"{number:,} instances"


_MODES: Final[Mapping[str, tuple[str, str]]] = {
    "up": ("Set {} up", "It may be used again: new instances are built there, if it sends heartbeats."),
    "draining": (
        "Set {} draining",
        "Nothing new is built there. Its instances stay: to move them away, drain the host.",
    ),
    "down": (
        "Set {} down",
        "It counts as if its heartbeats had stopped: nothing new is built there, and its instances may be evacuated. They go on.",
    ),
    "dead": (
        "Set {} dead",
        "It counts as down, and nobody waits for it to clean up: what it holds for instances that have left it is released at once.",
    ),
}


class SetMode:
    for_members = False

    async def question(self, clouds: Clouds, given: Given, reader: Reader) -> OrderQuestion:
        del reader
        mode = given.get("mode", "")
        if mode not in _MODES:
            raise PageRefused(f"mode is {mode!r}: it must be one of {', '.join(get_args(HostMode))}.")
        host = await host_named(clouds.asking, given.get("host", ""))
        if mode == "dead" and host.kind == NODE:
            raise PageRefused(f"{host.name} is a bare-metal node, which cannot be dead.")
        there = await instances_on(clouds.asking, whole_name(host))
        title, meaning = _MODES[mode]
        now = f"It is {host.setting.mode} now" + (f": {host.setting.reason}" if host.setting.reason else "")
        heard = (
            f". It was heard at {time_in_words(host.heard_at)}" if mode == "dead" and host.heard_at else ""
        )
        return OrderQuestion(
            title=title.format(whole_name(host)),
            button=f"Set it {mode}",
            sentences=(f"{now}{heard}.", meaning),
            instances=len(there),
            about=f"mode of {whole_name(host)}",
            given={"host": whole_name(host), "mode": mode},
            back=page_of(host),
            sure="Nothing runs on this host, and nothing will: it is off, or its disks are gone."
            if mode == "dead"
            else "",
            asks_reason=mode != "up",
            is_harmful=mode == "dead",
        )

    async def carry_out(self, clouds: Clouds, given: Given, job: DashboardJob) -> None:
        mode: HostMode = given["mode"]  # type: ignore[assignment]  # the question has checked it
        async with clouds.ordering() as asking:
            host = await _set(asking, given, mode, job)
        job.say(f"{whole_name(host)} is set {host.setting.mode}, by {host.setting.by}.")


async def _set(asking: CommandClient, given: Given, mode: HostMode, job: DashboardJob) -> HostState:
    reason = given.get("reason", "").strip()
    # Who sets a host dead has confirmed that nothing runs there (`OrderQuestion.sure`).
    order = SetHost(host=given["host"], mode=mode, reason=reason, for_user=job.by, sure=mode == "dead")
    return (await answer_of(asking, order, HostSet)).host


class Drain:
    for_members = False

    async def question(self, clouds: Clouds, given: Given, reader: Reader) -> OrderQuestion:
        del reader
        host = await host_named(clouds.asking, given.get("host", ""))
        there = await instances_on(clouds.asking, whole_name(host))
        return OrderQuestion(
            title=f"Drain {whole_name(host)}",
            button=f"Drain it: move {counted(len(there))}",
            sentences=(
                "It is set draining: nothing new is built there until it is set up again.",
                f"Its instances move to other hosts of cell {host.cell}, at most {MOVES_AT_ONCE} at a time: live, or else stopped meanwhile.",
                "Those for which no host has room stay.",
            ),
            instances=len(there),
            about=f"instances of {whole_name(host)}",
            given={"host": whole_name(host)},
            back=page_of(host),
            asks_reason=True,
        )

    async def carry_out(self, clouds: Clouds, given: Given, job: DashboardJob) -> None:
        async with clouds.ordering() as asking:
            host = await _set(asking, given, "draining", job)
            job.say(f"{whole_name(host)} is set draining, by {host.setting.by}.")
            await _empty(asking, whole_name(host), ("live-migrate", "migrate"), MOVES_AT_ONCE, job)


class Evacuate:
    for_members = False

    async def question(self, clouds: Clouds, given: Given, reader: Reader) -> OrderQuestion:
        del reader
        host = await host_named(clouds.asking, given.get("host", ""))
        if host.up:
            raise PageRefused(f"{whole_name(host)} is up, so nothing can be evacuated: set it down first.")
        there = await instances_on(clouds.asking, whole_name(host))
        return OrderQuestion(
            title=f"Evacuate {whole_name(host)}",
            button=f"Evacuate it: build {counted(len(there))} anew",
            sentences=(
                f"Its instances are built anew on other hosts of cell {host.cell}, at most {EVACUATIONS_AT_ONCE} at a time.",
                f"They keep their ids. What is only on the disks of {host.name} is lost to them.",
                "Those for which no host has room wait for it, and stay if the host is up again before.",
            ),
            instances=len(there),
            about=f"instances of {whole_name(host)}",
            given={"host": whole_name(host)},
            back=page_of(host),
            is_harmful=True,
            sure="I have made sure that this host is off. If it still runs, its instances would run twice.",
        )

    async def carry_out(self, clouds: Clouds, given: Given, job: DashboardJob) -> None:
        async with clouds.ordering() as asking:
            host = await host_named(asking, given["host"])
            if host.up:
                raise Rejected("host", given["host"], "it is up, so nothing was evacuated: set it down first")
            await _empty(asking, whole_name(host), ("evacuate",), EVACUATIONS_AT_ONCE, job)


async def _empty(
    asking: CommandClient, host: str, kinds: Sequence[MoveKind], at_once: int, job: DashboardJob
) -> None:
    there = await instances_on(asking, host)
    moves = HostMoves(asking, there, kinds, (), for_user=job.by, tell=job.show_progress)
    try:
        await moves.make(at_once)
    finally:
        job.stayed, job.progress = moves.still_there(), ""
        job.say(f"{len(moves.moved)} of {counted(len(there))} have left {host}.")
