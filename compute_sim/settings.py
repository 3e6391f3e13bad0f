"""The settings of a compute, and how its parts pace their work."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from compute_sim.core.hosts import read_networks, read_pools
from engine.inventories import CellName
from kit.settings import CountOr0, Seconds, Section


class ComputePace(Struct, frozen=True, kw_only=True):
    """What no operator would change, and only tests shorten."""

    # The pause before an unanswered or unconfirmed message is repeated: less would double the load of a slow placement.
    again_s: float = 1.0
    # The pause before a host asks again for a shape that was refused, since instances hold what would have no place in it.
    reshape_again_s: float = 60.0
    # How often metrics of hosts are published.
    metrics_every_s: float = 30.0
    # How long a finished attempt is remembered, so that it is not built after its destroy.
    over_kept_s: float = 3600.0
    # How long a stopping process waits for builds that end soon.
    drain_s: float = 5.0


USUAL_PACE = ComputePace()


class ComputeSettings(Struct, frozen=True):
    cell: Annotated[
        CellName,
        Meta(
            description="The cell whose hosts this process simulates. One process simulates all hosts of its cell."
        ),
    ] = "c1"
    beat_s: Annotated[
        Seconds,
        Meta(
            description="How often hosts send heartbeats. Shorter shows that a host lives sooner, for more messages. It must be well below "
            "host_down_s of [bus]."
        ),
    ] = 5.0
    facts_every_s: Annotated[
        Seconds,
        Meta(
            description="How often changed loads and facts of hosts are published. Shorter gives schedulers fresher loads, for more messages."
        ),
    ] = 5.0
    builds_at_once_max: Annotated[
        CountOr0,
        Meta(
            description="How many builds a host runs at once; others wait there for their turn. 0: any number. More finishes bursts sooner; "
            "fewer is nearer to a real host."
        ),
    ] = 10
    pools: Annotated[
        tuple[str, ...],
        Meta(
            description="Pools of the cell that share a resource class with its hosts, as NAME:CLASS=TOTAL[@HOSTS]. Such a host has nothing of "
            "this class itself."
        ),
    ] = ()
    networks: Annotated[
        tuple[str, ...],
        Meta(
            description="Physical networks that each host reaches, as NAME=KILOBITS: a provider below the host has this bandwidth for ports. "
            "With none, no host can give a port bandwidth; trees below hosts make choices dearer."
        ),
    ] = ()

    def __post_init__(self) -> None:
        msgspec.convert(self.cell, CellName)
        read_pools(self.pools, self.cell)
        read_networks(self.networks)


COMPUTE = Section(
    "compute",
    ComputeSettings,
    "the simulated hosts",
    omitted=("cell",),
    others=("hosts", "host_size", "driver"),
)
