"""Rich requests and their cloud: hosts with two NUMA nodes and network cards, disks that pools share, members of
anti-affinity groups.
"""

from collections.abc import Iterator
from itertools import count as count_from

from msgspec import structs

from engine.candidates.provider_index import SHARES
from engine.hosts import HostState
from engine.inventories import AggregateId, GroupId, InventoryState, ProviderState, ServerGroup
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from tools.benchmarks.clouds import states_of, trees
from tools.benchmarks.messages import CELL, host

HOSTS_A_POOL = 100
GROUPS = 50
_POOLS = 9_000_000


def rich_picture(hosts: int) -> Picture:
    """Trees of 5, and one pool with the disks of each 100 hosts."""
    picture = Picture()
    states = list(states_of(trees(hosts)))
    picture.apply(_with_pools(states))
    picture.put_hosts(
        HostState(id=state.id, name=state.name, cell=CELL, up=True)
        for state in states
        if state.parent is None
    )
    return picture


def rich_specs(count: int) -> list[InstanceSpec]:
    """A NUMA node with a card below it, and a disk. All differ in their memory."""
    return [_spec(number) for number in range(count)]


def _with_pools(states: list[ProviderState]) -> Iterator[ProviderState]:
    roots = count_from()
    for state in states:
        if state.parent is None:
            aggregates = (_aggregate(next(roots) // HOSTS_A_POOL),)
            yield structs.replace(state, inventories={}, aggregates=aggregates)
        else:
            yield state
    for number in range(-(-next(roots) // HOSTS_A_POOL)):
        id_ = host(_POOLS + number)
        disks = {"DISK_GB": InventoryState(total=10_000_000)}
        yield ProviderState(
            internal=_POOLS + number,
            id=id_,
            name=f"pool-{number}",
            root=id_,
            inventories=disks,
            traits=(SHARES,),
            aggregates=(_aggregate(number),),
        )


def _aggregate(number: int) -> AggregateId:
    return AggregateId(host(2 * _POOLS + number))


def _spec(number: int) -> InstanceSpec:
    memory = 2048 + number
    group = ServerGroup(id=GroupId(host(3 * _POOLS + number % GROUPS)), policy="anti-affinity")
    return InstanceSpec(
        amounts=(("DISK_GB", 20), ("MEMORY_MB", memory), ("SRIOV_NET_VF", 1), ("VCPU", 2)),
        groups=(
            GranularGroup("_N", (("MEMORY_MB", memory), ("VCPU", 2)), required=("HW_NUMA_ROOT",)),
            GranularGroup("_P", (("SRIOV_NET_VF", 1),), required=("HW_NIC_SRIOV",)),
        ),
        same_subtree=(("_N", "_P"),),
        server_group=group,
    )
