"""The scheduler's choice alone, without server and messages: a picture, and batches of equal and of different requests."""

import os
from collections.abc import Sequence
from functools import partial

from bus.messages.hosts import HostState
from scheduler_worker.core.choosing.choosing import Chosen, choose
from scheduler_worker.core.choosing.standard import standard_plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec
from tests.benchmarks.clouds import Cloud, hosts_alone, trees
from tests.benchmarks.cpu import OneProcess
from tests.benchmarks.measuring import Details, Effort, Result, Work, measured
from tests.benchmarks.section_candidates import states_of

BATCH = 200
BATCHES = 5
PLUGINS = standard_plugins()


def equal_specs() -> list[InstanceSpec]:
    return [_spec(0)] * BATCH


def different_specs() -> list[InstanceSpec]:
    return [_spec(number) for number in range(BATCH)]


def _spec(number: int) -> InstanceSpec:
    amounts = (("DISK_GB", 20), ("MEMORY_MB", 2048 + number), ("VCPU", 2))
    return InstanceSpec(amounts=amounts)


WISHES = {"equal": equal_specs(), "different": different_specs()}


async def choosing_section(effort: Effort) -> list[Result]:
    """The cost of choosing a host for an instance."""
    clouds = (hosts_alone(1_000), hosts_alone(10_000), trees(1_000)) if effort.servers else (trees(100),)
    return [
        await measured(
            "hosts, chosen",
            {"cloud": cloud.name, "specs": kind},
            {"python": OneProcess(os.getpid())},
            operations=effort.operations(BATCHES * BATCH, BATCH),
            effort=effort,
            prepare=partial(_prepare, picture_of(cloud), WISHES[kind]),
        )
        for cloud in clouds
        for kind in effort.some(WISHES)
    ]


def picture_of(cloud: Cloud) -> Picture:
    picture = Picture()
    states = list(states_of(cloud))
    picture.apply(states)
    roots = [state for state in states if state.parent is None]
    picture.put_hosts(
        HostState(id=root.id, name=root.name, cell="c1", up=True, enabled=True) for root in roots
    )
    return picture


def _prepare(picture: Picture, specs: Sequence[InstanceSpec], count: int) -> Work:
    return partial(_choose, picture, specs, count)


async def _choose(picture: Picture, specs: Sequence[InstanceSpec], count: int) -> Details:
    for turn in range(max(1, count // BATCH)):
        chosen = sum(isinstance(one, Chosen) for one in choose(picture, specs, PLUGINS, salt=turn))
        assert chosen == BATCH, f"{chosen} of {BATCH} specs found a host, and there is room for all"
    return {}
