"""Say which kinds of test see which planted bugs: `python -m tests.servers --brokers 2 -- python -m tests.planted`. See matrix.py."""

import argparse
import sys

from tests.planted import BUGS
from tests.planted.matrix import judge, kinds, table, watch

parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
parser.add_argument(
    "--watch", nargs="*", metavar="KIND", help="first run all tests of these kinds, to note what they run"
)
parser.add_argument(
    "--kinds", nargs="+", default=kinds(), choices=kinds(), metavar="KIND", help="judge by these alone"
)
parser.add_argument(
    "--bugs", nargs="+", default=[*BUGS], choices=[*BUGS], metavar="NAME", help="judge these alone"
)
parser.add_argument("--once", action="store_true", help="judge a bug only until one kind has seen it")
parser.add_argument("--show", action="store_true", help="only show what is known")
asked = parser.parse_args()
if asked.watch is not None:
    watch(asked.watch or kinds())
elif not asked.show:
    judge(asked.bugs, asked.kinds, once=asked.once)
sys.stdout.writelines(f"{line}\n" for line in table())
