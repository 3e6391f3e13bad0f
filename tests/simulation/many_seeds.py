"""Runs many seeds, one process per core, and adds up what they covered and which of them failed."""

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from msgspec import Struct

from tests.planting import plant_as_asked
from tests.simulation.kept import plan_of
from tests.simulation.seeds import run

SEEDS_AT_ONCE = 5
HASH_SEED_VARIABLE, FIXED_HASH_SEED = "PYTHONHASHSEED", "0"
# Run at low priority. Nothing in a seed waits for a real clock, so slow runs do no harm.
NICENESS = 10


class SeedsResult(Struct, frozen=True):
    broken: dict[int | str, str]
    seen: Counter[tuple[str, str]]
    # The number of seeds in which each thing was seen.
    seeds_with: Counter[tuple[str, str]]
    cpu_s: float


def run_many(
    pool: ProcessPoolExecutor,
    seeds: Iterable[int | str],
    on_broken: Callable[[int | str, str], None] = lambda _seed, _how: None,
    on_done: Callable[[int], None] = lambda _count: None,
) -> SeedsResult:
    wanted = list(seeds)
    # A few seeds are spread over all processes, too.
    at_once = min(SEEDS_AT_ONCE, 1 + len(wanted) // (4 * (os.cpu_count() or 1)))
    chunks = [wanted[at : at + at_once] for at in range(0, len(wanted), at_once)]
    broken: dict[int | str, str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    seeds_with: Counter[tuple[str, str]] = Counter()
    cpu_s = 0.0
    for chunk, result in zip(chunks, pool.map(run_some, chunks), strict=True):
        on_done(len(chunk))
        for seed, how in result.broken.items():
            on_broken(seed, how)
        broken |= result.broken
        seen += result.seen
        seeds_with += result.seeds_with
        cpu_s += result.cpu_s
    return SeedsResult(broken, seen, seeds_with, cpu_s)


@contextmanager
def pool_with_fixed_hashes() -> Iterator[ProcessPoolExecutor]:
    """A pool of processes in which code that iterates a set of strings gets the same order each time. The processes
    are spawned, not forked: the caller may have loops and threads, and Python reads the hash seed only at start.
    """
    before = os.environ.get(HASH_SEED_VARIABLE)
    os.environ[HASH_SEED_VARIABLE] = FIXED_HASH_SEED
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"), initializer=_begin) as pool:
        try:
            # With the first work all processes start.
            pool.submit(int)
        finally:
            if before is None:
                del os.environ[HASH_SEED_VARIABLE]
            else:
                os.environ[HASH_SEED_VARIABLE] = before
        yield pool


def _begin() -> None:
    """Prepare a process of the pool. The garbage collector is told to leave out the objects of imports, so that it
    does not visit them again after every few seeds.
    """
    plant_as_asked()
    os.nice(NICENESS)
    gc.collect()
    gc.freeze()


def run_some(seeds: list[int | str]) -> SeedsResult:
    began_s = time.process_time()
    broken: dict[int | str, str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    seeds_with: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        outcome = run(plan_of(seed))
        if outcome.broken is not None:
            broken[seed] = str(outcome.broken)
        seen += outcome.seen
        seeds_with.update(outcome.seen.keys())
    return SeedsResult(broken, seen, seeds_with, time.process_time() - began_s)
