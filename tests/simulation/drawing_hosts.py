"""Draws the part of one seed in twenty in which an operator sets hosts down, draining and dead, and up again. Some hosts that
are set dead are lost for good, one is cut off and returns, and one works on all the time.
"""

import random
from collections.abc import Iterable, Iterator

from msgspec import structs

from engine.hosts import HostMode
from laboratory.computes.faults import Changes, Dies, FallsSilent
from tests.simulation.plan import HostOrder, Plan

BEGIN_S = (3.0, 20.0)
# No host has this name.
NOWHERE = "c1-host-nowhere"
# An attempt may last for long: only what a conductor hears of its hosts ends it sooner.
CONDUCTING = {"attempt_timeout_s": 24.0, "destroy_timeout_s": 12.0}


def with_host_modes(plan: Plan, chance: random.Random) -> Plan:
    named = {name for fault in plan.script.faults for name in fault.hosts}
    free = [host.name for of_cell in plan.hosts.values() for host in of_cell if host.name not in named]
    cut_off, lost, wrong, down = chance.sample(free, 4)
    changing = sorted(
        {name for fault in plan.script.faults if isinstance(fault, Changes) for name in fault.hosts}
    )
    cut_s, lost_s = chance.uniform(*BEGIN_S), chance.uniform(*BEGIN_S)
    silent_s = chance.uniform(15, 22)
    faults = (
        FallsSilent(hosts=(cut_off,), after_s=cut_s, for_s=silent_s),
        Dies(hosts=(lost,), after_s=lost_s),
    )
    orders = (
        HostOrder(cut_off, "dead", cut_s + chance.uniform(0.2, 12)),
        # Before it returns, or after that.
        HostOrder(cut_off, "up", cut_s + silent_s + chance.uniform(-3, 6)),
        HostOrder(lost, "dead", lost_s + chance.uniform(0.2, 20)),
        *_there_and_back(wrong, ("dead",), chance),
        *_there_and_back(down, ("down", "draining"), chance),
        *_draining(changing, chance),
        HostOrder(NOWHERE, "down", chance.uniform(*BEGIN_S)),
    )
    return structs.replace(
        plan,
        script=structs.replace(plan.script, faults=(*plan.script.faults, *faults)),
        host_orders=tuple(sorted(orders, key=lambda order: order.at_s)),
        conducting=CONDUCTING,
    )


def _draining(hosts: Iterable[str], chance: random.Random) -> Iterator[HostOrder]:
    """Orders that set these hosts draining for long: meanwhile builds fail on other hosts, with these hosts as their
    alternates.
    """
    for host in hosts:
        yield HostOrder(host, "draining", chance.uniform(6, 14))
        yield HostOrder(host, "up", chance.uniform(34, 40))


def _there_and_back(host: str, modes: tuple[HostMode, ...], chance: random.Random) -> Iterator[HostOrder]:
    at_s = chance.uniform(3, 12)
    both: tuple[HostMode, ...] = (*modes, "up")
    for mode in both:
        yield HostOrder(host, mode, at_s)
        at_s += chance.uniform(0.5, 6)
