"""`python -m laboratory.check`: whether a compute keeps the contract of docs/write-a-compute.md.

It plays the conductor of the cell, so the cell must have none. Exit code 0: all rules hold; 1: a rule is broken, or something
is left behind; 2: the check cannot run.
"""

import asyncio
import sys
from typing import Annotated

import click
import msgspec

from bus.addresses import check_cell
from engine.flavors import Flavor, Image
from kit.errors import Failure
from laboratory.check.rules import RULES, CheckRequest, Outcome, RuleFinding, check
from moor.flags import command, option
from moor.options import NOT_DONE, WRONG, fail, wrong_value

DAY_S = 86_400.0
Seconds = Annotated[float, option(metavar="S", min=0.01, max=DAY_S, help="How long each answer may take.")]


def check_compute(
    *,
    bus: Annotated[
        str,
        option(
            metavar="URL", help="The broker, as the user moor-conductor-CELL or any that may do the same."
        ),
    ],
    watch_bus: Annotated[
        str,
        option(
            metavar="URL",
            help="The same broker as a user that may bind queues to every exchange and read dead letters (moor-operator); "
            "default: --bus.",
        ),
    ] = "",
    cell: Annotated[str, option(help="A cell without a conductor, in which the compute runs.")],
    host: Annotated[
        list[str],
        option(
            metavar="NAME",
            help="A host of the compute, by its name or id; a second one for the rule 'move'.",
        ),
    ],
    restart: Annotated[
        str,
        option(
            metavar="COMMAND",
            help="A shell command that kills the compute (kill -9) and starts it again; it is run at the start and in the middle.",
        ),
    ] = "",
    limit: Seconds = 30.0,
    wait: Annotated[
        float,
        option(metavar="S", min=0.01, max=DAY_S, help="How long to wait for the host to tell its name."),
    ] = 60.0,
    vcpus: Annotated[int, option(help="The flavor of the instances.")] = 1,
    ram: Annotated[int, option(metavar="MB", help="The flavor's memory.")] = 64,
    disk: Annotated[int, option(metavar="GB", help="The flavor's disk.")] = 1,
    image: Annotated[
        str, option(metavar="SOURCE", help="The image that instances are built from; default: none.")
    ] = "",
    other_image: Annotated[str, option(metavar="SOURCE", help="The image for rebuilds.")] = "another",
    skip: Annotated[list[str] | None, option(metavar="RULE", help="A rule that is not tried.")] = None,
    json: Annotated[
        bool, option("--json", help="Print one JSON object at the end in place of lines.")
    ] = False,
) -> None:
    """Check a compute, in whatever language, against the contract in docs/write-a-compute.md. This program takes the place of the
    cell's conductor, and destroys all that it has built.

    Start it, and then the compute (or give --restart): a host tells its name and its inventories at the start.
    """
    known = [each.name for each in RULES]
    if unknown := sorted({*(skip or ())} - {*known}):
        raise click.BadParameter(f"--skip is {unknown[0]!r}: it must be one of {', '.join(known)}")
    with wrong_value(f"--cell is {cell!r}: "):
        check_cell(cell)
    request = CheckRequest(
        bus=bus,
        watch_bus=watch_bus or bus,
        cell=cell,
        hosts=tuple(host),
        flavor=Flavor(vcpus=vcpus, ram_mb=ram, root_gb=disk),
        image=Image(source=image) if image else None,
        other_image=Image(source=other_image),
        skipped=frozenset(skip or ()),
        wait_s=wait,
        limit_s=limit,
        restart=restart,
    )
    try:
        outcome = asyncio.run(check(request, (lambda _: None) if json else _told))
    except (Failure, ValueError) as problem:
        fail(f"cannot check: {problem}", WRONG)
    except KeyboardInterrupt:
        fail("stopped before the end", WRONG)
    if json:
        print(msgspec.json.encode(outcome).decode())
    else:
        _summed_up(outcome)
    if not outcome.is_well:
        raise click.exceptions.Exit(NOT_DONE)


def _told(finding: RuleFinding) -> None:
    sign = {True: "✓", False: "✗", None: "-"}[finding.holds]
    line = f"{sign} {finding.rule:16} {finding.says}"
    print(f"{line}: {finding.reason}" if finding.reason else line)
    if finding.holds is False:
        for words in ("sent", "expected", "came"):
            print(f"    {words:9} {getattr(finding, words)}")
    sys.stdout.flush()


def _summed_up(outcome: Outcome) -> None:
    tried = [each for each in outcome.findings if each.holds is not None]
    kept = sum(each.holds is True for each in tried)
    print(f"{kept} of {len(tried)} rules hold; {len(outcome.findings) - len(tried)} not tried")
    if outcome.left:
        print(f"left behind: {len(outcome.left)}")
        for each in outcome.left:
            print(f"    {each}")


if __name__ == "__main__":
    command(check_compute).main(prog_name="python -m laboratory.check")
