"""Say which kinds of test see which planted bugs: `make planted`. See matrix.py."""

import argparse
import sys

from tests.judge.kinds import kinds, unwatched, watch
from tests.planted import BUGS
from tests.planted.matrix import harmful, judge, kept, misfits, moved, seen_by, sums, table, untrue

parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
parser.add_argument("--watch", action="store_true", help="note anew which tests run what")
parser.add_argument(
    "--kinds", nargs="+", default=kinds(), choices=kinds(), metavar="KIND", help="judge by these alone"
)
parser.add_argument(
    "--bugs", nargs="+", default=[*BUGS], choices=[*BUGS], metavar="NAME", help="judge these alone"
)
parser.add_argument("--show", action="store_true", help="only show what is known")
parser.add_argument(
    "--again", action="store_true", help="run only the test that saw a bug before, and fail if it does not"
)
asked = parser.parse_args()
if wrong := misfits():
    sys.exit("these do not fit the product any more:\n" + "\n".join(wrong))
for bug in moved(kept()):
    print(f"the place of {bug!r} does something else now than when it was judged")
if asked.again:
    sys.exit("\n".join(untrue(asked.kinds)) or None)
if not asked.show:
    watch(asked.kinds if asked.watch else unwatched(asked.kinds))
    judge(asked.bugs, asked.kinds)
sys.stdout.writelines(f"{line}\n" for line in (*table(), *harmful(seen_by()), *sums(seen_by())))
