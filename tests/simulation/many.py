"""Many seeds on all cores, each core a process of its own; what they have seen together, and which of them failed."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from msgspec import Struct

from tests.simulation.drawing import draw
from tests.simulation.seeds import run

KEPT = Path(__file__).with_name("failing_seeds.txt")
SEEDS_AT_ONCE = 5
HASHES, FIXED_HASHES = "PYTHONHASHSEED", "0"
# Seeds take what others leave of the machine: nobody there waits by a real clock.
NICENESS = 10


class Ran(Struct, frozen=True):
    broken: dict[int, str]
    seen: Counter[tuple[str, str]]
    # In how many seeds each thing was seen.
    seeds_with: Counter[tuple[str, str]]
    cpu_s: float


NOTHING_RAN = Ran({}, Counter(), Counter(), 0.0)


def run_many(
    seeds: Iterable[int],
    on_broken: Callable[[int, str], None] = lambda _seed, _how: None,
    on_done: Callable[[list[int], "Ran"], None] = lambda _seeds, _ran: None,
) -> Ran:
    wanted = list(seeds)
    chunks = [wanted[at : at + SEEDS_AT_ONCE] for at in range(0, len(wanted), SEEDS_AT_ONCE)]
    broken: dict[int, str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    seeds_with: Counter[tuple[str, str]] = Counter()
    cpu_s = 0.0
    with pool_with_fixed_hashes() as pool:
        for chunk, ran in zip(chunks, pool.map(run_some, chunks), strict=True):
            on_done(chunk, ran)
            for seed, how in ran.broken.items():
                on_broken(seed, how)
            broken |= ran.broken
            seen += ran.seen
            seeds_with += ran.seeds_with
            cpu_s += ran.cpu_s
    return Ran(broken, seen, seeds_with, cpu_s)


@contextmanager
def pool_with_fixed_hashes() -> Iterator[ProcessPoolExecutor]:
    """Where something iterates a set of strings, it does so in the same order each time. Processes are started anew
    rather than forked: whoever asks may have loops and threads, and hashes are fixed only at the start.
    """
    before = os.environ.get(HASHES)
    os.environ[HASHES] = FIXED_HASHES
    try:
        with ProcessPoolExecutor(
            os.cpu_count(), mp_context=get_context("spawn"), initializer=os.nice, initargs=(NICENESS,)
        ) as pool:
            yield pool
    finally:
        if before is None:
            del os.environ[HASHES]
        else:
            os.environ[HASHES] = before


def run_some(seeds: list[int]) -> Ran:
    began_s = time.process_time()
    broken: dict[int, str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    seeds_with: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        outcome = run(draw(seed))
        if outcome.broken is not None:
            broken[seed] = str(outcome.broken)
        seen += outcome.seen
        seeds_with.update(outcome.seen.keys())
    return Ran(broken, seen, seeds_with, time.process_time() - began_s)


def kept(path: Path = KEPT) -> list[int]:
    """Seeds that have failed once: a number a line, and after it what it was."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


def keep(seed: int, path: Path = KEPT) -> None:
    if seed not in kept(path):
        with path.open("a") as file:
            file.write(f"{seed}\n")
