"""The messages that benchmarks send: reports and claims as compute hosts and schedulers send them, about 600 bytes
each.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from uuid import UUID

from bus.messages.placement import ClaimResources, ReportInventory
from engine.inventories import (
    ConsumerId,
    ProviderId,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
    ShapeSeen,
    Share,
)

CELL = "c1"
HOSTS = 1_000
# So much that nothing runs out, however many claims go to one host.
PLENTY = 1_000_000_000
TRAITS = ("COMPUTE_NODE", "COMPUTE_VOLUME_MULTI_ATTACH", "HW_CPU_X86_AVX2", "HW_CPU_X86_VMX")
PROJECT, USER = "4ac9ae0ba3f84a5f9c1e5fcaac2ff9d5", "a2cc2f5a7a1c4a2d9ad0a5a2e9b0d6b1"
# The shape of a host after its first report.
SHAPE = 1

_consumers = itertools.count(1)


def host(number: int) -> ProviderId:
    # Random over the whole range, as real ids are: appending to an index would be cheaper.
    return ProviderId(UUID(int=random.Random(number).getrandbits(128), version=4))


HOST_IDS = tuple(host(number) for number in range(HOSTS))


def report(number: int) -> ReportInventory:
    """A compute host's report of itself."""
    return ReportInventory(
        cell=CELL,
        root=HOST_IDS[number],
        providers=(
            ReportedProvider(
                id=HOST_IDS[number],
                name=f"compute-{number}.rack-{number // 40}.example.net",
                inventories={
                    "VCPU": ReportedInventory(total=PLENTY, allocation_ratio=4.0),
                    "MEMORY_MB": ReportedInventory(total=PLENTY, reserved=512),
                    "DISK_GB": ReportedInventory(total=PLENTY),
                },
                traits=TRAITS,
            ),
        ),
    )


def reports() -> list[ReportInventory]:
    return [report(number) for number in range(HOSTS)]


def claims(count: int, hosts: Sequence[ProviderId]) -> list[ClaimResources]:
    """Claims of new consumers, each for three classes of one of these hosts."""
    chance, issued_at = random.Random(count), datetime.now(UTC)
    return [
        ClaimResources(
            cell=CELL,
            consumer=ConsumerId(UUID(int=random.Random(next(_consumers)).getrandbits(128), version=4)),
            attempt=1,
            issued_at=issued_at,
            share=_share(chance.choice(hosts)),
            project=PROJECT,
            user=USER,
        )
        for _ in range(count)
    ]


def _share(chosen: ProviderId) -> Share:
    amounts = {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 40}
    return Share(
        host=chosen,
        amounts=tuple(
            ResourceAmount(provider=chosen, resource=resource, amount=amount)
            for resource, amount in amounts.items()
        ),
        shapes=(ShapeSeen(root=chosen, shape=SHAPE),),
    )


def batches_of(orders: Sequence[ClaimResources], size: int) -> Iterator[Sequence[ClaimResources]]:
    return (orders[start : start + size] for start in range(0, len(orders), size))
