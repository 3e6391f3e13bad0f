"""Simulated computes: their hosts' sizes, faults and consoles, and the driver kit."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from msgspec import structs

from bus.codec import encode
from bus.memory import MemoryBroker
from bus.message import PARCEL_BYTES_MAX, Envelope
from bus.messages.cell import CONSOLE_BYTES_MAX, ConsoleTold, TellConsole
from bus.messages.hosts import in_messages
from bus.topology import objects_of
from bus.workers.connections import Station
from bus.workers.handlers import ReadOnly, Tell
from compute_sim.core.attempts import WELL, AttemptRecord, AttemptState, Dead, Silent, Work, begun, waiting
from compute_sim.core.hosts import Pool, aggregate_of, pools_of, read_pools
from compute_sim.core.trees import Allocations, ProviderTree, TreeProvider, flaw_of
from compute_sim.drivers import ConsoleText
from compute_sim.guests import console_handlers
from compute_sim.handlers import BuildSlots, ComputeStore, Fleet
from compute_sim.libvirt.settings import LibvirtSettings
from compute_sim.settings import COMPUTE, ComputeSettings
from compute_sim.wiring import compute_parts
from engine.hosts import HostFacts
from engine.inventories import ProviderId, ReportedInventory
from laboratory.computes.driver import SimulatedDriver, SimulatedPool
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
from laboratory.computes.hosts import (
    HostSize,
    SimulatedHost,
    equal_hosts,
    gpu,
    in_cells,
    pci_function,
    read_host_size,
    read_places,
    size_at,
    virtual_functions,
)
from tests.contracts.driver_contract import breaches
from tests.contracts.small_world import connected, drain
from tests.running import running
from tests.simulation.loop import simulated, until_s
from tests.unit.compute.attempt_cases import RECEIVE, SPAWN, respawn, start, stop
from tests.unit.compute.compute_trees import CHILD, HOST, NUMA, ROOT
from tests.unit.compute.test_compute_tree_diff import tree
from tests.unit.examples.values import CONSUMER
from tests.unit.scheduler.lone_scheduler import an_ask


def test_a_pool_is_a_sharing_provider_and_a_host_in_its_aggregate_has_nothing_of_its_class() -> None:
    host = SimulatedHost(name="h1", size=HostSize(numa_nodes=2))
    driver = SimulatedDriver(host, None, pools_of((STORAGE_POOL, ADDRESSES), "h1"))

    tree = driver.update_provider_tree(ProviderTree(driver.root), 0.0)
    storage, aggregate = SimulatedPool(STORAGE_POOL), aggregate_of(STORAGE_POOL)
    pool = storage.update_provider_tree(ProviderTree(storage.root), 0.0)

    assert [sorted(each.inventories) for each in tree.providers.values()] == [
        [],
        *[["MEMORY_MB", "VCPU"]] * 2,
    ]
    assert tree.providers[driver.root].joins == {aggregate}
    shared = pool.providers[storage.root]
    assert shared.traits == {"MISC_SHARES_VIA_AGGREGATE"}
    assert shared.joins == {aggregate}
    assert shared.inventories == {"DISK_GB": ReportedInventory(total=500)}


def test_pools_are_read_from_the_settings_and_named_after_their_cell() -> None:
    settings = ComputeSettings(cell="c1", pools=("nfs:DISK_GB=500", "net:IPV4_ADDRESS=250@c1-*"))

    assert read_pools(settings.pools, "c1") == (STORAGE_POOL, ADDRESSES)
    assert pools_of((STORAGE_POOL, ADDRESSES), "c1-host-00001") == (STORAGE_POOL, ADDRESSES)


def test_facts_are_cut_into_messages_by_their_number_and_their_size() -> None:
    short = [HostFacts(id=HOST, name=f"h{n}") for n in range(2500)]
    long = [HostFacts(id=HOST, name="\x01" * 200, availability_zone="ä" * 200) for _ in range(1000)]

    assert [len(each) for each in in_messages(short)] == [1000, 1000, 500]
    assert sum(len(each) for each in in_messages(long)) == 1000
    assert all(len(msgspec.json.encode(each)) < 256 * 1024 for each in in_messages(long))
    assert in_messages([]) == []


def env(**variables: str) -> Callable[[], object]:
    return lambda: COMPUTE.read({f"MOOR_COMPUTE_{name}": value for name, value in variables.items()})


def pools(*texts: str) -> Callable[[], object]:
    return lambda: ComputeSettings(pools=texts)


def networks(*texts: str) -> Callable[[], object]:
    return lambda: ComputeSettings(networks=texts)


def size(text: str) -> Callable[[], object]:
    return lambda: read_host_size(text)


def at(text: str) -> Callable[[], object]:
    return lambda: read_places(text)


def libvirt_at(*texts: str) -> Callable[[], object]:
    return lambda: LibvirtSettings(folder="/nowhere", hosts=("a=qemu:///system",), places=texts)


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        *(
            (networks(*texts), "networks has")
            for texts in (("physnet0",), ("=5",), ("a=0",), ("a=9999999999",), ("a-b=1", "a_b=2"))
        ),
        (pools("nfs"), "pools has 'nfs', must be NAME:CLASS=TOTAL"),
        (pools("nfs:disk=5"), "pools has 'nfs:disk=5', must be NAME:CLASS=TOTAL"),
        (pools("nfs:DISK_GB=0"), "TOTAL is 0, must be 1 to 2147483647"),
        (pools("nfs:DISK_GB=1", "nfs:VCPU=1"), "the name 'nfs' twice"),
        (env(BEAT_S="0"), "beat_s is '0'"),
        (env(FACTS_EVERY_S="-1.0"), "facts_every_s is '-1.0'"),
        (
            env(BUILDS_AT_ONCE_MAX="-1"),
            "builds_at_once_max is '-1' .* must be a whole number, at least 0",
        ),
        (lambda: ComputeSettings(cell="Not A Cell"), "matching regex"),
        *(
            (at(text), rf"compute_place has '{re.escape(text)}', must be a place such as")
            for text in ("dc1//{20}", "dc1/rack{0}", "dc1/{rack}", "/".join("d" * 9))
        ),
        (libvirt_at("b=dc1"), "places has 'b=dc1', and hosts names no 'b'"),
        (libvirt_at("a=dc1//x"), "places has 'a=dc1//x': a place is names"),
        (libvirt_at("a=dc1", "a=dc2"), "places has two places for a"),
        (size("vcpus"), "host_size has 'vcpus', must be cells or NAME=VALUE"),
        (size("cpus=4"), "host_size has 'cpus', must be one of device, disk_gb"),
        (size("vcpus=-1"), "host_size has vcpus='-1'"),
        (size("vcpus=many"), "host_size has vcpus='many'"),
        (size("vcpus=8, vcpus=9"), "host_size has vcpus twice"),
        (size("vcpus=99999999999"), "host_size has vcpus='99999999999'"),
        (size("vcpu_ratio=nan"), "host_size has vcpu_ratio='nan'"),
        (size("vcpu_ratio=0"), "host_size has vcpu_ratio='0'"),
        (size("numa_nodes=65"), "host_size has numa_nodes=65, must be 0 to 64"),
        (size("pages=2048"), "host_size has pages='2048', must be KIB:MB"),
        (size("pages=2048:1"), "1 MB are no whole number of pages of 2048 KiB"),
        (size("pages=2048:2,pages=2048:4"), "host_size has pages of 2048 KiB twice"),
        (size("device=tpu:1"), "host_size has device='tpu:1', must be pci:VENDOR:PRODUCT"),
        (
            size(",".join(["device=pci:10de:20b0"] * 257)),
            "host_size has 257 devices, must be at most 256",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_its_text(read: Callable[[], object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read()


def test_simulated_hosts_fill_a_domain_before_the_next_one_begins() -> None:
    hosts = equal_hosts("c1", 5, place="dc1/row{4}/rack{2}")

    assert [each.place for each in hosts] == [
        f"dc1/row{row}/rack{rack}" for row, rack in ((1, 1), (1, 1), (1, 2), (1, 2), (2, 3))
    ]


DEVICES = "device=vf:8:net0,device=pci:10de:20b0,device=gpu:A40-4Q:4"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        # What is not named is as usual.
        ("", HostSize()),
        ("vcpus=64, vcpu_ratio=2", HostSize(vcpus=64, vcpu_ratio=2.0)),
        (
            f"numa_nodes=2,pcpus=16,pages=2048:8192,pages=1048576:4096,{DEVICES}",
            HostSize(
                numa_nodes=2,
                pcpus=16,
                pages=((2048, 8192), (1_048_576, 4096)),
                devices=(
                    virtual_functions(8, "net0"),
                    pci_function("10de", "20b0"),
                    gpu("A40-4Q", 4),
                ),
            ),
        ),
        # Some of everything.
        ("vcpus=64,cells,disk_gb=10", structs.replace(in_cells(HostSize(vcpus=64)), disk_gb=10)),
    ],
)
def test_the_size_of_a_host_is_read(text: str, read: HostSize) -> None:
    assert read_host_size(text) == read


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
    before = HostSize(vcpus=4, ram_mb=100)

    changed = size_at(before, (change,), 7)

    assert (changed.vcpus, changed.ram_mb) == (0, 110)
    assert changed.traits == frozenset({"CUSTOM_A", "HW_CPU_X86_AVX2"})
    assert size_at(before, (change,), 4) == size_at(before, (change,), 10) == before


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


def test_builds_that_fail_in_a_row_are_counted_and_the_end_of_each_build_lets_one_begin() -> None:
    fleet = Fleet([SimulatedDriver(SimulatedHost(name="h1"))], lambda: 0.0)
    building, waits = begun(SPAWN, Work(), 0.0), waiting(structs.replace(SPAWN, attempt=2))

    def end(state: AttemptState) -> tuple[int, int]:
        after = structs.replace(building, state=state)
        fleet.count_build(building, after)
        slots = BuildSlots(ComputeStore(fleet.clock_s), fleet, 1)
        slots.changed(building, after)
        begins = [*slots.begin_waiting({waits.key: waits}, 0.0)]
        return fleet.failed_builds.get(building.host.int, 0), len(begins)

    ends = (
        AttemptState.FAILED,
        AttemptState.BUILDING,
        AttemptState.FAILED,
        AttemptState.BUILT,
        AttemptState.FAILED,
    )
    assert [end(state) for state in ends] == [(1, 1), (1, 0), (2, 1), (0, 1), (1, 1)]


@simulated
async def test_a_host_lists_what_it_has_when_its_silence_is_over() -> None:
    memory, silence = MemoryBroker(), FallsSilent(after_s=50, for_s=60)
    driver = SimulatedDriver(SimulatedHost(name="h1"), FaultScript(faults=(silence,)))
    station = Station(memory.as_user(), "compute", asks=True)
    async with (
        connected(memory.as_user(), objects_of(("c1",))) as connection,
        running(compute_parts(station, [driver], ComputeSettings(cell="c1")), station),
    ):
        await station.publisher.send(SPAWN)
        await until_s(100)
        assert await connection.depth("conductor.c1.work") == 1
        await until_s(150)
        _, listed = await drain(connection, "conductor.c1.work", 2)
        assert b"host.holds" in listed.parcel.body


NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ORDER = TellConsole(
    cell="c1", question="q", asked_at=NOON, instance=CONSUMER, start=0, limit=CONSOLE_BYTES_MAX
)


class Writes(SimulatedDriver):
    """A host whose guest has written nothing that can be printed."""

    async def console(self, attempt: AttemptRecord, start: int, limit: int) -> ConsoleText:  # noqa: ARG002 - all have the same
        text = b"\0" * (CONSOLE_BYTES_MAX + 1)
        return ConsoleText(text[start : start + limit], start, len(text))


async def test_a_part_that_fits_into_a_message_is_told_and_nothing_of_what_nobody_waits_for_any_more() -> (
    None
):
    driver = Writes(equal_hosts("c1", 1)[0], FaultScript())
    store = ComputeStore(lambda: 0.0)
    attempt = AttemptRecord(
        cell="c1", host=driver.root, instance=CONSUMER, attempt=3, state=AttemptState.BUILT
    )
    async with store.transaction() as tx:
        await tx.save([attempt])
    handler = console_handlers(Fleet([driver], lambda: 0.0), store, lambda: NOON)[TellConsole]
    assert isinstance(handler, ReadOnly)

    (tell,) = await handler.handle([an_ask(ORDER)])
    assert isinstance(tell, Tell)
    assert isinstance(tell.message, ConsoleTold)
    assert len(encode(Envelope(message=tell.message))) < PARCEL_BYTES_MAX
    assert 0 < tell.message.next < tell.message.size == CONSOLE_BYTES_MAX + 1
    assert await handler.handle([an_ask(structs.replace(ORDER, asked_at=NOON - timedelta(minutes=3)))]) == []


@pytest.mark.parametrize(
    ("edited", "flaw"),
    [
        (ProviderTree(CHILD), "another root"),
        (tree(NUMA), "not its root"),
        (tree(ROOT, structs.replace(NUMA, parent=None)), "has no parent, and is not the root"),
        (tree(structs.replace(ROOT, parent=CHILD), NUMA), "is the root, and has a parent"),
        (tree(ROOT, structs.replace(NUMA, parent=CHILD)), "is not connected to the root"),
        (tree(ROOT, NUMA), "nothing"),
    ],
)
def test_a_tree_that_a_driver_must_not_make_is_detected(edited: ProviderTree, flaw: str) -> None:
    assert flaw in (flaw_of(tree(ROOT), edited) or "nothing")


STORAGE_POOL = Pool("c1-nfs", "DISK_GB", 500)

ADDRESSES = Pool("c1-net", "IPV4_ADDRESS", 250, "c1-*")

# Two cells with dedicated processors and huge pages; a device and a GPU in each by turns.
DEEP = HostSize(
    vcpus=4,
    ram_mb=1024,
    numa_nodes=2,
    pcpus=5,
    pages=((2048, 1026), (1048576, 3072)),
    devices=(
        virtual_functions(4, "net.1"),
        pci_function("10de", "1eb8", "CUSTOM_FAST"),
        gpu("nvidia_12", 1),
        gpu("nvidia_11", 2),
    ),
)

CONFORMING: dict[str, Callable[[], SimulatedDriver]] = {
    "plain": lambda: SimulatedDriver(SimulatedHost(name="h1")),
    "numa": lambda: SimulatedDriver(SimulatedHost(name="h1", size=HostSize(numa_nodes=3, vcpus=16))),
    "pci": lambda: SimulatedDriver(
        SimulatedHost(name="h1", size=HostSize(devices=(pci_function("10de", "1eb8", "CUSTOM_FAST"),)))
    ),
    "in depth": lambda: SimulatedDriver(SimulatedHost(name="h1", size=DEEP)),
    "diskless": lambda: SimulatedDriver(SimulatedHost(name="h1", size=HostSize(disk_gb=0))),
    "in pools": lambda: SimulatedDriver(SimulatedHost(name="h1"), None, (STORAGE_POOL, ADDRESSES)),
    "shrunk below its reserve": lambda: SimulatedDriver(
        SimulatedHost(name="h1"), FaultScript(faults=(Changes(ram_mb=-131_000),))
    ),
}


@pytest.mark.parametrize("kind", CONFORMING)
def test_the_simulated_driver_keeps_the_contract(kind: str) -> None:
    assert breaches(CONFORMING[kind]) == ()


class NewChildEachTime(SimulatedDriver):
    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        edited = super().update_provider_tree(tree, at_s)
        child = TreeProvider(id=ProviderId(uuid4()), name=f"new-{len(tree.providers)}", parent=edited.root)
        return structs.replace(edited, providers={**edited.providers, child.id: child})


class NeverRemoves(SimulatedDriver):
    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        edited = super().update_provider_tree(tree, at_s)
        return structs.replace(edited, providers={**tree.providers, **edited.providers})


class NeverStops(SimulatedDriver):
    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        return Work(5.0) if attempt.state is AttemptState.STOPPING else super().look_at(attempt, at_s)


class LosesInReshapes(SimulatedDriver):
    def reshape(self, known: ProviderTree, new: ProviderTree, allocations: Allocations) -> Allocations:  # noqa: ARG002
        return dict.fromkeys(allocations, ())


@pytest.mark.parametrize(
    ("wrong", "breach"),
    [
        (NewChildEachTime, "a call with its own result"),
        (NewChildEachTime, "a new driver, as after a restart"),
        (NeverRemoves, "stays in the tree after it no longer exists"),
        (NeverStops, "stopping twice: the work does not end"),
        (LosesInReshapes, "held DISK_GB 1, MEMORY_MB 1, VCPU 1, and would hold"),
    ],
)
def test_the_kit_finds_each_kind_of_bad_driver(wrong: type[SimulatedDriver], breach: str) -> None:
    found = breaches(lambda: wrong(SimulatedHost(name="h1", size=HostSize(numa_nodes=2))))

    assert any(breach in each for each in found), found
