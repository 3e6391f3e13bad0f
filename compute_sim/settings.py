"""The settings of a compute simulator."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from compute_sim.core.hosts import read_networks, read_pools
from engine.inventories import CellName
from kit.settings import Count, CountOr0, Seconds, SecondsOr0, Section


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
    metrics_every_s: Annotated[
        Seconds,
        Meta(
            description="How often metrics of hosts are published. Shorter gives schedulers fresher metrics, for more messages."
        ),
    ] = 30.0
    images_every_s: Annotated[
        Seconds,
        Meta(
            description="How often all hosts tell their cached images, for schedulers that have just started; changed ones are told with facts. "
            "Shorter informs new schedulers sooner, for more messages."
        ),
    ] = 300.0
    reports_at_once_max: Annotated[
        Count,
        Meta(
            description="How many provider trees are reported at once. More starts a large cell faster; fewer loads placement less."
        ),
    ] = 400
    again_s: Annotated[
        Seconds,
        Meta(
            description="The pause before an unanswered or unconfirmed message is repeated. Shorter recovers sooner; too short doubles the load "
            "of a slow placement."
        ),
    ] = 1.0
    reshape_again_s: Annotated[
        Seconds,
        Meta(
            description="The pause before a host asks again for a new shape that was refused, since instances hold what would have no place in it. "
            "Shorter notices sooner that they have left; longer spares placement."
        ),
    ] = 60.0
    due_at_once_max: Annotated[
        Count,
        Meta(
            description="How many simulated builds end at once. More is faster in bursts; fewer keeps the process responsive."
        ),
    ] = 1000
    builds_at_once_max: Annotated[
        CountOr0,
        Meta(
            description="How many builds a host runs at once; others wait there for their turn. 0: any number. More finishes bursts sooner; "
            "fewer is nearer to a real host."
        ),
    ] = 10
    over_kept_s: Annotated[
        Seconds,
        Meta(
            description="How long a finished attempt is remembered, so that it is not built after its destroy. Longer is safer against very "
            "late messages, for memory."
        ),
    ] = 3600.0
    drain_s: Annotated[
        SecondsOr0,
        Meta(
            description="How long a stopping process waits for builds that end soon; others are lost. Longer loses fewer builds; shorter stops "
            "sooner."
        ),
    ] = 5.0
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
    others=("hosts", "host_size", "faults", "driver"),
)
