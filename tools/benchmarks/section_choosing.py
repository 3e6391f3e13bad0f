"""The scheduler's choice alone, without server and messages: a picture, and batches of equal and of different requests."""

import os
from collections.abc import Sequence
from functools import partial

from msgspec import structs

from engine.choosing.choosing import Chosen, choose
from engine.choosing.planning import plan
from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.hosts import HostState
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from tools.benchmarks.clouds import Cloud, hosts_alone, states_of, trees
from tools.benchmarks.cpu import OneProcess
from tools.benchmarks.measuring import Details, Effort, Result, Work, measured
from tools.benchmarks.rich_requests import rich_picture, rich_specs

BATCH = 200
BATCHES = 5
RICH_BATCH = 50
ALONE = 200
PLANS = 20
PLUGINS = chosen_plugins(PluginSettings(io_ops_per_host_max=8, instances_per_host_max=50))
# A worker keeps its salt.
SALT = 7


def equal_specs() -> list[InstanceSpec]:
    return [_spec(0)] * BATCH


def different_specs() -> list[InstanceSpec]:
    return [_spec(number) for number in range(BATCHES * BATCH)]


def _spec(number: int) -> InstanceSpec:
    amounts = (("DISK_GB", 20), ("MEMORY_MB", 2048 + number), ("VCPU", 2))
    return InstanceSpec(amounts=amounts)


PLANNED = {
    "fits": _spec(0),
    "fits nowhere": structs.replace(
        _spec(0), required=("CUSTOM_ONE", "CUSTOM_TWO"), availability_zone="nowhere", ignore_hosts=("host",)
    ),
}
WISHES = {"equal": equal_specs(), "different": different_specs()}


async def choosing_section(effort: Effort) -> list[Result]:
    """The cost of choosing a host for an instance, and of a plan."""
    clouds = (hosts_alone(10_000),) if effort.servers else (trees(100),)
    plans = [
        await measured(
            "plans",
            {"cloud": cloud.name, "request": kind},
            {"python": OneProcess(os.getpid())},
            operations=effort.operations(PLANS, 1),
            effort=effort,
            prepare=partial(_prepare_plans, picture_of(cloud), spec),
        )
        for cloud in clouds
        for kind, spec in effort.some(PLANNED).items()
    ]
    chosen = [
        await measured(
            "hosts, chosen",
            {"cloud": cloud.name, "specs": kind},
            {"python": OneProcess(os.getpid())},
            operations=effort.operations(BATCHES * BATCH, BATCH),
            effort=effort,
            prepare=partial(_prepare, picture_of(cloud), specs=WISHES[kind], batch=BATCH),
        )
        for cloud in clouds
        for kind in effort.some(WISHES)
    ]
    rich = [
        await measured(
            "hosts, chosen",
            {"cloud": f"{hosts:,} trees of 5, pools", "specs": "rich"},
            {"python": OneProcess(os.getpid())},
            operations=effort.operations(4 * RICH_BATCH, RICH_BATCH),
            effort=effort,
            prepare=partial(
                _prepare, rich_picture(hosts), specs=rich_specs(4 * RICH_BATCH), batch=RICH_BATCH
            ),
        )
        for hosts in ((10_000,) if effort.servers else (100,))
    ]
    rich_plans = [
        await measured(
            "plans",
            {"cloud": f"{hosts:,} trees of 5, pools", "request": "rich"},
            {"python": OneProcess(os.getpid())},
            operations=effort.operations(PLANS, 1),
            effort=effort,
            prepare=partial(_prepare_plans, rich_picture(hosts), rich_specs(1)[0]),
        )
        for hosts in ((10_000,) if effort.servers else (100,))
    ]
    return [*chosen, *rich, *await _in_a_large_cloud(effort), *plans, *rich_plans]


async def _in_a_large_cloud(effort: Effort) -> list[Result]:
    """Decisions about one request at a time; also with another trait of one more host before each."""
    cloud = trees(100_000 if effort.servers else 100, gpus=True)
    picture = picture_of(cloud)
    wishes = {"plain": different_specs(), "rich": rich_specs(ALONE)}
    works = {
        "hosts, chosen for one": partial(_prepare, picture, batch=1),
        "hosts, chosen after a change": partial(_prepare_after_changes, picture),
    }
    return [
        await measured(
            name,
            {"cloud": cloud.name, "specs": kind},
            {"python": OneProcess(os.getpid())},
            operations=effort.operations(ALONE, 1),
            effort=effort,
            prepare=partial(prepare, specs=specs),
        )
        for name, prepare in works.items()
        for kind, specs in effort.some(wishes).items()
    ]


def picture_of(cloud: Cloud) -> Picture:
    picture = Picture()
    states = list(states_of(cloud))
    picture.apply(states)
    roots = [state for state in states if state.parent is None]
    picture.put_hosts(HostState(id=root.id, name=root.name, cell="c1", up=True) for root in roots)
    return picture


def _prepare(picture: Picture, count: int, specs: Sequence[InstanceSpec], batch: int) -> Work:
    return partial(_choose, picture, specs, batch, count)


def _prepare_after_changes(picture: Picture, count: int, specs: Sequence[InstanceSpec]) -> Work:
    async def work() -> Details:
        for number in range(count):
            host = picture.index.state(int(picture.columns.root[number % picture.columns.rows]))
            traits = {*host.traits} ^ {"CUSTOM_CHANGED"}
            picture.apply([structs.replace(host, traits=tuple(sorted(traits)), revision=host.revision + 1)])
            await _choose(picture, [specs[number % len(specs)]], 1, 1)
        return {}

    return work


async def _choose(picture: Picture, specs: Sequence[InstanceSpec], batch: int, count: int) -> Details:
    """One batch after another; each takes other specs, as long as there are any."""
    for start in range(0, max(batch, count), batch):
        first = start % len(specs)
        found = choose(picture, specs[first : first + batch], PLUGINS, salt=SALT)
        chosen = sum(isinstance(one, Chosen) for one in found)
        assert chosen == batch, f"{chosen} of {batch} specs found a host, and there is room for all"
    return {}


def _prepare_plans(picture: Picture, spec: InstanceSpec, count: int) -> Work:
    async def work() -> Details:
        for _ in range(count):
            found = plan(picture, spec, PLUGINS)
            assert sum(step.removed for step in found.funnel.steps) + found.qualify == found.funnel.hosts
        return {}

    return work
