"""`python -m laboratory.check`: whether a compute keeps the contract of docs/write-a-compute.md.

It plays the conductor of the cell, so the cell must have none. Exit code 0: all rules hold; 1: a rule is broken, or something
is left behind; 2: the check cannot run.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

import msgspec

from bus.topology import CELL0, CELL_NAME
from engine.flavors import Flavor, Image
from kit.errors import Failure
from laboratory.check.rules import RULES, CheckRequest, Outcome, RuleFinding, check

CANNOT_RUN = 2


def main(arguments: Sequence[str]) -> int:
    chosen = _parser().parse_args(arguments)
    request = _request(chosen)
    tell = _nothing if chosen.json else _told
    try:
        outcome = asyncio.run(check(request, tell))
    except (Failure, ValueError) as problem:
        print(f"cannot check: {problem}", file=sys.stderr)
        return CANNOT_RUN
    except KeyboardInterrupt:
        print("stopped before the end", file=sys.stderr)
        return CANNOT_RUN
    if chosen.json:
        print(msgspec.json.encode(outcome).decode())
    else:
        _summed_up(outcome)
    return 0 if outcome.is_well else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m laboratory.check",
        description="Check a compute, in whatever language, against the contract in docs/write-a-compute.md. This program takes "
        "the place of the cell's conductor, and destroys all that it has built.",
        epilog="Start it, and then the compute (or give --restart): a host tells its name and its inventories at the start.",
    )
    add = parser.add_argument
    add(
        "--bus",
        required=True,
        metavar="URL",
        help="the broker, as the user moor-conductor-CELL or any that may do the same",
    )
    add("--watch-bus", default="", metavar="URL", help="the same broker as a user that may bind queues to every exchange and read dead letters (moor-operator); default: --bus")  # fmt: skip
    add("--cell", required=True, type=_cell, help="a cell without a conductor, in which the compute runs")
    add("--host", required=True, action="append", metavar="NAME", help="a host of the compute, by its name or id; a second one for the rule 'move'")  # fmt: skip
    add("--restart", default="", metavar="COMMAND", help="a shell command that kills the compute (kill -9) and starts it again; it is run at the start and in the middle")  # fmt: skip
    add("--limit", type=_seconds, default=30.0, metavar="S", help="how long each answer may take (30)")
    add(
        "--wait",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="how long to wait for the host to tell its name (60)",
    )
    add("--vcpus", type=int, default=1, help="the flavor of the instances (1)")
    add("--ram", type=int, default=64, metavar="MB", help="the flavor's memory (64)")
    add("--disk", type=int, default=1, metavar="GB", help="the flavor's disk (1)")
    add(
        "--image", default="", metavar="SOURCE", help="the image that instances are built from; default: none"
    )
    add("--other-image", default="another", metavar="SOURCE", help="the image for rebuilds")
    add("--skip", action="append", default=[], choices=[each.name for each in RULES], metavar="RULE", help="a rule that is not tried")  # fmt: skip
    add("--json", action="store_true", help="print one JSON object at the end in place of lines")
    return parser


def _cell(value: str) -> str:
    if not CELL_NAME.fullmatch(value):
        raise argparse.ArgumentTypeError(f"{value!r} is no name of a cell: a-z, 0-9, _ and -, at most 40")
    if value == CELL0:
        raise argparse.ArgumentTypeError(f"{value!r} is reserved for instances without a cell")
    return value


def _seconds(value: str) -> float:
    seconds = float(value)
    if not 0 < seconds < 86_400:  # noqa: PLR2004 - a day
        raise argparse.ArgumentTypeError(f"{value} must be more than 0 and less than a day")
    return seconds


def _request(chosen: argparse.Namespace) -> CheckRequest:
    return CheckRequest(
        bus=chosen.bus,
        watch_bus=chosen.watch_bus or chosen.bus,
        cell=chosen.cell,
        hosts=tuple(chosen.host),
        flavor=Flavor(vcpus=chosen.vcpus, ram_mb=chosen.ram, root_gb=chosen.disk),
        image=Image(source=chosen.image) if chosen.image else None,
        other_image=Image(source=chosen.other_image),
        skipped=frozenset(chosen.skip),
        wait_s=chosen.wait,
        limit_s=chosen.limit,
        restart=chosen.restart,
    )


def _nothing(_: RuleFinding) -> None: ...


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
    sys.exit(main(sys.argv[1:]))
