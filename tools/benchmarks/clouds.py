"""Clouds to search: their providers, the questions, and the amounts of one claim."""

from collections.abc import Iterator, Mapping
from itertools import count as count_from

from msgspec import Struct, structs

from bus.messages.placement import ReportInventory
from engine.candidates.provider_index import ProviderIndex
from engine.inventories import InventoryState, ProviderId, ProviderState, ReportedInventory, ReportedProvider
from tools.benchmarks.messages import CELL, PLENTY, TRAITS, host

# The inventory of a host: so large that claims never remove a candidate.
_VCPU = ReportedInventory(total=PLENTY, allocation_ratio=2.0)
_PLENTY = ReportedInventory(total=PLENTY)
_BELOW_HOST = 1_000_000
_GPUS = 5_000_000


class Cloud(Struct, frozen=True):
    name: str
    reports: tuple[ReportInventory, ...]
    # The question, without a limit, and the number of its candidates.
    query: str
    candidates: int
    # The amounts of a claim, and the providers that may give them.
    claimed: Mapping[str, int]
    claimable: tuple[ProviderId, ...]


def hosts_alone(count: int) -> Cloud:
    """Hosts without children, all of which can take the instance."""
    return Cloud(
        name=f"{count:,} hosts",
        reports=tuple(_host_alone(number) for number in range(count)),
        query="resources=VCPU:2,MEMORY_MB:2048,DISK_GB:20&required=HW_CPU_X86_AVX2,COMPUTE_NODE",
        candidates=count,
        claimed={"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 20},
        claimable=tuple(host(number) for number in range(count)),
    )


def trees(count: int, *, gpus: bool = False) -> Cloud:
    """Hosts with two NUMA nodes, each with a network card, and a GPU if asked: an instance takes both nodes, and a card of
    each.
    """
    groups = "".join(
        f"&resources_N{n}=VCPU:2,MEMORY_MB:1024&resources_P{n}=SRIOV_NET_VF:1&required_P{n}=HW_NIC_SRIOV"
        f"&same_subtree=_N{n},_P{n}"
        for n in range(2)
    )
    return Cloud(
        name=f"{count:,} trees of {7 if gpus else 5}",
        reports=tuple(_tree(number, gpus=gpus) for number in range(count)),
        query=f"resources=DISK_GB:20{groups}&group_policy=isolate",
        # Either NUMA node may come first.
        candidates=2 * count,
        claimed={"VCPU": 2, "MEMORY_MB": 1024},
        claimable=tuple(_below(number, 0) for number in range(count)),
    )


def index_of(cloud: Cloud) -> ProviderIndex:
    index = ProviderIndex()
    for state in states_of(cloud):
        index.put(state)
    return index


def states_of(cloud: Cloud) -> Iterator[ProviderState]:
    """As placement would publish them."""
    internals = count_from(1)
    for report in cloud.reports:
        for told in report.providers:
            yield ProviderState(
                internal=next(internals),
                id=told.id,
                name=told.name,
                root=report.root,
                parent=told.parent,
                inventories={
                    resource: InventoryState(**structs.asdict(inventory))
                    for resource, inventory in (told.inventories or {}).items()
                },
                traits=told.traits or (),
            )


def _host_alone(number: int) -> ReportInventory:
    alone = ReportedProvider(
        id=host(number),
        name=f"compute-{number}.rack-{number // 40}.example.net",
        inventories={"VCPU": _VCPU, "MEMORY_MB": _PLENTY, "DISK_GB": _PLENTY},
        traits=TRAITS,
    )
    return ReportInventory(cell=CELL, root=alone.id, providers=(alone,))


def _tree(number: int, *, gpus: bool) -> ReportInventory:
    root = ReportedProvider(
        id=host(number),
        name=f"compute-{number}",
        inventories={"DISK_GB": _PLENTY},
        traits=TRAITS,
    )
    below = []
    for n in range(2):
        cell = ReportedProvider(
            id=_below(number, n),
            name=f"{root.name}-numa{n}",
            parent=root.id,
            inventories={"VCPU": _VCPU, "MEMORY_MB": _PLENTY},
            traits=("HW_NUMA_ROOT",),
        )
        card = ReportedProvider(
            id=_below(number, 2 + n),
            name=f"{root.name}-card{n}",
            parent=cell.id,
            inventories={"SRIOV_NET_VF": _PLENTY},
            traits=("HW_NIC_SRIOV",),
        )
        below += [cell, card]
        if gpus:
            gpu = ReportedProvider(
                id=_gpu(number, n), name=f"{root.name}-gpu{n}", parent=cell.id, inventories={"PGPU": _PLENTY}
            )
            below.append(gpu)
    return ReportInventory(cell=CELL, root=root.id, providers=(root, *below))


def _below(number: int, n: int) -> ProviderId:
    return host(_BELOW_HOST + 4 * number + n)


def _gpu(number: int, n: int) -> ProviderId:
    return host(_GPUS + 2 * number + n)
