"""`moor load`: makes boots as fast as possible or at a rate, measures what each takes and costs, and audits the result."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import click

from kit.process import run_process
from laboratory.computes.hosts import read_host_size, read_places
from laboratory.load.firing import ARRIVALS
from laboratory.load.orders import Mix, plain, read_mix
from laboratory.load.results import as_json, as_table
from laboratory.load.running import Plan, cloud_for_load, run_load
from moor.clouds.cloud import ONE_OF_EACH
from moor.clouds.temporary_cloud import cell_names, servers_at, spread
from moor.flags import option
from moor.options import (
    NOT_DONE,
    BusUrl,
    DatabaseUrl,
    PlacementDatabaseUrl,
    PoolFlags,
    SchedulerFlags,
    check_writable,
    flag_of,
    log_as,
    option_of,
    out,
    pairs_of,
    run,
    tuned_cloud,
    wrong_value,
)
from moor.settings import GENERAL

IN_FLIGHT, METAL_IN_FLIGHT = 2000, 100


def load(
    *,
    boots: Annotated[int, option(min=1, max=10_000_000, help="How many instances to build.")] = 20_000,
    mix: Annotated[
        str,
        option(
            metavar="KIND=WEIGHT,...",
            show_default=False,
            help="What orders make these instances, and which come between: boot, multi (one request for several), group, metal, delete, "
            "migrate, live-migrate, resize; such as boot=80,delete=20. Some have a count or a shape: multi:10=1, group:3=5, boot:4x8192x40=10.",
        ),
    ] = "",
    rate: Annotated[
        float,
        option(
            min=0,
            max=1_000_000,
            help="Orders a second, each at its time, whatever is under way; with --bare-metal, state changes. 0: as fast as possible.",
        ),
    ] = 0,
    arrivals: Annotated[
        str,
        option(
            metavar="even|poisson",
            help="With --rate: orders at equal distances, or at random as those of many clients.",
        ),
    ] = "even",
    publishers: Annotated[
        int,
        option(
            min=0,
            max=1000,
            help="How many independent publishers send the orders, each order as a message of its own. 0: this process, as batches.",
        ),
    ] = 0,
    moves: Annotated[
        int,
        option(
            min=0,
            max=10_000_000,
            help="After these, how many migrations, live migrations and resizes in turn, mixed with further boots and deletes.",
        ),
    ] = 0,
    hosts: Annotated[int, option(min=1, max=100_000, help="Over how many simulated hosts.")] = 1000,
    host_size: Annotated[str, option_of(GENERAL, "compute_host_size", metavar="NAME=VALUE,...")] = "",
    host_place: Annotated[str, option_of(GENERAL, "compute_place", metavar="PLACE")] = "",
    cells: Annotated[int, option(min=1, max=100, help="In how many cells.")] = 2,
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    placement_db: PlacementDatabaseUrl = "",
    scheduler: SchedulerFlags = None,
    pool: PoolFlags = None,
    failing: Annotated[
        float,
        option(min=0, max=1, help="The share of spawns, and of moves' arrivals, that fail, from 0 to 1."),
    ] = 0.05,
    in_flight: Annotated[
        int | None,
        option(
            min=1,
            show_default=False,
            help="How many boots, moves or state changes are under way at most, without --rate. Default: 2000, or 100 on bare metal.",
        ),
    ] = None,
    bare_metal: Annotated[
        bool,
        option("--bare-metal", help="Instead, change the states of bare-metal nodes and deploy onto them."),
    ] = False,
    nodes: Annotated[
        int,
        option(min=10, max=20_000, help="With --bare-metal, or metal in the mix: how many simulated nodes."),
    ] = 500,
    daemons: Annotated[int, option(min=1, max=50, help="How many daemons manage them.")] = 2,
    changes: Annotated[
        int, option(min=1, max=10_000_000, help="With --bare-metal: how many state changes.")
    ] = 5_000,
    deploys: Annotated[
        int,
        option(min=1, max=10_000_000, help="With --bare-metal: how many deploys, each undeployed again."),
    ] = 300,
    workers: Annotated[
        list[str] | None,
        option(
            metavar="KIND=N",
            help="How many placement, scheduler or conductor workers (conductors per cell). Default: one of each.",
        ),
    ] = None,
    json: Annotated[
        Path | None, option("--json", metavar="FILE", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Build many instances, as fast as possible or at a rate, measure the time and cost of each, and audit the result.

    With --bus and --db the workers run on real servers, each as its own process. Without them, all run in this process.
    """
    servers = servers_at(bus, db, placement_db)
    check_writable("--json", json)
    with wrong_value():
        read_host_size(host_size)
        read_places(host_place)
    if hosts < cells:
        raise click.BadParameter(f"--hosts is {hosts}, must be at least --cells, which is {cells}")
    counts = counts_of(workers or [])
    if workers and servers is None:
        raise click.BadParameter(
            f"--workers is {', '.join(workers)} without --bus and --db: then one worker of each kind runs in this process"
        )
    if bare_metal:
        _check_only_metal(
            moves, mix=mix, publishers=publishers, host_size=host_size, pool=", ".join(pool or ())
        )
    elif rate and in_flight:
        raise click.BadParameter(
            f"--in-flight is {in_flight} with --rate: at a rate each order is sent at its time, whatever is under way"
        )
    if arrivals not in ARRIVALS:
        raise click.BadParameter(f"--arrivals is {arrivals!r}, must be one of {', '.join(ARRIVALS)}")
    entries = plain("metal", "delete") if bare_metal else mix_in(mix, moves)
    has_nodes = any(each.kind == "metal" for each in entries.values())
    names = cell_names(cells)
    plan = Plan(
        cloud=cloud_for_load(
            dict.fromkeys(names, 1) if bare_metal else spread(hosts, names),
            failing,
            nodes=nodes if has_nodes else 0,
            daemons=daemons,
            host_size=host_size,
            host_place=host_place,
            workers=counts,
            settings=tuned_cloud(None, scheduler=scheduler, pools=pool),
        ),
        boots=deploys if bare_metal else boots,
        moves=moves,
        mix=entries,
        changes=changes if bare_metal else 0,
        rate=rate,
        arrivals=arrivals,
        publishers=publishers,
        failing=failing,
        # On bare metal, some nodes are left as alternates.
        in_flight=max(1, min(in_flight or METAL_IN_FLIGHT, nodes * 2 // 3))
        if bare_metal
        else in_flight or IN_FLIGHT,
    )
    _check_fits(plan, entries)
    if has_nodes:
        # Deploys fail on purpose.
        log_as(os.environ, level="ERROR")
    result = run(run_load(plan, servers), by=run_process)
    if json is not None:
        json.write_bytes(as_json(result))
    out.print(as_table(result))
    if not result.audit.passed:
        raise click.exceptions.Exit(NOT_DONE)


def _check_only_metal(moves: int, **others: object) -> None:
    if moves:
        raise click.BadParameter(
            f"--moves is {moves} with --bare-metal: an instance on a node has its disk there, and cannot move"
        )
    for field, given in others.items():
        if given:
            raise click.BadParameter(
                f"{flag_of(field)} is {given!r} with --bare-metal: that only changes nodes and deploys onto them"
            )


def mix_in(text: str, moves: int) -> Mix:
    if not text:
        return {}
    if moves:
        raise click.BadParameter(f"--moves is {moves} with --mix: name moves in the mix, such as migrate=5")
    with wrong_value("--mix "):
        return read_mix(text)


def _check_fits(plan: Plan, mix: Mix) -> None:
    """A mix whose instances cannot all have a place would measure refusals."""
    for each in mix.values():
        hosts = plan.cloud.cells.values()
        if each.kind == "group" and each.count > min(hosts):
            raise click.BadParameter(
                f"--mix has {each.name}: its members need different hosts of one cell, and --hosts {sum(hosts)} gives a cell {min(hosts)}"
            )
    wanted = sum(mix[name].kind == "metal" for name in plan.orders) if plan.nodes and not plan.changes else 0
    if wanted > plan.nodes:
        raise click.BadParameter(
            f"--mix has metal, which needs {wanted} nodes for --boots {plan.boots}, and --nodes is {plan.nodes}"
        )


def counts_of(workers: Sequence[str]) -> Mapping[str, int]:
    given = pairs_of("--workers", workers)
    for kind, number in given.items():
        if kind not in ONE_OF_EACH or not number.isdecimal() or not int(number):
            raise click.BadParameter(
                f"--workers is {f'{kind}={number}'!r}: must be KIND=N, where KIND is one of {', '.join(ONE_OF_EACH)} and N at least 1"
            )
    return {**ONE_OF_EACH, **{kind: int(number) for kind, number in given.items()}}
