"""Plants in this process what it was asked for: one of the bugs of tests/planted, or the notes of which test runs the places of all."""

import os

# The bug that the tests run with; and the folder of the notes. Both are handed on to the processes that tests start.
PLANTED, WATCHED = "MOOR_TEST_PLANTED", "MOOR_TEST_WATCHED"
# Set by pytest: the test that runs now.
CURRENT = "PYTEST_CURRENT_TEST"


def plant_as_asked() -> None:
    name = os.environ.get(PLANTED)
    if not name and WATCHED not in os.environ:
        return
    # It imports all workers.
    from tests.planted import plant, watch_all  # noqa: PLC0415

    plant(name) if name else watch_all()


def asked() -> dict[str, str]:
    """The variables for a process that a test starts."""
    if PLANTED not in os.environ and WATCHED not in os.environ:
        return {}
    return {each: os.environ[each] for each in (PLANTED, WATCHED, CURRENT) if each in os.environ}
