"""Runs many seeds, one process per core, and adds up what they covered and which of them failed."""

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from msgspec import Struct, structs

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

    def __add__(self, other: "SeedsResult") -> "SeedsResult":
        return SeedsResult(
            self.broken | other.broken,
            self.seen + other.seen,
            self.seeds_with + other.seeds_with,
            self.cpu_s + other.cpu_s,
        )


NOTHING = SeedsResult({}, Counter(), Counter(), 0.0)


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
    result = NOTHING
    for chunk, of_chunk in zip(chunks, pool.map(run_some, chunks), strict=True):
        on_done(len(chunk))
        for seed, how in of_chunk.broken.items():
            on_broken(seed, how)
        result += of_chunk
    return result


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
    result = NOTHING
    for seed in seeds:
        outcome = run(plan_of(seed))
        broken = {} if outcome.broken is None else {seed: str(outcome.broken)}
        result += SeedsResult(broken, outcome.seen, Counter(outcome.seen.keys()), 0.0)
    return structs.replace(result, cpu_s=time.process_time() - began_s)
