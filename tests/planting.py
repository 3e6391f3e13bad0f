"""Changes the product in this process as it was asked to: by one of the bugs of tests/planted, or a mutant; or notes which tests run what.

It is imported before the product, so that the notes miss nothing.
"""

import os

from tests.judge import watching
from tests.judge.watching import watch_as_asked

# What the tests run with. It is handed on to the processes that tests start.
PLANTED, MUTANT = "MOOR_TEST_PLANTED", "MOOR_TEST_MUTANT"

watch_as_asked()


def plant_as_asked() -> None:
    # What is imported here imports all workers.
    if name := os.environ.get(PLANTED):
        from tests.planted import plant  # noqa: PLC0415

        plant(name)
    if mutant := os.environ.get(MUTANT):
        from tests.judge.mutants import become  # noqa: PLC0415

        become(mutant)


def asked() -> dict[str, str]:
    """The variables for a process that a test starts."""
    changed = {each: os.environ[each] for each in (PLANTED, MUTANT) if each in os.environ}
    return changed | watching.asked()
