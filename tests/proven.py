"""What `make proof` has proved, on one page: `python -m tests.proven FOLDER`, with the folder in which each part has left its results."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

from msgspec import Struct

from tests.judge.kinds import TESTS, kinds
from tests.planted.matrix import seen_by, sums, table

SKIPS_MAX, SLOW_MAX = 20, 5


class Part(Struct, frozen=True):
    """One folder of tests, as it ended."""

    name: str
    passed: int
    seconds: float
    failed: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    slowest: tuple[tuple[float, str], ...]


def read(file: Path) -> Part:
    """The results that pytest has written as JUnit's XML."""
    passed, failed, skipped, took = 0, [], [], []
    # pytest wrote it.
    suite = ET.parse(file).getroot().find("testsuite")  # noqa: S314
    assert suite is not None, f"{file} has no results"
    for case in suite.iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        took.append((float(case.get("time", 0)), name))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif (reason := case.find("skipped")) is not None:
            skipped.append((name, reason.get("message", "")))
        else:
            passed += 1
    slowest = tuple(sorted(took, reverse=True)[:SLOW_MAX])
    return Part(file.stem, passed, float(suite.get("time", 0)), tuple(failed), tuple(skipped), slowest)


def page(parts: Iterable[Part], wanted: Iterable[str], judged: Iterable[str]) -> Iterator[str]:
    """The page: what was run and how long, what failed or did not run, and what the tests see of planted bugs."""
    parts = sorted(parts, key=lambda each: each.name)
    missing = sorted({*wanted} - {each.name for each in parts})
    yield "# What was proved"
    yield ""
    for part in parts:
        ended = f"{len(part.failed)} FAILED" if part.failed else "all passed"
        yield f"{part.name}: {part.passed} passed, {ended}, {len(part.skipped)} skipped, in {part.seconds:.0f} s"
    yield (
        f"together: {sum(each.passed for each in parts)} passed, {sum(len(each.failed) for each in parts)} failed,"
        f" in {sum(each.seconds for each in parts):.0f} s"
    )
    yield from (f"DID NOT END: {name}" for name in missing)
    yield from (f"FAILED: {name}" for part in parts for name in part.failed)
    yield ""
    yield "The slowest:"
    slowest = sorted((each for part in parts for each in part.slowest), reverse=True)[:SLOW_MAX]
    yield from (f"  {seconds:.0f} s: {name}" for seconds, name in slowest)
    reasons = Counter(reason for part in parts for _, reason in part.skipped)
    yield ""
    yield "Not run here:" if reasons else "Every test was run."
    yield from (f"  {count} tests: {reason}" for reason, count in reasons.most_common(SKIPS_MAX))
    yield ""
    yield "Planted bugs, as judged at last (`make planted`):"
    yield from (f"  {line}" for line in judged)


def _judged(again: Path) -> Iterator[str]:
    """Those that no kind or one kind sees are named by `python -m tests.planted --show`."""
    yield from sums(seen_by())
    yield from (line for line in table() if ": NOTHING" in line)
    yield "each line was judged again, and is true" if again.exists() else "NOT EACH LINE IS STILL TRUE"


def main() -> None:
    folder = Path(sys.argv[1])
    again = folder / "planted"
    wanted = [*kinds(), *(each.name for each in TESTS.glob("test_*.py"))]
    parts = [read(each) for each in folder.glob("*.xml")]
    print(*page(parts, [each.removesuffix(".py") for each in wanted], _judged(again)), sep="\n")
    sys.exit(any(each.failed for each in parts) or len(parts) < len(wanted) or not again.exists())


if __name__ == "__main__":
    main()
