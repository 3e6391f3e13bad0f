"""A real Nova with nova-scheduler, and ours in the shadow: `python -m tools.real_nova.shadow [--placement ours|theirs]`.

Boots are sent by some clients at once, and some that no host has room for; then the report is printed, and what the worker in the
shadow used of the CPU for each. Nova's scheduler has the weighers that count here too, so that choices may be equal. With
`--one-by-one` each boot waits until the one before is built: nova-scheduler knows from computes alone what hosts have in use, and
nothing of what it has just chosen.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.nova.our_scheduler import prepare_our_scheduler, run_moor, start_our_scheduler
from tests.conformance.nova.stack import NovaStack, Wanted, nova_stack
from tests.conformance.nova.stub_services import IMAGE
from tools.real_nova.bench import BUILT_WITHIN_S, load, until_settled, used

# As nova.rpc_timeout_s below, and some looks.
WAIT_S = 20
SHADOW = "shadow"
# Metrics, failed builds and running images are not known here: these weighers are left out of both.
WEIGHERS = ",".join(
    f"nova.scheduler.weights.{each}"
    for each in ("cpu.CPUWeigher", "ram.RAMWeigher", "disk.DiskWeigher", "io_ops.IoOpsWeigher")
)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--placement", choices=("ours", "theirs"), default="ours")
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--boots", type=int, default=100)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--one-by-one", action="store_true")
    parser.add_argument("--notes", type=Path, help="Copy the file of notes there.")
    given = parser.parse_args(argv)
    half = given.hosts // 2
    cells = {
        "cell1": tuple(f"one{number:03}" for number in range(half)),
        "cell2": tuple(f"two{number:03}" for number in range(given.hosts - half)),
    }
    wanted = Wanted(
        placement=given.placement,
        scheduler="theirs",
        cells=cells,
        # As in the bench: heartbeats and rounds of many computes are work that has nothing to do with this.
        report_s=60,
        down_s=300,
        options={
            "filter_scheduler": {"weight_classes": WEIGHERS},
            "DEFAULT": {"update_resources_interval": "600"},
        },
    )
    with nova_stack(wanted) as stack:
        prepare_our_scheduler(stack)
        notes = _run(stack, given.boots, given.clients, one_by_one=given.one_by_one)
        if given.notes:
            given.notes.write_bytes(notes.read_bytes())


def _run(stack: NovaStack, boots: int, clients: int, *, one_by_one: bool) -> Path:
    file = stack.directory / "shadow.jsonl"
    start_our_scheduler(
        stack,
        SHADOW,
        "--shadow",
        MOOR_NOVA_SHADOW_FILE=str(file),
        MOOR_NOVA_RPC_TIMEOUT_S=str(WAIT_S),
        MOOR_SCHEDULER_WEIGHERS="cpu,ram,disk,io_ops",
    )
    stack.wait_for_scheduler(SHADOW, "moorage.shadow")
    small, huge = stack.api.flavor("shadowed", 1, 64, 1), stack.api.flavor("huge", 5000, 64, 1)
    before = used(stack).cpu_s[SHADOW]
    sent = _each_built(stack, small, boots) if one_by_one else load(stack, small, boots, clients)
    sent += load(stack, huge, 3, 1)
    settled = until_settled(stack, len(sent), BUILT_WITHIN_S)
    until_s = time.monotonic() + WAIT_S + 30
    while _notes(file) < len(sent) and time.monotonic() < until_s:
        time.sleep(0.5)
    cpu_s = used(stack).cpu_s[SHADOW] - before
    print(run_moor("nova", "shadow", "--file", str(file), COLUMNS="150"))
    print(
        f"{len(sent)} boots: {settled}; {_notes(file)} notes; {1000 * cpu_s / len(sent):.0f} ms of CPU each"
    )
    errors = [
        line
        for line in stack.log_of(SHADOW).read_text().splitlines()
        if "ERROR" in line or "Traceback" in line
    ]
    print("\n".join(errors[:20]) or "no errors in the log of the worker in the shadow")
    return file


def _each_built(stack: NovaStack, flavor: str, boots: int) -> list[str]:
    made: list[str] = []
    for number in range(boots):
        made.append(str(stack.api.boot(f"load-{number}", flavor, IMAGE)["server"]["id"]))
        until_settled(stack, len(made), BUILT_WITHIN_S)
    return made


def _notes(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


if __name__ == "__main__":
    main(sys.argv[1:])
