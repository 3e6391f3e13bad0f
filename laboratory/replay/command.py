"""`moor replay`: how well the policies fill a cloud, by a trace of arrivals."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import click

from engine.goals import BalanceGoal
from engine.hosts import POLICIES
from engine.inventories import INTEGER_MAX
from laboratory.replay.playing import BalanceRule, HostKind, play
from laboratory.replay.results import Replay, as_json, as_svg, as_table
from laboratory.replay.trace import BadTraceError, read_trace
from moor.flags import argument, option
from moor.options import SchedulerFlags, check_writable, found, out, scheduler_flags, wrong_value
from moor.traces import MB_PER_GIB
from moor.worker_settings import SCHEDULER
from scheduler_worker.settings import SchedulerSettings

HOSTS_MAX = 200_000


def replay(
    *,
    trace: Annotated[Path, argument(metavar="TRACE")],
    hosts: Annotated[
        list[str],
        option(
            metavar="N:VCPU:GIB[:DISK_GB[:TRAIT,...]]",
            show_default=False,
            help="So many equal hosts, with their processors and memory, such as 1330:48:192. May be repeated.",
        ),
    ],
    policy: Annotated[
        list[str] | None,
        option(
            metavar="NAME[ KEY=VALUE...]",
            show_default=False,
            help="A policy: spread, fill or fit; with settings of schedulers, such as 'spread disk_weight_multiplier=0'. May be repeated. "
            "Without it: these three.",
        ),
    ] = None,
    balance: Annotated[
        BalanceGoal | None,
        option(
            help="Also play each policy with a balance of this goal, as `moor balance` makes it, and say how often instances move.",
            show_default=False,
        ),
    ] = None,
    balance_every: Annotated[int, option(metavar="S", min=1, help="So often hosts are evened.")] = 3600,
    balance_moves: Annotated[
        int, option(metavar="N", min=1, max=1000, help="By so many moves at most.")
    ] = 100,
    scheduler: SchedulerFlags = None,
    seed: Annotated[
        int, option(min=0, max=INTEGER_MAX, help="Decides between equal hosts; the same one gives the same.")
    ] = 1,
    plot: Annotated[
        Path | None,
        option(metavar="FILE", help="Also draw use, refusals and stranded processors over time, as SVG."),
    ] = None,
    json: Annotated[
        Path | None, option("--json", metavar="FILE", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Play a trace of arrivals against the choice of hosts, and say what each policy refuses.

    It is the choice that a scheduler makes, with a virtual clock. TRACE is a CSV file with the columns arrival_s, batch, vcpus, memory_gib, lifetime_low_s, lifetime_high_s and ended.
    """
    for flag, file in (("--plot", plot), ("--json", json)):
        check_writable(flag, file)
    kinds = tuple(read_hosts(text) for text in hosts)
    if (count := sum(kind.count for kind in kinds)) > HOSTS_MAX:
        raise click.BadParameter(f"--hosts are {count:,} together, at most {HOSTS_MAX:,} are played")
    named = [" ".join(each.split()) for each in policy or POLICIES]
    if twice := [each for each in named if named.count(each) > 1]:
        raise click.BadParameter(f"--policy gives {twice[0]!r} twice")
    settings = {each: settings_of(each, scheduler) for each in named}
    with wrong_value(f"TRACE is {str(trace)!r}: ", OSError), wrong_value("TRACE ", BadTraceError):
        batches = read_trace(trace)
    has_disks = any("DISK_GB" in dict(each.spec.amounts) for batch in batches for each in batch.arrivals)
    if has_disks and any(not kind.disk_gb for kind in kinds):
        raise click.BadParameter(
            "--hosts have no disk, and instances of the trace ask for some: N:VCPU:GIB:DISK_GB"
        )
    rule = None if balance is None else BalanceRule(balance, balance_every, balance_moves)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        under_way = [
            pool.submit(play, name, each, trace, kinds, seed=seed, balance=by)
            for name, each in settings.items()
            for by in ((None,) if rule is None else (None, rule))
        ]
        played = [each.result() for each in under_way]
    result = Replay(trace=trace.name, hosts=kinds, seed=seed, policies=tuple(played))
    if json is not None:
        json.write_bytes(as_json(result))
    if plot is not None:
        plot.write_text(as_svg(result))
    out.print(as_table(result))


def read_hosts(text: str) -> HostKind:
    count, vcpus, gib, disk, traits = (*text.split(":", 4), *("",) * 4)[:5]
    with wrong_value(
        f"--hosts is {text!r}, must be N:VCPU:GIB, such as 1330:48:192; DISK_GB and traits may follow: ",
        OverflowError,
    ):
        kind = HostKind(
            int(count),
            int(vcpus),
            round(float(gib) * MB_PER_GIB),
            int(disk or 0),
            tuple(sorted({each for each in traits.split(",") if each})),
        )
        if min(kind.count, kind.vcpus, kind.memory_mb) < 1 or not 0 <= kind.disk_gb <= INTEGER_MAX:
            raise ValueError("each is at least 1")
        if max(kind.vcpus, kind.memory_mb) > INTEGER_MAX:
            raise ValueError(f"each is at most {INTEGER_MAX}")
    return kind


def settings_of(policy: str, scheduler: Sequence[str] | None) -> SchedulerSettings:
    name, *pairs = policy.split()
    if name not in POLICIES:
        raise click.BadParameter(
            f"--policy is {policy!r}, must begin with {', '.join(POLICIES[:-1])} or {POLICIES[-1]}"
        )
    flags = scheduler_flags([*(scheduler or ()), f"policy={name}", *pairs])
    with wrong_value():
        settings: SchedulerSettings = found().of(SCHEDULER, flags=flags)
    return settings
