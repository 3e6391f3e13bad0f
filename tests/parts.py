"""`make test` runs a part of the long proofs, another one at each commit; `make proof`, and pytest alone, run them whole.

A test marked `proof` belongs to one of `PARTS` parts by its name. The commit says which part it is today.
"""

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar
from zlib import crc32

# Set by `make test`: only today's part is run.
PART_VARIABLE = "MOOR_TEST_PART"
PARTS = 24

T = TypeVar("T")


def part_of(things: Sequence[T], parts: int = PARTS) -> list[T]:
    """Today's part of them, of so many parts; all, if everything is run."""
    return [thing for number, thing in enumerate(things) if is_todays(number, parts)]


def is_todays_name(name: str) -> bool:
    return is_todays(crc32(name.encode()))


def only_a_part() -> bool:
    return PART_VARIABLE in os.environ


def is_todays(number: int, parts: int = PARTS) -> bool:
    return not only_a_part() or number % parts == _today() % parts


@cache
def _today() -> int:
    """By the commit that is checked out; 0 where there is no repository."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return int(asked.stdout or "0", 16) % PARTS
