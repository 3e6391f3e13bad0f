"""The memory of a long answer is not cleared again by the kernel for the next one."""

import subprocess
import sys

# An answer of 6 MB in pieces, made and freed twice: how many pages does the second one touch for the first time?
PROGRAM = """
import resource
from placement_worker.api.http.freed_memory import keep_freed_memory

if {is_kept}:
    keep_freed_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [bytes([number]) * 256 * 1024 for number in range(24)]
    del pieces
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _pages(*, is_kept: bool) -> int:
    argv = (sys.executable, "-c", PROGRAM.format(is_kept=is_kept))
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def test_a_second_long_answer_touches_the_memory_of_the_first_one() -> None:
    assert _pages(is_kept=False) > 1_000
    assert _pages(is_kept=True) < 100
