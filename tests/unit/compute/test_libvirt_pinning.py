"""Sets of CPUs in words, and which of them fill cores."""

import pytest

from compute_sim.libvirt.core.machine import cpus_in_words, read_cpus
from compute_sim.libvirt.core.planning import ChosenCpus, choose_cpus


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
