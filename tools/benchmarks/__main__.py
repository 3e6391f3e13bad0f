"""`python -m tools.benchmarks [--quick] [--only bus|claims|ask|choosing|api|beside|together|nodes|ring|libvirt] [--json FILE]`"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kit.process import run_process
from laboratory.private_libvirtd import NotInstalled
from tests.environments import NotInstallableError
from tests.servers import DidNotStartError, NotInstalledError
from tools.benchmarks.books import WrongBooksError
from tools.benchmarks.machine import this_machine
from tools.benchmarks.measuring import FULL, QUICK, Effort, Result
from tools.benchmarks.report import as_json, show
from tools.benchmarks.section_api import api_section
from tools.benchmarks.section_ask import ask_section
from tools.benchmarks.section_beside import beside_section
from tools.benchmarks.section_bus import bus_section
from tools.benchmarks.section_choosing import choosing_section
from tools.benchmarks.section_claims import claims_section
from tools.benchmarks.section_libvirt import libvirt_section
from tools.benchmarks.section_nodes import nodes_section
from tools.benchmarks.section_ring import ring_section
from tools.benchmarks.section_together import together_section

SECTIONS = {
    "bus": bus_section,
    "claims": claims_section,
    "ask": ask_section,
    "choosing": choosing_section,
    "api": api_section,
    "beside": beside_section,
    "together": together_section,
    "nodes": nodes_section,
    "ring": ring_section,
    "libvirt": libvirt_section,
}
TABLE_WIDTH = 160


async def measure(sections: Sequence[str], effort: Effort) -> list[Result]:
    return [result for name in sections for result in await SECTIONS[name](effort)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks", description="CPU per operation.")
    parser.add_argument(
        "--quick", action="store_true", help="few operations, and only sections that need no server"
    )
    parser.add_argument("--only", choices=SECTIONS, help="run only this section")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the results to this file, as JSON"
    )
    options = parser.parse_args(arguments)
    machine = this_machine()
    try:
        sections = (options.only,) if options.only else tuple(SECTIONS)
        results = run_process(measure(sections, QUICK if options.quick else FULL))
    except (
        NotInstalled,
        NotInstalledError,
        NotInstallableError,
        DidNotStartError,
        WrongBooksError,
    ) as problem:
        print(f"tools.benchmarks: {problem}", file=sys.stderr)
        return 1
    show(Console(width=None if sys.stdout.isatty() else TABLE_WIDTH), machine, results)
    if options.json:
        options.json.write_bytes(as_json(machine, results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
