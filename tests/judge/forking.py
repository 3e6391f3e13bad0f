"""A plugin of pytest: the process collects its tests once, and forks for each change that it is asked about. The fork makes the change,
runs the tests that it is given, and ends with the first that fails.

`python -m tests.judge.forking FOLDER` is that process. It reads jobs from its input, and writes an answer to each, as lines of JSON.
"""

import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest
from msgspec import Struct

from tests.planting import plant_as_asked
from tests.waiting import PATIENCE

# A test that was begun within the time may end, and its processes with it.
GRACE_S = 5.0
# So long a test waits for what may never come true: with the change and, to be compared, without it.
PATIENCE_S = 12.0
# A seed of the simulation stands in the place of a test.
SEED = "seed "
# A traceback whose last step is in a planted bug: it does not fit the product any more.
_BROKEN_BUG = re.compile(
    r"^tests/planted/\w+_bugs\.py:\d+: \w*(Type|Attribute|Name|Key|Index)Error", re.MULTILINE
)


class Job(Struct, frozen=True):
    """`environment` says what is changed (tests/planting.py). The tests run in the order in which they are named."""

    environment: dict[str, str]
    tests: tuple[str, ...]
    seconds: float


class Answer(Struct, frozen=True):
    """The test that failed, or empty; how many passed before; was the time over before all had run, and how long had the test run
    that was under way then; what kept the job from being done.
    """

    failed: str = ""
    passed: int = 0
    cut_off: bool = False
    under_way_s: float = 0.0
    problem: str = ""


class Forking:
    def __init__(self, jobs: BinaryIO, answers: BinaryIO) -> None:
        self._jobs = jobs
        self._answers = answers

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        # It imports all of the product, once for all forks.
        import_module("tests.planted")
        items = {each.nodeid: each for each in session.items}
        self._say([*items])
        for line in self._jobs:
            self._say(_answer(msgspec.json.decode(line, type=Job), items))
        return True

    def _say(self, said: object) -> None:
        self._answers.write(msgspec.json.encode(said) + b"\n")
        self._answers.flush()


def _answer(job: Job, items: dict[str, pytest.Item]) -> Answer:
    wanted = [items.get(each, each) for each in job.tests if each in items or each.startswith(SEED)]
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _be_the_fork(job, wanted, write)
    os.close(write)
    try:
        return _watch(read, time.monotonic() + job.seconds)
    finally:
        os.close(read)
        _end_group(child)


def _watch(read: int, until_s: float) -> Answer:
    """The answer so far when the fork ends, or the time is over."""
    passed, rest, began, began_s = 0, b"", "", 0.0
    while True:
        left_s = until_s - time.monotonic() + (GRACE_S if began else 0.0)
        ready, _, _ = select.select([read], [], [], max(0.0, left_s))
        if not ready:
            return Answer(
                passed=passed, cut_off=True, under_way_s=time.monotonic() - began_s if began else 0.0
            )
        text = os.read(read, 65_536)
        if not text:
            return Answer(passed=passed, problem=f"the process ended during {began or 'its start'}")
        *lines, rest = (rest + text).split(b"\n")
        for line in lines:
            verdict, _, what = line.decode().partition(" ")
            match verdict:
                case "begins":
                    began, began_s = what, time.monotonic()
                    if began_s >= until_s:
                        return Answer(passed=passed, cut_off=True)
                case "passed":
                    passed, began = passed + 1, ""
                case "failed":
                    return Answer(failed=what, passed=passed)
                case "problem":
                    return Answer(passed=passed, problem=what)
                case _:
                    return Answer(passed=passed)


def _end_group(child: int) -> None:
    """The fork, and what its tests started."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _be_the_fork(job: Job, wanted: Sequence[pytest.Item | str], write: int) -> None:
    """Never returns."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for each in (0, 1, 2):
            os.dup2(nothing, each)
        os.environ.update(job.environment, **{PATIENCE: str(PATIENCE_S)})
        _run(wanted, write)
    except BaseException as problem:  # noqa: BLE001 - nothing of the fork may go on in pytest
        _tell(write, f"problem {''.join(traceback.format_exception_only(problem)).strip().splitlines()[-1]}")
    finally:
        os._exit(0)


def _run(wanted: Sequence[pytest.Item | str], write: int) -> None:
    plant_as_asked()
    for item, following in zip_longest(wanted, wanted[1:]):
        name = item if isinstance(item, str) else item.nodeid
        _tell(write, f"begins {name}")
        failed = _run_seed(item) if isinstance(item, str) else _run_test(item, following)
        if failed:
            broken = _BROKEN_BUG.search(failed)
            _tell(write, f"problem {broken[0]}" if broken else f"failed {name}{_promise(item, failed)}")
            return
        _tell(write, f"passed {name}")
    _tell(write, "done")


def _promise(item: pytest.Item | str, failed: str) -> str:
    return f": {failed}" if isinstance(item, str) else ""


def _run_test(item: pytest.Item, following: pytest.Item | str | None) -> str:
    seen = _Seen()
    item.config.pluginmanager.register(seen)
    item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
    item.config.pluginmanager.unregister(seen)
    return seen.failed


def _run_seed(name: str) -> str:
    """The promise that is broken in this seed of the simulation, or empty."""
    # It imports all workers.
    from tests.simulation.bug_search import broken_in  # noqa: PLC0415

    return broken_in(int(name.removeprefix(SEED)))


class _Seen:
    """What failed, as text."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.longreprtext or "failed"


def _tell(write: int, line: str) -> None:
    os.write(write, f"{line}\n".replace("\x00", "").encode())


if __name__ == "__main__":
    # Pytest captures what is written to the usual output.
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    root = Path(__file__).parents[2]
    arguments = ("-q", "-p", "no:cacheprovider", "--rootdir", str(root), *sys.argv[1:])
    sys.exit(pytest.main([*arguments], plugins=[Forking(jobs, answers)]))
