"""Boots many instances concurrently with the Python client, and says how fast: a load test for a cloud of yours.

    python load_test.py [URL] [--boots 500] [--at-once 100] [--project NAME] [--keep]

It deletes what it has built, unless you say --keep. The times are those that a client sees: from the call until a scheduler has stored
the request (accepted), until the instance has a host (placed), and until it runs (active). `moor load` measures the workers themselves.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence

from moor.client import Client, ClientError, Flavor, NotDone, SentRequest

SMALL = Flavor(name="load", vcpus=1, ram_mb=64)


class Load:
    """Boots at most `at_once` instances at the same time, and keeps how long each step took."""

    def __init__(self, moor: Client, at_once: int) -> None:
        self._moor = moor
        self._turns = asyncio.Semaphore(at_once)
        self.requests: list[SentRequest] = []
        self.seconds: dict[str, list[float]] = {"accepted": [], "placed": [], "active": []}
        self.failures: Counter[str] = Counter()

    async def boot(self, name: str) -> None:
        async with self._turns:
            begun = time.perf_counter()
            try:
                request = await self._moor.boot(SMALL, name=name)
                self.requests.append(request)
                self.seconds["accepted"].append(time.perf_counter() - begun)
                seen = set()
                async for state in request.follow():
                    seen.add(state.state)
                    if state.state in ("placed", "active"):
                        self.seconds[state.state].append(time.perf_counter() - begun)
                if "active" not in seen:
                    await request.until_done()  # raises, and says why
            except NotDone as failed:
                self.failures[failed.reason.replace(name, "NAME")] += 1
            except ClientError as problem:
                self.failures[f"{type(problem).__name__}: {problem}"] += 1

    async def delete_all(self) -> None:
        if self.requests:
            deleted = await self._moor.delete(*(id_ for each in self.requests for id_ in each.instances))
            await deleted.until_ended()


def percentile(seconds: Sequence[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * share))]


def print_table(load: Load, took_s: float) -> None:
    active = len(load.seconds["active"])
    print(f"{active} active in {took_s:.1f} s: {active / took_s:.0f} boots/s")
    print(f"{'ms':10}{'median':>10}{'95 %':>10}{'99 %':>10}{'longest':>10}")
    for step, seconds in load.seconds.items():
        if seconds:
            figures = [1000 * percentile(seconds, share) for share in (0.5, 0.95, 0.99, 1)]
            print(f"{step:10}" + "".join(f"{each:10.0f}" for each in figures))
    for why, count in load.failures.most_common(10):
        print(f"{count} failed: {why}")


async def main(arguments: argparse.Namespace) -> int:
    async with Client(arguments.url, project=arguments.project, timeout_s=arguments.timeout) as moor:
        load = Load(moor, arguments.at_once)
        begun = time.perf_counter()
        await asyncio.gather(*(load.boot(f"load-{number}") for number in range(arguments.boots)))
        print_table(load, time.perf_counter() - begun)
        if not arguments.keep:
            await load.delete_all()
            print(f"{len(load.requests)} deleted")
    return 0 if not load.failures else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", nargs="?", default="", help="default: as the `moor` commands")
    parser.add_argument("--boots", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--project", default=None)
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S")
    parser.add_argument("--keep", action="store_true", help="do not delete the instances")
    sys.exit(asyncio.run(main(parser.parse_args())))
