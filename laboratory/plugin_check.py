"""Checks a filter or a weigher against the rules that the choice of a host relies on, by asking it about a made-up
picture of seven hosts.

    assert breaches(EnoughPower()) == ()

A package with plugins calls this in its tests. If a plugin reads extra specs or properties of its own, the test passes
request specs that have them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import cast
from uuid import UUID, uuid5

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from engine.choosing.hosts import Draft, Hosts, OneHost
from engine.choosing.plugins import Filter, HostChange, Weigher
from engine.hosts import NODE, Aggregate, HostSetting, HostState, Supported
from engine.inventories import AggregateId, InventoryState, ProviderId, ProviderState
from engine.picture.picture import Picture
from engine.requests.spec import InstanceSpec

_OURS = UUID("5b8f3b60-2f2a-4d5c-9a52-1a7a1b0f6c11")

PLAIN = InstanceSpec(amounts=(("MEMORY_MB", 512), ("VCPU", 1)))
# Each differs from the plain one in some fields.
SPECS: tuple[InstanceSpec, ...] = (
    PLAIN,
    structs.replace(PLAIN, amounts=(("MEMORY_MB", 2048), ("VCPU", 2))),
    InstanceSpec(amounts=(("VCPU", 3),), availability_zone="z1"),
    structs.replace(PLAIN, required=("CUSTOM_FAST",), hosts=("h1", "h2", "h3")),
    structs.replace(PLAIN, forbidden=("CUSTOM_FAST",), ignore_hosts=("h2",)),
    structs.replace(PLAIN, extra_specs=(("capabilities:cpu_info:model", "Skylake"),)),
    structs.replace(PLAIN, image_properties=(("hw_architecture", "aarch64"),)),
    structs.replace(PLAIN, different_hosts=("h1",), same_hosts=("h1", "h4")),
    structs.replace(PLAIN, same_hosts=None),
    InstanceSpec(amounts=(("CUSTOM_GOLD", 1),), project="shop", is_for_nodes=True),
    InstanceSpec(amounts=(("PCI_DEVICE", 1), ("VCPU", 1))),
    structs.replace(PLAIN, image="debian"),
    structs.replace(PLAIN, preferred=(("CUSTOM_FAST", 2.0),), preferred_classes=(("PCI_DEVICE", 1.0),)),
)


def breaches(plugin: Filter | Weigher, specs: Sequence[InstanceSpec] = ()) -> tuple[str, ...]:
    """Every rule that this plugin breaks, as a sentence; empty for a correct one."""
    asked = (*SPECS, *specs)
    return tuple(dict.fromkeys((*_flaws(plugin, asked), *_undeclared(plugin, asked))))


def _flaws(plugin: Filter | Weigher, specs: Iterable[InstanceSpec]) -> Iterator[str]:
    picture = a_cloud()
    draft = Draft(picture)
    if not plugin.name:
        yield "it has no name, and the funnel would show none"
    for spec in specs:
        before = _copies(picture)
        everyone = Hosts(draft)
        answer = _answer(plugin, everyone, spec)
        if len(answer) != len(everyone):
            yield f"it gives {len(answer)} answers about {len(everyone)} hosts"
            continue
        if not np.array_equal(answer, _answer(plugin, Hosts(draft), spec)):
            yield "asked twice, it answers differently: it must decide by the columns and the spec alone"
        if any(not np.array_equal(array, copy, equal_nan=True) for array, copy in before):
            yield "it writes into the columns"
        rows = np.array([4, 1, 1, 6], dtype=np.intp)
        # A weigher that compares hosts is asked about others as `compared` gives it.
        if not hasattr(plugin, "among") and not np.array_equal(
            _answer(plugin, Hosts(draft, rows), spec), answer[rows]
        ):
            yield "it judges a host otherwise when others are asked about: each answer is about one host"
        yield from _flaws_of_kind(plugin, draft, spec, answer)


def _flaws_of_kind(
    plugin: Filter | Weigher, draft: Draft, spec: InstanceSpec, answer: NDArray[np.float64]
) -> Iterator[str]:
    judge = _as_filter(plugin)
    if judge is None:
        if not np.isfinite(answer).all():
            yield "a weight is not finite"
        return
    everyone = Hosts(draft)
    if judge.passes(everyone, spec).dtype != np.bool_:
        yield "passes gives no array of flags"
    failed = np.flatnonzero(everyone.present & (answer == 0)).tolist()
    if any(not judge.reason(OneHost(everyone, at), spec) for at in failed):
        yield "it gives no reason for a host that does not pass"
    if judge.is_per_instance:
        rows, taken = np.repeat(np.arange(len(everyone)), 6), np.tile(np.arange(6), len(everyone))
        filled = judge.passes(Hosts(draft, rows, taken, dict(spec.amounts)), spec).reshape(-1, 6)
        if (filled[:, 1:] & ~filled[:, :-1]).any():
            yield "a host that is full for it has room again after one instance more"


def _undeclared(plugin: Filter | Weigher, specs: Sequence[InstanceSpec]) -> Iterator[str]:
    picture = a_cloud()
    answers = [_asked(plugin, picture, spec) for spec in specs]
    for field in InstanceSpec.__struct_fields__:
        for (spec, answer), other in product(zip(specs, answers, strict=True), specs):
            # Granular groups ask for parts of the amounts.
            fields = ("amounts", "groups") if field in ("amounts", "groups") else (field,)
            varied = structs.replace(spec, **{each: getattr(other, each) for each in fields})
            if any(getattr(spec, read) != getattr(varied, read) for read in plugin.reads):
                continue
            if not np.array_equal(_asked(plugin, picture, varied), answer):
                yield f"it reads {field!r} of the request, which `reads` does not name"
    for change, made in _CHANGES.items():
        if change in plugin.woken_by:
            continue
        changed = a_cloud()
        made(changed)
        for spec, answer in zip(specs, answers, strict=True):
            if not np.array_equal(_asked(plugin, changed, spec), answer):
                yield f"it decides otherwise after {change}, which `woken_by` does not name"


def _asked(plugin: Filter | Weigher, picture: Picture, spec: InstanceSpec) -> NDArray[np.float64]:
    return _answer(plugin, Hosts(Draft(picture)), spec)


def _answer(plugin: Filter | Weigher, hosts: Hosts, spec: InstanceSpec) -> NDArray[np.float64]:
    """The plugin's answer about each host as numbers: a filter's flags as 0 and 1, a weigher's weights. If a weigher
    returns None for this request, all hosts get the same weight.
    """
    judge = _as_filter(plugin)
    answer = cast("Weigher", plugin).weigh(hosts, spec) if judge is None else judge.passes(hosts, spec)
    return np.zeros(len(hosts)) if answer is None else np.asarray(answer, dtype=np.float64)


def _as_filter(plugin: Filter | Weigher) -> Filter | None:
    return cast("Filter", plugin) if hasattr(plugin, "passes") else None


def _copies(picture: Picture) -> list[tuple[NDArray[np.generic], NDArray[np.generic]]]:
    columns = picture.columns
    arrays = [value for value in vars(columns).values() if isinstance(value, np.ndarray)]
    arrays += [stock.free for stock in columns.stocks.values()]
    arrays += list(columns.metrics.values())
    return [(array, array.copy()) for array in arrays]


# The cloud

_HOSTS = 7
# The numbers of the hosts that are not as the others.
_DOWN, _DISABLED, _NODE = 4, 5, 6
_IN_RACK = (0, 3)
_RACK = AggregateId(uuid5(_OURS, "rack"))
_LIMITS = {"max_instances_per_host": "2", "max_io_ops_per_host": "1"}
_DRAINING = HostSetting(mode="draining", reason="a fan is broken", number=1)


def a_cloud() -> Picture:
    """Seven hosts of one cell that differ in everything that plugins may read; one is a bare-metal node, two are in an aggregate."""
    picture = Picture()
    picture.put_hosts([_host(number) for number in range(_HOSTS)])
    picture.apply([_provider(number) for number in range(_HOSTS)])
    for number in range(_NODE):
        picture.measure(_id(number), {"temperature": 40.0 + number, "load": number / 4})
    picture.cache_images(_id(2), ("debian",))
    picture.put_aggregates([_rack({"availability_zone": "z1", **_LIMITS}, sequence=1)])
    return picture


def _id(number: int) -> ProviderId:
    return ProviderId(uuid5(_OURS, f"h{number}"))


def _host(number: int) -> HostState:
    return HostState(
        id=_id(number),
        name=f"h{number}",
        cell="c1",
        sequence=1,
        instances=number,
        io_ops=number // 2,
        availability_zone=f"z{number % 2}",
        hypervisor_type="QEMU",
        hypervisor_version=8_000_000 + number % 3,
        supports=(Supported(architecture=("x86_64", "aarch64")[number % 2], hypervisor_type="qemu"),),
        capabilities={"cpu_info:model": ("Skylake", "Rome")[number % 2]},
        failed_builds=number % 3,
        kind=NODE if number == _NODE else "",
        projects=("shop",) if number == _NODE else (),
        up=number != _DOWN,
        setting=HostSetting() if number != _DISABLED else _DRAINING,
    )


def _provider(number: int) -> ProviderState:
    total = 4 + number
    classes = {"VCPU": total, "MEMORY_MB": 1024 * total} if number != _NODE else {"CUSTOM_GOLD": 1}
    if number in (1, 2):
        classes["PCI_DEVICE"] = number
    return ProviderState(
        internal=number + 1,
        id=_id(number),
        name=f"h{number}",
        root=_id(number),
        cell="c1",
        inventories={
            resource: InventoryState(total=amount, max_unit=amount, used=number % 2)
            for resource, amount in classes.items()
        },
        traits=("CUSTOM_FAST",) if number % 2 else (),
        aggregates=(_RACK,) if number in _IN_RACK else (),
        revision=1,
    )


def _rack(metadata: dict[str, str], sequence: int) -> Aggregate:
    return Aggregate(id=_RACK, name="rack", metadata=metadata, sequence=sequence)


def _report_anew(picture: Picture) -> None:
    picture.put_hosts(
        [
            structs.replace(
                _host((number + 1) % 6),
                id=_id(number),
                name=f"h{number}",
                up=_host(number).up,
                setting=_host(number).setting,
                instances=49 + number,
                io_ops=9,
                sequence=2,
            )
            for number in range(_HOSTS)
        ]
    )


def _turn_modes(picture: Picture) -> None:
    hosts = [_host(number) for number in range(_HOSTS)]
    picture.put_hosts(
        [
            structs.replace(
                host, setting=_DRAINING if host.setting.mode == "up" else HostSetting(), sequence=2
            )
            for host in hosts
        ]
    )


def _turn_life(picture: Picture) -> None:
    hosts = [_host(number) for number in range(_HOSTS)]
    picture.put_hosts([structs.replace(host, up=not host.up, sequence=2) for host in hosts])


def _measure_anew(picture: Picture) -> None:
    for number in range(1, _HOSTS):
        picture.measure(_id(number), {"temperature": 90.0 - 7 * number, "load": number % 2})


def _cache_anew(picture: Picture) -> None:
    for number in range(1, _HOSTS):
        picture.cache_images(_id(number), ("debian", "fedora") if number % 2 else ())


def _change_metadata(picture: Picture) -> None:
    told = {
        "availability_zone": "z2",
        "filter_tenant_id": "shop",
        "instance_type": "tiny",
        "trait:CUSTOM_X": "required",
    }
    picture.put_aggregates([_rack(told, sequence=2)])


def _rebuild(picture: Picture) -> None:
    changed: tuple[Mapping[str, object], ...] = (
        {"inventories": {}},
        {"inventories": {"VCPU": InventoryState(total=1)}},
        {"traits": ("CUSTOM_FAST",)},
    )
    picture.apply(
        [
            structs.replace(_provider(number), revision=2, shape=1, aggregates=(), **changed[number % 3])
            for number in range(_HOSTS)
        ]
    )


def _fill(picture: Picture) -> None:
    picture.apply(
        [
            structs.replace(
                state := _provider(number),
                revision=2,
                consumers=60,
                inventories={
                    resource: structs.replace(each, used=each.total - number % 3)
                    for resource, each in state.inventories.items()
                },
            )
            for number in range(_HOSTS)
        ]
    )


_CHANGES: Mapping[HostChange, Callable[[Picture], None]] = {
    HostChange.FACTS: _report_anew,
    HostChange.LIFE: _turn_life,
    HostChange.ENABLED: _turn_modes,
    HostChange.METRICS: _measure_anew,
    HostChange.IMAGES: _cache_anew,
    HostChange.AGGREGATES: _change_metadata,
    HostChange.PROVIDERS: _rebuild,
    HostChange.USAGE: _fill,
}
