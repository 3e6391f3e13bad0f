"""A host, its load, and the facts about it that others are told."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from uuid import UUID, uuid5

from msgspec import Struct

from bus.messages.hosts import ATTEMPTS_PER_MESSAGE_MAX, CheckHost, HeldAttempt, HostHolds
from compute_sim.core.attempts import LABEL_MAX, AttemptRecord
from compute_sim.core.trees import ProviderTree, TreeProvider
from engine.hosts import HostFacts, Supported
from engine.inventories import INTEGER_MAX, AggregateId, ProviderId, ReportedInventory


class Host(Struct, frozen=True, kw_only=True):
    name: str
    availability_zone: str = ""
    hypervisor_type: str = "QEMU"
    hypervisor_version: int = 8_000_000
    # The kinds of instances that it runs, and what else requests may ask of it, by name.
    supports: tuple[Supported, ...] = ()
    capabilities: Mapping[str, str] = {}


class Load(Struct, frozen=True):
    """The number of instances on a host, stopped ones too; and of attempts that are being built or received, or wait for it."""

    instances: int = 0
    io_ops: int = 0


def facts_of(
    id_: ProviderId, host: Host, load: Load, failed_builds: int = 0, report_refused: str = ""
) -> HostFacts:
    return HostFacts(
        id=id_,
        name=host.name,
        instances=load.instances,
        io_ops=load.io_ops,
        availability_zone=host.availability_zone,
        hypervisor_type=host.hypervisor_type,
        hypervisor_version=host.hypervisor_version,
        supports=host.supports,
        capabilities=dict(host.capabilities),
        failed_builds=failed_builds,
        report_refused=report_refused[:LABEL_MAX],
    )


# Makes the pages of the list of attempts that a host has.


def holdings(
    order: CheckHost, attempts: Iterable[AttemptRecord], page: int = ATTEMPTS_PER_MESSAGE_MAX
) -> HostHolds:
    """The page that `order` asks for of the host's attempts. Attempts of one instance are never on two pages."""
    later = sorted(
        (each for each in attempts if order.after is None or each.instance > order.after),
        key=lambda each: (each.instance, each.attempt),
    )
    told: list[HeldAttempt] = []
    last = None
    is_cut = False
    for instance, some in groupby(later, key=lambda each: each.instance):
        held = [HeldAttempt(instance=instance, attempt=each.attempt) for each in some]
        if told and len(told) + len(held) > page:
            is_cut = True
            break
        told += held
        last = instance
    return HostHolds(
        cell=order.cell,
        host=order.host,
        number=order.number,
        attempts=tuple(told),
        after=order.after,
        next=last if is_cut else None,
    )


def parts_of(text: str, field: str, pattern: re.Pattern[str], form: str) -> re.Match[str]:
    """The parts of a setting's text. Raises ValueError, which names the field and the form that the text must have."""
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(f"{field} has {text!r}, must be {form}")
    return found


def check_once(names: Sequence[str], field: str) -> None:
    """Raises ValueError if a setting has one of these names twice."""
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{field} has the name {twice!r} twice, each name may be there once")


# Physical networks that each simulated host reaches, as settings name them: NAME=KILOBITS.


_NETWORK = re.compile(r"(?P<name>[\w-]{1,100})=(?P<kilobits>[0-9]{1,10})", re.ASCII)


class Network(Struct, frozen=True):
    """A physical network, and the bandwidth that a host has on it in each direction."""

    name: str
    kilobits: int

    @property
    def trait(self) -> str:
        """The trait of its providers, as port requests ask for it (`physical_network`)."""
        return f"CUSTOM_PHYSNET_{re.sub('[^A-Z0-9_]', '_', self.name.upper())}"


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    networks = tuple([_read_network(text) for text in texts])
    traits = [each.trait for each in networks]
    if twice := next((each.name for each in networks if traits.count(each.trait) > 1), None):
        raise ValueError(
            f"networks has the name {twice!r} twice, as traits are written: each may be there once"
        )
    return networks


def _read_network(text: str) -> Network:
    found = parts_of(text, "networks", _NETWORK, "NAME=KILOBITS such as physnet0=10000000")
    kilobits = int(found["kilobits"])
    if not 0 < kilobits <= INTEGER_MAX:
        raise ValueError(f"networks has {text!r}: KILOBITS is {kilobits}, must be 1 to {INTEGER_MAX}")
    return Network(found["name"], kilobits)


# Pools that share one resource class with hosts of their cell, as settings name them: NAME:CLASS=TOTAL@HOSTS.
#
# As in Placement, a pool is a root provider with the trait MISC_SHARES_VIA_AGGREGATE. It shares with the hosts that are in its
# aggregate.


SHARES = "MISC_SHARES_VIA_AGGREGATE"
# A pool's id is derived from its name, and its aggregate's id from that: they survive a restart.
_POOLS = UUID("3f1a52c4-0b70-4d2e-9a38-56f1d0e7b9a4")

_POOL = re.compile(
    r"(?P<name>[\w.-]{1,100}):(?P<resource>[A-Z0-9_]{1,255})=(?P<total>[0-9]{1,10})(?:@(?P<hosts>[^\s,]+))?",
    re.ASCII,
)


class Pool(Struct, frozen=True):
    """An amount of one resource class that all hosts share whose names match the pattern `hosts`."""

    name: str
    resource: str
    total: int
    hosts: str = "*"


def read_pools(texts: Iterable[str], cell: str) -> tuple[Pool, ...]:
    """Read the pools of a cell from texts of the form NAME:CLASS=TOTAL@HOSTS.

    Each pool's name gets the cell's name in front.
    """
    pools = tuple([_read_pool(text, cell) for text in texts])
    check_once([pool.name.removeprefix(f"{cell}-") for pool in pools], "pools")
    return pools


def pools_of(pools: Sequence[Pool], host: str) -> tuple[Pool, ...]:
    return tuple([pool for pool in pools if fnmatchcase(host, pool.hosts)])


def tree_of_pool(pool: Pool) -> ProviderTree:
    root = ProviderId(uuid5(_POOLS, pool.name))
    provider = TreeProvider(
        id=root,
        name=pool.name,
        inventories={pool.resource: ReportedInventory(total=pool.total)},
        traits=frozenset({SHARES}),
        joins=frozenset({aggregate_of(pool)}),
    )
    return ProviderTree(root, {root: provider})


def aggregate_of(pool: Pool) -> AggregateId:
    """The id of the aggregate that has the pool and the hosts that share it."""
    return AggregateId(uuid5(uuid5(_POOLS, pool.name), "aggregate"))


def _read_pool(text: str, cell: str) -> Pool:
    form = "NAME:CLASS=TOTAL such as nfs:DISK_GB=20000, or NAME:CLASS=TOTAL@HOSTS with a pattern of the hosts that it shares with"
    found = parts_of(text, "pools", _POOL, form)
    total = int(found["total"])
    if not 0 < total <= INTEGER_MAX:
        raise ValueError(f"pools has {text!r}: TOTAL is {total}, must be 1 to {INTEGER_MAX}")
    return Pool(f"{cell}-{found['name']}", found["resource"], total, found["hosts"] or "*")
