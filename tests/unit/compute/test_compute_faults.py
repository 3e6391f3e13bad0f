"""The fault script of simulated hosts: when each fault is on, and which builds and hosts it meets."""

from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from compute_sim.core.attempts import WELL, AttemptState, Dead, Silent, Work, begun
from compute_sim.handlers import Fleet
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.faults import (
    BadScript,
    Changes,
    ComesBackLate,
    Dies,
    FailsToBuild,
    FailsToReceive,
    FailsToStart,
    FailsToStop,
    FallsSilent,
    FaultScript,
    ReceivesSlowly,
    StartsSlowly,
    StopsSlowly,
    condition_of,
    faults_of,
    is_on,
    load_script,
    next_turn_s,
)
from laboratory.computes.hosts import HostSize, SimulatedHost, size_at
from tests.unit.compute.attempt_cases import RECEIVE, SPAWN, respawn, start, stop


def test_a_fault_is_on_from_its_beginning_to_before_its_end_and_again() -> None:
    once = FallsSilent(after_s=10, for_s=5)
    pulse = FallsSilent(after_s=10, for_s=5, every_s=20)

    assert [is_on(once, at) for at in (9.9, 10, 14.9, 15, 30)] == [False, True, True, False, False]
    assert [is_on(pulse, at) for at in (9.9, 10, 15, 30, 34.9, 35)] == [False, True, False, True, True, False]
    assert [next_turn_s(once, at) for at in (0, 10, 15)] == [10, 15, None]
    assert [next_turn_s(pulse, at) for at in (0, 10, 15, 30)] == [10, 15, 30, 35]
    assert next_turn_s(Dies(after_s=3), 3) is None


def test_the_worst_active_fault_counts() -> None:
    late, silent, dies = ComesBackLate(for_s=9), FallsSilent(for_s=5), Dies(after_s=7)

    assert condition_of((late, silent, dies), 1) == Silent()
    assert condition_of((late, silent, dies), 6) == Silent(until_s=9)
    assert condition_of((late, silent, dies), 8) == Dead()
    assert condition_of((late, silent), 10) == WELL


def test_a_share_of_the_hosts_that_fit_the_pattern_is_bad_and_always_the_same() -> None:
    script = FaultScript(seed=7, faults=(FailsToBuild(share=0.2, hosts=("c1-*",)),))
    other = structs.replace(script, seed=8)

    bad = {n for n in range(1000) if faults_of(script, f"c1-{n}")}

    assert 150 < len(bad) < 250
    assert bad == {n for n in range(1000) if faults_of(script, f"c1-{n}")}
    assert bad != {n for n in range(1000) if faults_of(other, f"c1-{n}")}
    assert not any(faults_of(script, f"c2-{n}") for n in range(1000))


def test_each_kind_of_work_has_its_own_time_and_its_own_faults() -> None:
    plain = FaultScript(spawn_ms=1, receive_ms=2, stop_ms=3, start_ms=4)
    failing = structs.replace(plain, faults=(FailsToReceive(), FailsToStop(reason="busy"), FailsToStart()))
    slow = structs.replace(
        plain,
        faults=(ReceivesSlowly(receive_ms=20), StopsSlowly(stop_ms=30, for_s=5), StartsSlowly(start_ms=40)),
    )

    def works(script: FaultScript, at_s: float = 0) -> list[Work]:
        driver = SimulatedDriver(SimulatedHost(name="h1"), script)
        return [driver.begin(each, at_s) for each in (SPAWN, RECEIVE, stop(), start(), respawn())]

    assert works(plain) == [Work(1), Work(2), Work(3), Work(4), Work(1)]
    assert works(failing) == [
        Work(1),
        Work(2, "the source did not send it"),
        Work(3, "busy"),
        Work(4, "the hypervisor could not start it again"),
        Work(1),
    ]
    assert works(slow) == [Work(1), Work(20), Work(30), Work(40), Work(1)]
    assert works(slow, at_s=5)[2] == Work(3)


def test_a_change_replaces_the_hosts_size_while_it_lasts() -> None:
    change = Changes(
        after_s=5, for_s=5, vcpus=-100, ram_mb=10, traits_gained=("CUSTOM_A",), traits_lost=("COMPUTE_NODE",)
    )
    size = HostSize(vcpus=4, ram_mb=100)

    changed = size_at(size, (change,), 7)

    assert (changed.vcpus, changed.ram_mb) == (0, 110)
    assert changed.traits == frozenset({"CUSTOM_A", "HW_CPU_X86_AVX2"})
    assert size_at(size, (change,), 4) == size_at(size, (change,), 10) == size


TOML = """
seed = 5
spawn_ms = 20.0

[[faults]]
is = "fails_to_build"
share = 0.05
probability = 0.5

[[faults]]
is = "comes_back_late"
hosts = ["c1-host-00007"]
after_s = 3
for_s = 10

[[faults]]
is = "stops_slowly"
stop_ms = 900

[[faults]]
is = "changes"
vcpus = -4
traits_lost = ["HW_CPU_X86_AVX2"]
after_s = 1
for_s = 1
every_s = 2
"""


def test_a_script_is_read_from_toml_and_from_json_alike(tmp_path: Path) -> None:
    toml, json = tmp_path / "faults.toml", tmp_path / "faults.json"
    toml.write_text(TOML)
    script = load_script(toml, FaultScript)
    json.write_bytes(msgspec.json.encode(script))

    assert load_script(json, FaultScript) == script
    assert (script.seed, script.spawn_ms) == (5, 20.0)
    assert [type(each) for each in script.faults] == [FailsToBuild, ComesBackLate, StopsSlowly, Changes]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[[faults]]\nis = 'explodes'", "explodes"),
        ("[[faults]]\nis = 'dies'\nfor_s = 3", "a dead host does not come back"),
        ("[[faults]]\nis = 'falls_silent'\nshare = 1.5", "share is 1.5"),
        ("[[faults]]\nis = 'fails_to_build'\nprobability = 5", "probability is 5"),
        ("[[faults]]\nis = 'falls_silent'\nevery_s = 5", r"less than every_s \(5"),
        ("[[faults]]\nis = 'comes_back_late'", "for_s must be more than 0"),
        ("[[faults]]\nis = 'falls_silent'\nafter_s = -1", "must not be negative"),
        ("not toml", "faults.toml"),
    ],
)
def test_an_invalid_script_is_refused_with_the_error(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(text)

    with pytest.raises(BadScript, match=what):
        load_script(path, FaultScript)


def test_builds_that_fail_in_a_row_are_counted_until_one_succeeds() -> None:
    fleet, building = Fleet((), lambda: 0.0), begun(SPAWN, Work(), 0.0)

    def end(state: AttemptState) -> int:
        fleet.count_build(building, structs.replace(building, state=state))
        return fleet.failed_builds.get(building.host.int, 0)

    ends = (
        AttemptState.FAILED,
        AttemptState.BUILDING,
        AttemptState.FAILED,
        AttemptState.BUILT,
        AttemptState.FAILED,
    )
    assert [end(state) for state in ends] == [1, 1, 2, 0, 1]
