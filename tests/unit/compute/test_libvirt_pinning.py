"""The choice of dedicated CPUs by thread policy, on all hosts of up to three cores of up to four threads, in every state."""

from collections.abc import Sequence
from itertools import product

import pytest

from compute_sim.libvirt.core.machine import cpus_in_words, read_cpus
from compute_sim.libvirt.core.planning import ChosenCpus, choose_cpus

# How many threads a core has, and how many of them are free: the last ones.
STATES = [(threads, free) for threads in (1, 2, 3, 4) for free in range(threads + 1)]


def can_be_chosen(count: int, cores: Sequence[tuple[int, int]], policy: str) -> bool:
    if policy == "isolate":
        return sum(threads == free for threads, free in cores) >= count
    parts = [[part for part in range(free + 1) if policy != "require" or part != 1] for _, free in cores]
    return any(sum(some) == count for some in product(*parts))


@pytest.mark.parametrize("policy", ["", "prefer", "require", "isolate"])
def test_cpus_are_chosen_whenever_the_policy_allows_any_choice(policy: str) -> None:
    tried = chosen_at_all = 0
    for cores in product(STATES, repeat=3):
        numbers = [tuple(range(10 * at, 10 * at + threads)) for at, (threads, _) in enumerate(cores)]
        free = frozenset(
            cpu for core, (_, count) in zip(numbers, cores, strict=True) for cpu in core[len(core) - count :]
        )
        dedicated = [cpu for core in numbers for cpu in core]
        threads = {cpu: core for core in numbers for cpu in core}
        for count in range(1, 7):
            chosen = choose_cpus(count, dedicated, free, threads, policy)  # type: ignore[arg-type]
            assert (chosen is not None) == can_be_chosen(count, cores, policy), (count, cores)
            tried += 1
            if chosen is not None:
                chosen_at_all += 1
                check(chosen, count, free, numbers, policy)
    assert tried > chosen_at_all > 100


def check(
    chosen: ChosenCpus, count: int, free: frozenset[int], cores: Sequence[tuple[int, ...]], policy: str
) -> None:
    ours = set(chosen.cpus)
    assert len(ours) == len(chosen.cpus) == count
    assert ours | set(chosen.idle) <= free
    for core in cores:
        there = ours & set(core)
        if policy == "require":
            assert len(there) != 1
        if policy == "isolate" and there:
            assert len(there) == 1
            assert set(core) - there <= set(chosen.idle)
    assert policy == "isolate" or not chosen.idle


def test_whole_cores_are_filled_before_cores_are_opened() -> None:
    threads = {cpu: core for core in ((0, 1), (2, 3), (4, 5)) for cpu in core}
    # One thread of the first core is taken: three CPUs are a whole core and that core's rest.
    chosen = choose_cpus(3, range(6), frozenset({1, 2, 3, 4, 5}), threads, "prefer")

    assert chosen == ChosenCpus((2, 3, 1))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), (" 5 , 1-2 ", {1, 2, 5}), ("0-4,^2", {0, 1, 3, 4})],
)
def test_sets_of_cpus_are_read(text: str, cpus: set[int]) -> None:
    assert read_cpus(text) == cpus


@pytest.mark.parametrize("text", ["x", "1-", "3-1", "0-99999", "1,,2", "-1", "\u0661"])
def test_wrong_sets_of_cpus_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="cpus_shared has"):
        read_cpus(text, "cpus_shared")


def test_sets_of_cpus_are_written_in_ranges() -> None:
    assert cpus_in_words([8, 0, 1, 2, 3, 3]) == "0-3,8"
    assert cpus_in_words([]) == ""
