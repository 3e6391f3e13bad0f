"""Compares the costs of our server and OpenStack's with the targets for their ratio."""

from collections.abc import Iterable, Iterator

from tools.benchmarks.measuring import Covering, Result

OURS, THEIRS = "moorage", "openstack"
# The limit for an answer of a thousand candidates among ten thousand hosts.
CANDIDATES = {"cloud": "10,000 hosts", "limit": "1,000"}
CANDIDATES_US_MAX = 12_000


class Target(Covering, frozen=True):
    """For these results of a section: the least ratio of operations per second of CPU time."""

    times: float


_SEARCHES, _CLAIMS = "candidates over HTTP", "claims over HTTP"
TARGETS = (
    Target(_SEARCHES, {"cloud": frozenset({"10,000 hosts"}), "limit": frozenset({"50", "1,000"})}, 100),
    Target(_SEARCHES, {"cloud": frozenset({"10,000 hosts"}), "limit": frozenset({"none"})}, 30),
    Target(_SEARCHES, {"cloud": frozenset({"1,000 hosts"})}, 20),
    Target(_CLAIMS, {}, 20),
)


def targets_of(results: Iterable[Result]) -> Iterator[str]:
    kept = list(results)
    for result in kept:
        for other in kept:
            if _are_the_same(result, other):
                yield _compared(result, other)
        if result.what.get("server") == OURS and CANDIDATES.items() <= result.what.items():
            yield (
                f"{_told(result)}: at most {CANDIDATES_US_MAX / 1e3:g} ms, seen {_least_us(result) / 1e3:.1f} "
                f"(minimum of its runs): {_verdict(met=_least_us(result) <= CANDIDATES_US_MAX)}"
            )


def _are_the_same(ours: Result, theirs: Result) -> bool:
    """True if both results are of one measurement, on either server."""
    return (
        ours.what.get("server") == OURS
        and theirs.section == ours.section
        and theirs.what == {**ours.what, "server": THEIRS}
    )


def _compared(ours: Result, theirs: Result) -> str:
    times = _least_us(theirs) / _least_us(ours)
    target = next((target for target in TARGETS if target.covers(ours)), None)
    aim = (
        "" if target is None else f", at least {target.times:g} wanted: {_verdict(met=times >= target.times)}"
    )
    return (
        f"{_told(ours)}: {times:.1f} times as many for a second of CPU time "
        f"(least of each one's runs{_at_worst(ours, theirs)}){aim}"
    )


def _at_worst(ours: Result, theirs: Result) -> str:
    """The correction for concurrent claims is an estimate: where it favours our server, this is the figure without it."""
    with_claims_us = [run.total_us + run.details.get("claims beside µs", 0.0) for run in ours.runs]
    if tuple(with_claims_us) == ours.totals_us:
        return ""
    return f"; {_least_us(theirs) / min(with_claims_us):.1f} with the claims beside ours left in"


def _least_us(result: Result) -> float:
    return min(result.totals_us)


def _told(result: Result) -> str:
    return ", ".join(
        (result.section, *(str(value) for name, value in result.what.items() if name != "server"))
    )


def _verdict(*, met: bool) -> str:
    return "kept" if met else "MISSED"
