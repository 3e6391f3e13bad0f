"""Operations on a real Nova, with our scheduler and with Nova's own, side by side: `python -m tests.conformance.nova [--with ...] [--only WORD]`.

Each `--with SCHEDULER+PLACEMENT` is a cloud of its own, of which each part is `ours` or `theirs`. The exit code is 1 if anything
was not as expected.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conformance.nova.cloud import CELLS, OPTIONS, Operation
from tests.conformance.nova.operations import OPERATIONS, Outcome, done, prepared
from tests.conformance.nova.our_scheduler import our_scheduler
from tests.conformance.nova.stack import NovaStack, Wanted, nova_stack

ALL = ("theirs+theirs", "theirs+ours", "ours+ours", "ours+theirs")
TELLS = {"ours": "ours", "theirs": "Nova's"}


def ran(combination: str, operations: Sequence[Operation], logs: Path | None) -> Mapping[str, Outcome]:
    """What was seen with this scheduler and placement, by operation."""
    scheduler, placement = combination.split("+")
    print(f"\nscheduler {TELLS[scheduler]}, placement {TELLS[placement]}", flush=True)
    outcomes = {}
    with nova_stack(
        Wanted(placement=placement, scheduler=scheduler, cells=CELLS, options=OPTIONS), our_scheduler
    ) as stack:
        try:
            cloud = prepared(stack)
            for operation in operations:
                outcome = outcomes[operation.what] = done(cloud, operation)
                print(
                    f"  {outcome.what:<48} {outcome.seconds:6.1f} s  {'as expected' if outcome.is_right else 'WRONG'}",
                    flush=True,
                )
                if not outcome.is_right:
                    print(f"      seen      {outcome.seen}\n      expected  {outcome.expected}", flush=True)
        finally:
            if logs:
                _keep_logs(stack, logs / combination)
    return outcomes


def _keep_logs(stack: NovaStack, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for log in stack.directory.glob("*.log"):
        shutil.copy(log, place)


def _print_table(seen: Mapping[str, Mapping[str, Outcome]], operations: Sequence[Operation]) -> None:
    print("\nscheduler+placement: " + ", ".join(seen))
    for operation in operations:
        print(f"\n{operation.what}\n  {'expected':<14} {operation.expected}")
        for combination, outcomes in seen.items():
            outcome = outcomes.get(operation.what)
            if outcome:
                print(f"  {combination:<14} {'the same' if outcome.is_right else outcome.seen}")
    wrong = {
        combination: sum(not each.is_right for each in outcomes.values())
        for combination, outcomes in seen.items()
    }
    print("\nnot as expected: " + ", ".join(f"{combination} {count}" for combination, count in wrong.items()))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.nova", description="Operations on a real Nova."
    )
    parser.add_argument(
        "--with",
        dest="combinations",
        action="append",
        choices=ALL,
        help="the scheduler and the placement; may be repeated",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="only operations whose name has this word; may be repeated",
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the services' logs here")
    options = parser.parse_args(arguments)
    operations = [
        each for each in OPERATIONS if not options.only or any(word in each.what for word in options.only)
    ]
    seen = {each: ran(each, operations, options.logs) for each in options.combinations or ALL}
    _print_table(seen, operations)
    is_right = all(
        len(outcomes) == len(operations) and all(each.is_right for each in outcomes.values())
        for outcomes in seen.values()
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
