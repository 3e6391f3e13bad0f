"""What `moor load` must notice: each kind of contradiction, and which processes' CPU it may count."""

import os
import socket
from functools import partial
from uuid import UUID

from msgspec import structs

from bus.message import ProviderId
from bus.messages.build import InstanceId, InstanceState, RequestId
from bus.messages.placement import InventoryState, ProviderState, ResourceAmount, Share
from moor.load.auditing import (
    capacity_problems,
    problems_of_ends,
    problems_of_shares,
    problems_of_usage,
)
from moor.load.cpu import process_cpu_s, process_tree_cpu_s
from moor.load.listeners import listener_of
from moor.load.measuring import Meter
from moor.load.orders import FLAVOR, Boot, amounts_of

HELD = amounts_of(FLAVOR)
ONE = InstanceId(UUID(int=1))
HERE, THERE = ProviderId(UUID(int=10)), ProviderId(UUID(int=11))
ACTIVE = InstanceState(
    id=ONE, request_id=RequestId(UUID(int=5)), sequence=103, state="active", cell="c1", host="here", attempt=1
)
BOOT = Boot(FLAVOR, state=ACTIVE)
SHARE = Share(
    host=HERE,
    amounts=tuple(ResourceAmount(provider=HERE, resource=name, amount=much) for name, much in HELD.items()),
)


def a_provider(id_: ProviderId, name: str, *, times: int = 0, vcpus: int = 8) -> ProviderState:
    """A provider with this many times the amounts of one instance in use."""
    totals = {"VCPU": vcpus, "MEMORY_MB": 65536, "DISK_GB": 1000}
    return ProviderState(
        id=id_,
        internal=id_.int,
        name=name,
        root=id_,
        cell="c1",
        generation=1,
        shape=1,
        revision=1,
        inventories={
            name: InventoryState(total=total, used=times * HELD[name]) for name, total in totals.items()
        },
    )


def test_an_instance_that_holds_its_share_where_it_runs_is_right() -> None:
    providers = {HERE: a_provider(HERE, "here", times=1), THERE: a_provider(THERE, "there")}

    assert problems_of_ends({ONE: BOOT}, {ONE: ACTIVE}) == []
    assert problems_of_shares({ONE: BOOT}, {ONE: ACTIVE}, {ONE: SHARE}, providers) == []
    assert problems_of_usage({ONE: SHARE}, providers) == []


def test_missing_and_contradicting_end_events_are_named() -> None:
    failed = structs.replace(ACTIVE, state="error")

    assert "heard nothing" in problems_of_ends({ONE: Boot(FLAVOR)}, {ONE: ACTIVE})[0]
    assert "the API level has error" in problems_of_ends({ONE: BOOT}, {ONE: failed})[0]
    assert "the API level has nothing" in problems_of_ends({ONE: BOOT}, {})[0]


def test_shares_that_are_missing_on_another_host_or_without_instance_are_named() -> None:
    providers = {HERE: a_provider(HERE, "here"), THERE: a_provider(THERE, "there")}
    elsewhere = structs.replace(SHARE, host=THERE)
    less = structs.replace(SHARE, amounts=SHARE.amounts[:1])
    failed = structs.replace(ACTIVE, state="error")

    for row, shares, said in (
        (ACTIVE, {}, "holds nothing"),
        (ACTIVE, {ONE: elsewhere}, "holds a share of there"),
        (ACTIVE, {ONE: less}, "but should hold"),
        (failed, {ONE: SHARE}, "is error, but holds a share"),
    ):
        (problem,) = problems_of_shares({ONE: BOOT}, {ONE: row}, shares, providers)
        assert said in problem


def test_usage_without_a_holder_has_leaked() -> None:
    providers = {HERE: a_provider(HERE, "here", times=2)}

    leaks = problems_of_usage({ONE: SHARE}, providers)

    assert leaks[0] == "here: 2 VCPU are in use, and the instances hold 1"
    assert len(leaks) == len(HELD)


def test_usage_beyond_the_capacity_is_named() -> None:
    assert capacity_problems([a_provider(HERE, "here", times=9, vcpus=8)]) == [
        "here: 9 VCPU are in use, and there are 8"
    ]


def test_a_server_is_found_by_the_port_it_listens_on_if_it_is_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        assert listener_of(f"amqp://guest@127.0.0.1:{port}/", ("python", "pytest")) == os.getpid()
        # A proxy of another name is not the server, and its CPU time is not the server's.
        assert isinstance(listener_of(f"amqp://guest@127.0.0.1:{port}/", ("beam",)), str)
    assert listener_of(f"amqp://guest@127.0.0.1:{port}/", ("python",)) == "not on this machine"
    assert listener_of("amqp://guest@192.0.2.1/", ("beam",)) == "not on this machine"


def test_a_process_tree_spends_the_sum_of_its_members() -> None:
    before_s = process_tree_cpu_s(os.getpid())
    alone_s = process_cpu_s(os.getpid())

    assert before_s > 0
    assert process_tree_cpu_s(os.getpid()) >= alone_s


def test_the_cost_is_shown_in_total_by_process_and_over_time() -> None:
    spent = {"busy": 0.0, "idle": 1.0}
    meter = Meter({name: partial(spent.__getitem__, name) for name in spent}, 100)

    meter.read(0)
    for ended in range(1, 100):
        spent["busy"] += 10e-6
        meter.progress(ended)
    spent["busy"] += 10e-6
    meter.read(100)

    told = {name: round(us, 3) for name, us in meter.us_per_boot().items()}
    assert told == {"total": 10.0, "busy": 10.0, "idle": 0.0}
    assert [round(us, 3) for us in meter.parts_us_per_boot()] == [10.0] * 10
