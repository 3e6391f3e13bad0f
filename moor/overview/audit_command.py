"""`moor audit`: compares the books of placement, the API level, the cells and their hosts, and mends what differs."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import entry_points
from typing import Annotated, NoReturn

import click
from msgspec import Struct, structs

from moor.bare_metal.nodes import listing_nodes
from moor.client import BrokerAway, NotInTime
from moor.client.books.auditing import FOUND, MENDED, NOT_MENDED, ORDERED, AuditResult, Finding
from moor.client.books.rules import HeldByNova, NovaToAsk
from moor.flags import option
from moor.options import (
    NOT_IN_TIME,
    BusUrl,
    Output,
    Settle,
    cell_clients,
    client,
    command_settings,
    run,
    say,
    tell,
    wants_document,
)
from moor.settings import Settings
from moor.showing import print_line

# Exit codes of this command; the others are in moor/options.py.
FAULTS_FOUND = 4
NOT_ALL_MENDED = 5
_COLOURS = {FOUND: "yellow", MENDED: "green", ORDERED: "green", NOT_MENDED: "red"}


class Line(Struct, frozen=True, omit_defaults=True):
    """A finding as a line of JSON. With --follow, the outcome `gone` says that an earlier finding is not found again."""

    fault: str
    about: str
    text: str
    outcome: str
    why: str = ""


class Printer:
    """Prints findings; with --follow only those that are new, and those that are gone."""

    def __init__(self) -> None:
        self._known: dict[object, Line] = {}
        self._now: dict[object, Line] = {}
        self._is_first = True
        # Why the last look broke off; empty if it did not.
        self._away = ""

    def tell(self, finding: Finding) -> None:
        fault = finding.fault
        about = "" if fault.about is None else str(fault.about)
        line = Line(fault.kind, about, fault.text, finding.outcome, finding.why)
        if self._known.get(fault.key) != line:
            self._print(line)
        self._now[fault.key] = line

    def break_off(self, away: str, every: int) -> None:
        """The look has not come to its end. Its findings were printed, and an earlier one that it has not found counts as still there."""
        if not self._away:
            tell(f"{away}: this look broke off, and the next one is in {every} s", "yellow")
        self._known |= self._now
        self._now, self._away = {}, away

    def end(self, result: AuditResult, seconds: float) -> None:
        if self._away:
            tell("it is answered again", "yellow")
        gone = [each for key, each in self._known.items() if key not in self._now]
        for each in gone:
            if each.outcome in (FOUND, NOT_MENDED):
                self._print(structs.replace(each, outcome="gone", why=""))
        is_news = self._is_first or self._known != self._now
        self._known, self._now, self._is_first, self._away = self._now, {}, False, ""
        if is_news:
            self._summarize(result, seconds)

    def _print(self, line: Line) -> None:
        if wants_document():
            print_line(line)
            return
        colour = _COLOURS.get(line.outcome, "dim")
        why = f"; {line.why}" if line.why else ""
        say(f"{line.outcome:10} {line.fault}: {line.text}{why}", colour)

    def _summarize(self, result: AuditResult, seconds: float) -> None:
        left = [each for each in result.findings if each.outcome == NOT_MENDED]
        if wants_document():
            # The last line of an audit. Without a Nova that schedules through us there is no `nova`.
            print_line(
                {
                    "compared": result.compared,
                    "in_flight": result.in_flight,
                    "faults": len(result.findings),
                    "kinds": Counter(each.fault.kind for each in result.findings),
                    "not_mended": len(left),
                    "unanswered": result.unanswered,
                    "seconds": round(seconds, 3),
                    **({} if result.nova is None else {"nova": result.nova}),
                }
            )
            return
        kinds = Counter(each.fault.kind for each in result.findings)
        for kind, count in kinds.most_common():
            say(f"{count:10,} {kind}")
        faults = f"{len(result.findings):,} faults" if result.findings else "no faults"
        flight = f", {result.in_flight:,} of them in flight" if result.in_flight else ""
        say(f"{faults}: {result.compared:,} instances and consumers compared{flight}, in {seconds:.1f} s")
        for each in result.unanswered:
            say(f"{each} did not answer: nothing was compared there", "yellow")
        if result.nova is not None:
            _tell_of_nova(result.nova)


def _tell_of_nova(held: HeldByNova) -> None:
    amounts = ", ".join(f"{amount:,} {resource}" for resource, amount in held.amounts.items()) or "nothing"
    asked = "" if held.is_asked else "; whether it needs them was not asked (settings [nova])"
    say(f"Nova holds {amounts} by {held.consumers:,} consumers{asked}")
    if held.problem:
        say(f"Nova could not be asked which of them it needs, so none is freed: {held.problem}", "yellow")


def audit(
    bus: BusUrl = "",
    *,
    heal: Annotated[bool, option("--heal", help="Mend what differs, and say what was done.")] = False,
    remove_strays: Annotated[
        bool,
        option(
            "--remove-strays",
            help="With --heal: hosts remove what no row knows, with its disks. Only if nobody needs it.",
        ),
    ] = False,
    follow: Annotated[
        bool, option("--follow", help="Go on: look again and again, and print only what changes.")
    ] = False,
    every: Annotated[
        int, option(min=1, metavar="SECONDS", help="With --follow: the pause between two looks.")
    ] = 60,
    settle: Settle = 60,
    cell: Annotated[str, option(help="Only instances of this cell.")] = "",
    host: Annotated[str, option(help="Only instances that any of the books has on this host.")] = "",
    patience: Annotated[
        float, option(min=0.1, metavar="SECONDS", help="How long to wait for each answer.")
    ] = 30.0,
    _output: Output = None,
) -> None:
    """Compare the books of placement, the API level, the cells and their hosts; boots go on meanwhile.

    Exit code 0: no faults. 4: faults were found, and with --heal all are mended. 5: with --heal, some are not. 3: a cell,
    Ironic or Nova did not answer, and the others have no faults.
    """
    if remove_strays and not heal:
        raise click.BadParameter(
            "it says what --heal may do, which is not given", param_hint="--remove-strays"
        )
    settings = command_settings(bus=bus)
    printer = Printer()

    async def work() -> AuditResult:
        async with AsyncExitStack() as stack:
            moor = await stack.enter_async_context(client(settings, operates=True, patience_s=patience))
            below = await stack.enter_async_context(cell_clients(settings, patience))
            nova = await stack.enter_async_context(_owner_to_ask(settings))
            ironic = await stack.enter_async_context(listing_nodes(settings))
            look = partial(
                moor.audit,
                settle_s=settle,
                heal=heal,
                remove_strays=remove_strays,
                cell=cell,
                host=host,
                cells=settings.addresses.cells,
                below=below,
                tell=printer.tell,
                nova=nova,
                ironic=ironic,
            )
            while True:
                began_s = time.monotonic()
                try:
                    result = await look()
                except (NotInTime, BrokerAway) as away:
                    if not follow:
                        raise
                    printer.break_off(str(away), every)
                else:
                    printer.end(result, time.monotonic() - began_s)
                    if not follow:
                        return result
                await asyncio.sleep(every)

    _exit(run(work()), heals=heal)


@asynccontextmanager
async def _owner_to_ask(settings: Settings) -> AsyncIterator[NovaToAsk | None]:
    """Who knows the consumers without a cell, as the entry point of another package says; None if there is none, or the settings name
    none.
    """
    for each in entry_points(group="moorage.owners"):
        async with each.load()(settings) as owner:
            yield owner
        return
    yield None


def _exit(result: AuditResult, *, heals: bool) -> NoReturn:
    if result.findings:
        raise click.exceptions.Exit(FAULTS_FOUND if not heals or result.is_all_mended else NOT_ALL_MENDED)
    is_whole = not result.unanswered and not (result.nova and result.nova.problem)
    raise click.exceptions.Exit(0 if is_whole else NOT_IN_TIME)
