"""The deciding functions of the compute simulator, its fault script, and the conformance kit for drivers."""

import math
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from bus.message import AggregateId, ConsumerId, ProviderId
from bus.messages.build import Flavor, Image
from bus.messages.cell import (
    ReceiveInstance,
    RespawnInstance,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from bus.messages.hosts import HostFacts, in_messages
from bus.messages.placement import (
    InventoryInUse,
    NotAllowed,
    ReportAccepted,
    ReportedInventory,
    ReportOutdated,
    ResourceAmount,
    Share,
)
from compute_sim.__main__ import main
from compute_sim.core.attempts import WELL, AttemptRecord, Dead, Silent, State, Work, begun
from compute_sim.core.hosts import FailedBuilds
from compute_sim.core.pools import Pool, pools_of, read_pools
from compute_sim.core.tree import ProviderTree, TreeProvider, flaw_of
from compute_sim.core.tree_diff import (
    Accepted,
    MustReportAll,
    Refused,
    ReportState,
    after_answer,
    report_of_changes,
)
from compute_sim.drivers import Driver
from compute_sim.settings import ComputeSettings
from compute_sim.simulated.driver import IMAGES_MAX, SimulatedDriver, root_of
from compute_sim.simulated.faults import (
    BuildsSlowly,
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
    next_turn_s,
)
from compute_sim.simulated.hosts import HostSize, SimulatedHost, equal_hosts, size_at
from compute_sim.simulated.pools import SimulatedPool, aggregate_of
from compute_sim.simulated.script_file import BadScript, load_script
from tests.contracts.driver_contract import OPERATORS_TRAIT, STORAGE, breaches

HOST = root_of("h1")
CHILD = ProviderId(UUID(int=2))
ROOT = TreeProvider(id=HOST, name="h1", inventories={"VCPU": ReportedInventory(total=8)})
NUMA = TreeProvider(id=CHILD, name="h1_NUMA0", parent=HOST)
NOTHING = ReportState(ProviderTree(HOST), 0)


def tree(*providers: TreeProvider, foreign: frozenset[ProviderId] = frozenset()) -> ProviderTree:
    return ProviderTree(HOST, {each.id: each for each in providers}, foreign)


def a_spawn(number: int = 1, host: str = "h1", attempt: int = 1) -> SpawnInstance:
    share = Share(host=root_of(host), amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=1),))
    instance = ConsumerId(UUID(int=number))
    return SpawnInstance(
        cell="c1", instance=instance, attempt=attempt, host=root_of(host), flavor=Flavor(), share=share
    )


# Differences of trees


def test_a_first_report_has_all_providers_of_the_driver_parents_first() -> None:
    sharing = structs.replace(STORAGE)

    report = report_of_changes(NOTHING, tree(NUMA, sharing, ROOT, foreign=frozenset({STORAGE.id})), "c1", 7)

    assert report is not None
    assert [each.name for each in report.providers] == ["h1", "h1_NUMA0"]
    assert (report.epoch, report.sequence, report.removed) == (0, 7, ())


def test_only_providers_that_differ_are_reported_and_nothing_if_none_does() -> None:
    taken = ReportState(tree(ROOT, NUMA), 7)
    marked = structs.replace(NUMA, traits=frozenset({"CUSTOM_B", "CUSTOM_A"}))

    assert report_of_changes(taken, tree(NUMA, ROOT), "c1", 9) is None
    report = report_of_changes(taken, tree(ROOT, marked), "c1", 9)

    assert report is not None
    assert [(each.name, each.traits) for each in report.providers] == [("h1_NUMA0", ("CUSTOM_A", "CUSTOM_B"))]


def test_fields_that_others_set_on_a_provider_are_never_reported() -> None:
    theirs = structs.replace(ROOT, foreign_traits=frozenset({OPERATORS_TRAIT}))

    assert report_of_changes(ReportState(tree(ROOT), 1), tree(theirs), "c1", 2) is None
    report = report_of_changes(NOTHING, tree(theirs), "c1", 2)

    assert report is not None
    assert report.providers[0].traits == ()
    assert report.providers[0].aggregates is None


def test_aggregates_are_reported_only_by_a_driver_that_says_which() -> None:
    ours = structs.replace(ROOT, aggregates=frozenset({AggregateId(UUID(int=9))}))

    report = report_of_changes(ReportState(tree(ROOT), 1), tree(ours), "c1", 2)

    assert report is not None
    assert report.providers[0].aggregates == (UUID(int=9),)


def test_a_provider_that_no_longer_exists_is_removed() -> None:
    report = report_of_changes(ReportState(tree(ROOT, NUMA), 7), tree(ROOT), "c1", 9)

    assert report is not None
    assert (report.providers, report.removed) == ((), (CHILD,))


def test_sequences_rise_even_if_the_clock_does_not() -> None:
    report = report_of_changes(ReportState(tree(), 100), tree(ROOT), "c1", 9)

    assert report is not None
    assert report.sequence == 101


def test_an_answer_contains_the_hosts_current_sequence() -> None:
    now = tree(ROOT)
    report = report_of_changes(NOTHING, now, "c1", 7)
    assert report is not None

    accepted = after_answer(report, now, ReportAccepted(shape=1, shape_moved=True))
    echo = after_answer(report, now, ReportOutdated(epoch=0, sequence=7))
    other = after_answer(report, now, ReportOutdated(epoch=0, sequence=8))
    in_use = after_answer(report, now, InventoryInUse(provider=HOST, resource="VCPU", used=2))
    wrong = after_answer(report, now, NotAllowed(field="cell", reason="not yours"))

    assert accepted == echo == Accepted(ReportState(now, 7))
    # Another reporter has a higher sequence: report everything again, with one above it.
    assert other == MustReportAll(ReportState(ProviderTree(HOST), 8))
    assert isinstance(in_use, Refused)
    assert isinstance(wrong, Refused)
    assert "not yours" in wrong.reason


# Forbidden changes by a driver


MARKED = structs.replace(ROOT, foreign_traits=frozenset({OPERATORS_TRAIT}))
SHARED = frozenset({STORAGE.id})


@pytest.mark.parametrize(
    ("edited", "flaw"),
    [
        (ProviderTree(CHILD), "another root"),
        (tree(MARKED, STORAGE), "other foreign providers"),
        (tree(MARKED, foreign=SHARED), "is foreign, and was changed"),
        (
            tree(MARKED, structs.replace(STORAGE, traits=frozenset()), foreign=SHARED),
            "is foreign, and was changed",
        ),
        (tree(ROOT, STORAGE, foreign=SHARED), "traits of provider 'h1' that are foreign were changed"),
        (tree(NUMA, STORAGE, foreign=SHARED), "not its root"),
        (
            tree(MARKED, structs.replace(NUMA, parent=None), STORAGE, foreign=SHARED),
            "has no parent, and is not the root",
        ),
        (
            tree(structs.replace(MARKED, parent=CHILD), NUMA, STORAGE, foreign=SHARED),
            "is the root, and has a parent",
        ),
        (
            tree(MARKED, structs.replace(NUMA, parent=CHILD), STORAGE, foreign=SHARED),
            "is not connected to the root",
        ),
        (tree(MARKED, NUMA, STORAGE, foreign=SHARED), "nothing"),
    ],
)
def test_a_driver_that_changes_foreign_providers_is_detected(edited: ProviderTree, flaw: str) -> None:
    given = tree(MARKED, STORAGE, foreign=SHARED)

    assert flaw in (flaw_of(given, edited) or "nothing")


STORAGE_POOL = Pool("c1-nfs", "DISK_GB", 500)
ADDRESSES = Pool("c1-net", "IPV4_ADDRESS", 250, "c1-*")
CONFORMING: dict[str, Callable[[], Driver]] = {
    "plain": lambda: SimulatedDriver(SimulatedHost(name="h1")),
    "numa": lambda: SimulatedDriver(SimulatedHost(name="h1", size=HostSize(numa_nodes=3, vcpus=16))),
    "pci": lambda: SimulatedDriver(
        SimulatedHost(name="h1", size=HostSize(pci_devices=(frozenset(), frozenset({"CUSTOM_FAST"}))))
    ),
    "diskless": lambda: SimulatedDriver(SimulatedHost(name="h1", size=HostSize(disk_gb=0))),
    "in pools": lambda: SimulatedDriver(SimulatedHost(name="h1"), None, (STORAGE_POOL, ADDRESSES)),
    "shrunk below its reserve": lambda: SimulatedDriver(
        SimulatedHost(name="h1"), FaultScript(faults=(Changes(ram_mb=-131_000),))
    ),
}


@pytest.mark.parametrize("kind", CONFORMING)
def test_the_simulated_driver_keeps_the_contract(kind: str) -> None:
    assert breaches(CONFORMING[kind]) == ()


class BadDriver:
    """A driver that makes one mistake with the tree of a correct one."""

    made = 0

    def __init__(self, wrong: Callable[[ProviderTree, ProviderTree], ProviderTree]) -> None:
        self._honest = SimulatedDriver(SimulatedHost(name="h1"))
        self._wrong = wrong
        self.root, self.host = self._honest.root, self._honest.host
        self.next_change_s, self.condition = self._honest.next_change_s, self._honest.condition
        self.spawn, self.destroy = self._honest.spawn, self._honest.destroy
        self.receive, self.stop, self.start = self._honest.receive, self._honest.stop, self._honest.start
        self.look_at, self.metrics = self._honest.look_at, self._honest.metrics
        self.images, self.respawn = self._honest.images, self._honest.respawn

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        return self._wrong(tree, self._honest.update_provider_tree(tree, at_s))


def _root_with(edited: ProviderTree, **changes: object) -> ProviderTree:
    root = structs.replace(edited.providers[edited.root], **changes)
    return structs.replace(edited, providers={**edited.providers, edited.root: root})


def _only_own(given: ProviderTree, edited: ProviderTree) -> ProviderTree:
    return structs.replace(edited, providers=edited.own, foreign=given.foreign)


def _all_traits(given: ProviderTree, edited: ProviderTree) -> ProviderTree:
    root = given.providers.get(given.root)
    mine = edited.providers[edited.root].traits
    return _root_with(edited, traits=mine | root.foreign_traits if root else mine)


def _overwrites_traits(_: ProviderTree, edited: ProviderTree) -> ProviderTree:
    return _root_with(edited, foreign_traits=frozenset())


def _new_child_each_time(_: ProviderTree, edited: ProviderTree) -> ProviderTree:
    BadDriver.made += 1
    child = TreeProvider(
        id=ProviderId(UUID(int=BadDriver.made)), name=f"new-{BadDriver.made}", parent=edited.root
    )
    return structs.replace(edited, providers={**edited.providers, child.id: child})


def _never_removes(given: ProviderTree, edited: ProviderTree) -> ProviderTree:
    return structs.replace(edited, providers={**given.providers, **edited.providers})


def _reserves_too_much(_: ProviderTree, edited: ProviderTree) -> ProviderTree:
    return _root_with(edited, inventories={"VCPU": ReportedInventory(total=4, reserved=5)})


def _only_once(given: ProviderTree, edited: ProviderTree) -> ProviderTree:
    return given if given.own else edited


def _nothing_at_all(given: ProviderTree, _: ProviderTree) -> ProviderTree:
    return given


@pytest.mark.parametrize(
    ("wrong", "breach"),
    [
        (_only_own, "is foreign, and was changed"),
        (_all_traits, "as its own: nobody could unset it again"),
        (_overwrites_traits, "that are foreign were changed"),
        (_new_child_each_time, "a call with its own result"),
        (_new_child_each_time, "a new driver, as after a restart"),
        (_never_removes, "stays in the tree after it no longer exists"),
        (_reserves_too_much, "reserves 5 of 4 VCPU"),
        (_only_once, "does not restore lost inventories"),
        (_nothing_at_all, "does not create the root"),
    ],
)
def test_the_kit_finds_each_kind_of_bad_driver(
    wrong: Callable[[ProviderTree, ProviderTree], ProviderTree], breach: str
) -> None:
    found = breaches(lambda: BadDriver(wrong))

    assert any(breach in each for each in found), found


class NeverStops(SimulatedDriver):
    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        return Work(5.0) if attempt.state is State.STOPPING else super().look_at(attempt, at_s)


class KnowsOnlyItsOwnWork(SimulatedDriver):
    """A new process of it knows nothing of what the one before has begun."""

    def __init__(self, host: SimulatedHost) -> None:
        super().__init__(host)
        self._begun: set[ConsumerId] = set()

    def spawn(self, order: SpawnInstance, at_s: float) -> Work:
        self._begun.add(order.instance)
        return super().spawn(order, at_s)

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        if attempt.state is State.BUILDING and attempt.instance not in self._begun:
            return Work(failure="unknown")
        return super().look_at(attempt, at_s)


class StartsOnlyWhatHasStopped(SimulatedDriver):
    """It refuses to start an instance while that is being stopped."""

    def __init__(self, host: SimulatedHost) -> None:
        super().__init__(host)
        self._stopping: set[ConsumerId] = set()
        self._refused: set[ConsumerId] = set()

    def stop(self, order: StopInstance, at_s: float) -> Work:
        self._stopping.add(order.instance)
        return super().stop(order, at_s)

    def start(self, order: StartInstance, at_s: float) -> Work:
        self._refused |= self._stopping & {order.instance}
        return super().start(order, at_s)

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        if attempt.state is State.STOPPING:
            self._stopping.discard(attempt.instance)
        if attempt.state is State.STARTING and attempt.instance in self._refused:
            return Work(failure="it is being stopped")
        return super().look_at(attempt, at_s)


class ReceivesOnlyFromOthers(SimulatedDriver):
    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        if attempt.state is State.RECEIVING:
            return Work(failure="it is here already")
        return super().look_at(attempt, at_s)


@pytest.mark.parametrize(
    ("wrong", "breach"),
    [
        (NeverStops, "stopping twice: the work does not end"),
        (KnowsOnlyItsOwnWork, "building in a new driver, as after a restart: the work fails: unknown"),
        (
            StartsOnlyWhatHasStopped,
            "starting while the work of StopInstance goes on: the work fails: it is being stopped",
        ),
        (ReceivesOnlyFromOthers, "receiving from itself: the work fails: it is here already"),
    ],
)
def test_the_kit_finds_each_kind_of_driver_that_works_badly(
    wrong: Callable[[SimulatedHost], Driver], breach: str
) -> None:
    assert breach in breaches(lambda: wrong(SimulatedHost(name="h1")))


def test_numa_nodes_have_all_cpus_and_memory_among_them() -> None:
    driver = SimulatedDriver(
        SimulatedHost(name="h1", size=HostSize(vcpus=17, ram_mb=1025, ram_mb_reserved=7, numa_nodes=2))
    )

    built = driver.update_provider_tree(ProviderTree(driver.root), 0)

    parts = [each.inventories for each in built.providers.values() if each.parent]
    assert [each["VCPU"].total for each in parts] == [9, 8]
    assert [(each["MEMORY_MB"].total, each["MEMORY_MB"].reserved) for each in parts] == [(513, 4), (512, 3)]
    assert set(built.providers[driver.root].inventories) == {"DISK_GB"}


def test_pci_devices_are_in_the_numa_nodes_by_turns_or_below_the_root() -> None:
    devices = (frozenset({"CUSTOM_FAST"}), frozenset[str](), frozenset[str]())

    def parents(numa_nodes: int) -> list[str | None]:
        driver = SimulatedDriver(
            SimulatedHost(name="h1", size=HostSize(numa_nodes=numa_nodes, pci_devices=devices))
        )
        built = driver.update_provider_tree(ProviderTree(driver.root), 0).providers
        found = [each for each in built.values() if "PCI_DEVICE" in each.inventories]
        assert [each.traits for each in found] == [*devices]
        return [built[each.parent].name for each in found if each.parent]

    assert parents(2) == ["h1_NUMA0", "h1_NUMA1", "h1_NUMA0"]
    assert parents(0) == ["h1"] * 3


# The fault script


def test_a_fault_is_on_from_its_beginning_to_before_its_end_and_again() -> None:
    once = FallsSilent(after_s=10, for_s=5)
    pulse = FallsSilent(after_s=10, for_s=5, every_s=20)

    assert [is_on(once, at) for at in (9.9, 10, 14.9, 15, 30)] == [False, True, True, False, False]
    assert [is_on(pulse, at) for at in (9.9, 10, 15, 30, 34.9, 35)] == [False, True, False, True, True, False]
    assert [next_turn_s(once, at) for at in (0, 10, 15)] == [10, 15, None]
    assert [next_turn_s(pulse, at) for at in (0, 10, 15, 30)] == [10, 15, 30, 35]
    assert next_turn_s(Dies(after_s=3), 3) is None


def test_repeated_faults_go_on_for_ever() -> None:
    pulse = Changes(after_s=0.1, for_s=0.1, every_s=0.3)
    at_s, turns = 0.0, 0
    for _ in range(1000):
        turn = next_turn_s(pulse, at_s)
        assert turn is not None
        assert turn > at_s
        assert is_on(pulse, turn) is (turns % 2 == 0)
        at_s, turns = turn, turns + 1

    assert math.isclose(at_s, 0.2 + 0.3 * 499)


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


def test_the_fate_of_a_build_follows_from_the_seed_and_the_attempt_alone() -> None:
    script = FaultScript(
        seed=1,
        spawn_ms=10,
        faults=(FailsToBuild(probability=0.3), BuildsSlowly(spawn_ms=500, probability=0.5)),
    )

    def fates(at_s: float, attempt: int = 1) -> list[Work]:
        driver = SimulatedDriver(SimulatedHost(name="h1"), script)
        return [driver.spawn(a_spawn(n, attempt=attempt), at_s) for n in range(1000)]

    assert fates(0) == fates(99) != fates(0, attempt=2)
    assert 250 < sum(bool(each.failure) for each in fates(0)) < 350
    assert 450 < sum(each.left_ms == 500 for each in fates(0)) < 550


def a_stop(number: int = 1) -> StopInstance:
    return StopInstance(cell="c1", instance=ConsumerId(UUID(int=number)), attempt=1, host=HOST, number=7)


def a_start(number: int = 1) -> StartInstance:
    return StartInstance(cell="c1", instance=ConsumerId(UUID(int=number)), attempt=1, host=HOST, number=7)


def a_receive(number: int = 1) -> ReceiveInstance:
    spawn = a_spawn(number, attempt=2)
    return ReceiveInstance(
        cell="c1",
        instance=spawn.instance,
        attempt=2,
        host=HOST,
        flavor=spawn.flavor,
        share=spawn.share,
        source=root_of("h2"),
        source_attempt=1,
    )


def a_respawn(number: int, rebuild: int) -> RespawnInstance:
    spawn = a_spawn(number)
    return RespawnInstance(
        cell="c1",
        instance=spawn.instance,
        attempt=1,
        host=HOST,
        number=rebuild,
        flavor=spawn.flavor,
        share=spawn.share,
        image=Image(source="http://images/fedora"),
    )


def test_a_rebuild_takes_as_long_as_a_build_has_its_faults_and_needs_its_image() -> None:
    script = FaultScript(spawn_ms=7, faults=(FailsToBuild(probability=0.5, reason="no disk"),))
    driver = SimulatedDriver(SimulatedHost(name="h1"), script)

    works = {driver.respawn(a_respawn(1, number), 0.0) for number in range(20)}

    assert works == {Work(7), Work(7, "no disk")}
    assert driver.images() == ("http://images/fedora",)


def test_each_kind_of_work_has_its_own_time_and_its_own_faults() -> None:
    plain = FaultScript(spawn_ms=1, receive_ms=2, stop_ms=3, start_ms=4)
    failing = structs.replace(plain, faults=(FailsToReceive(), FailsToStop(reason="busy"), FailsToStart()))
    slow = structs.replace(
        plain,
        faults=(ReceivesSlowly(receive_ms=20), StopsSlowly(stop_ms=30, for_s=5), StartsSlowly(start_ms=40)),
    )

    def works(script: FaultScript, at_s: float = 0) -> list[Work]:
        driver = SimulatedDriver(SimulatedHost(name="h1"), script)
        return [
            driver.spawn(a_spawn(), at_s),
            driver.receive(a_receive(), at_s),
            driver.stop(a_stop(), at_s),
            driver.start(a_start(), at_s),
        ]

    assert works(plain) == [Work(1), Work(2), Work(3), Work(4)]
    assert works(failing) == [
        Work(1),
        Work(2, "the source did not send it"),
        Work(3, "busy"),
        Work(4, "the hypervisor could not start it again"),
    ]
    assert works(slow) == [Work(1), Work(20), Work(30), Work(40)]
    assert works(slow, at_s=5)[2] == Work(3)
    # The host itself does not change when a fault of work ends.
    assert SimulatedDriver(SimulatedHost(name="h1"), slow).next_change_s(0.0) is None


def test_which_instances_cannot_be_stopped_follows_from_the_seed_and_not_from_which_cannot_be_started() -> (
    None
):
    script = FaultScript(seed=1, faults=(FailsToStop(probability=0.5), FailsToStart(probability=0.5)))

    def failing(script: FaultScript) -> tuple[set[int], set[int]]:
        driver = SimulatedDriver(SimulatedHost(name="h1"), script)
        return (
            {n for n in range(500) if driver.stop(a_stop(n), 0).failure},
            {n for n in range(500) if driver.start(a_start(n), 0).failure},
        )

    stops, starts = failing(script)

    assert 200 < len(stops) < 300
    assert 200 < len(starts) < 300
    assert stops != starts
    assert failing(script) == (stops, starts)
    assert failing(structs.replace(script, faults=script.faults[:1])) == (stops, set())
    assert failing(structs.replace(script, seed=2)) != (stops, starts)


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


# Hosts


def test_hosts_alike_have_names_of_their_cell_and_ids_that_follow_from_them() -> None:
    hosts = equal_hosts("c7", 3)

    assert [each.name for each in hosts] == ["c7-host-00001", "c7-host-00002", "c7-host-00003"]
    assert len({each.availability_zone for each in hosts}) == 3
    assert SimulatedDriver(hosts[0]).root == root_of("c7-host-00001")


# Pools


def test_a_pool_is_a_sharing_provider_and_a_host_in_its_aggregate_has_nothing_of_its_class() -> None:
    host = SimulatedHost(name="h1", size=HostSize(numa_nodes=2))
    driver = SimulatedDriver(host, None, pools_of((STORAGE_POOL, ADDRESSES), "h1"))

    tree = driver.update_provider_tree(ProviderTree(driver.root), 0.0)
    storage, aggregate = SimulatedPool(STORAGE_POOL), aggregate_of(STORAGE_POOL)
    pool = storage.update_provider_tree(ProviderTree(storage.root), 0.0)

    assert [sorted(each.inventories) for each in tree.own.values()] == [[], *[["MEMORY_MB", "VCPU"]] * 2]
    assert tree.providers[driver.root].joins == {aggregate}
    shared = pool.own[storage.root]
    assert shared.traits == {"MISC_SHARES_VIA_AGGREGATE"}
    assert shared.joins == {aggregate}
    assert shared.inventories == {"DISK_GB": ReportedInventory(total=500)}


def test_a_host_caches_the_images_that_it_built_from_last() -> None:
    driver = SimulatedDriver(SimulatedHost(name="h1"))

    for image in (*map(str, range(IMAGES_MAX)), "0", "new"):
        driver.spawn(structs.replace(a_spawn(), image=Image(source=image)), 0.0)
    driver.spawn(a_spawn(), 0.0)
    driver.receive(a_receive(), 0.0)

    assert driver.images() == (*map(str, range(2, IMAGES_MAX)), "0", "new")


def test_pools_are_read_from_the_settings_and_named_after_their_cell() -> None:
    settings = ComputeSettings(cell="c1", pools=("nfs:DISK_GB=500", "net:IPV4_ADDRESS=250@c1-*"))

    assert read_pools(settings.pools, "c1") == (STORAGE_POOL, ADDRESSES)
    assert pools_of((STORAGE_POOL, ADDRESSES), "c1-host-00001") == (STORAGE_POOL, ADDRESSES)


@pytest.mark.parametrize(
    ("pools", "what"),
    [
        (("nfs",), "pools has 'nfs', must be NAME:CLASS=TOTAL"),
        (("nfs:disk=5",), "pools has 'nfs:disk=5', must be NAME:CLASS=TOTAL"),
        (("nfs:DISK_GB=0",), "TOTAL is 0, must be 1 to 2147483647"),
        (("nfs:DISK_GB=1", "nfs:VCPU=1"), "the name 'nfs' twice"),
    ],
)
def test_pools_that_cannot_be_are_refused_by_value(pools: tuple[str, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ComputeSettings(pools=pools)


def test_facts_are_cut_into_messages_by_their_number_and_their_size() -> None:
    short = [HostFacts(id=HOST, name=f"h{n}") for n in range(2500)]
    long = [HostFacts(id=HOST, name="\x01" * 200, availability_zone="ä" * 200) for _ in range(1000)]

    assert [len(each) for each in in_messages(short)] == [1000, 1000, 500]
    assert sum(len(each) for each in in_messages(long)) == 1000
    assert all(len(msgspec.json.encode(each)) < 256 * 1024 for each in in_messages(long))
    assert in_messages([]) == []


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"cell": "Not A Cell"}, "matching regex"),
        ({"beat_s": 0}, "beat_s is 0"),
        ({"again_s": -1.0}, "again_s is -1"),
        ({"reports_at_once_max": 0}, "reports_at_once_max is 0, must be more than 0"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        structs.replace(ComputeSettings(), **wrong)


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({}, "MOOR_BUS_URL and MOOR_CELL must be set"),
        ({"MOOR_BUS_URL": "unix:///x"}, "MOOR_CELL must be set"),
        (
            {"MOOR_BUS_URL": "unix:///x", "MOOR_CELL": "c1", "MOOR_COMPUTE_HOSTS": "many"},
            "MOOR_COMPUTE_HOSTS is 'many', must be a whole number, 0 or more",
        ),
        (
            {"MOOR_BUS_URL": "unix:///x", "MOOR_CELL": "c1", "MOOR_COMPUTE_FAULTS": "/no/such.toml"},
            "fault script /no/such.toml",
        ),
        ({"MOOR_BUS_URL": "unix:///x", "MOOR_CELL": "Not A Cell"}, "matching regex"),
    ],
)
def test_a_process_that_was_started_wrongly_names_what_is_missing(
    environment: dict[str, str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(environment)
    assert what in capsys.readouterr().err


def test_builds_that_fail_in_a_row_are_counted_until_one_succeeds() -> None:
    counted = FailedBuilds()
    building = begun(a_spawn(), Work(), 0.0)

    def end(state: State) -> int:
        counted.count(building, structs.replace(building, state=state))
        return counted.of(building.host)

    assert [end(state) for state in (State.FAILED, State.BUILDING, State.FAILED, State.DESTROYED)] == [
        1,
        1,
        2,
        2,
    ]
    failed = structs.replace(building, state=State.FAILED)
    counted.count(failed, structs.replace(failed, due_s=None))
    assert counted.of(building.host) == 2
    receiving = begun(a_receive(), Work(), 0.0)
    counted.count(receiving, structs.replace(receiving, state=State.FAILED))
    counted.count(receiving, structs.replace(receiving, state=State.BUILT))
    assert counted.of(building.host) == 2
    assert [end(State.BUILT), end(State.FAILED)] == [0, 1]


def test_a_change_of_metrics_counts_while_it_lasts() -> None:
    heat = Changes(after_s=10, for_s=5, metrics={"temperature": 95.0})
    host = SimulatedHost(name="h1", metrics={"temperature": 40.0, "load": 1.0})
    driver = SimulatedDriver(host, FaultScript(faults=(heat,)))

    assert [driver.metrics(at_s)["temperature"] for at_s in (9.0, 10.0, 14.9, 15.0)] == [
        40.0,
        95.0,
        95.0,
        40.0,
    ]
    assert driver.metrics(12.0)["load"] == 1.0
