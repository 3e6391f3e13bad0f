"""Makes the pages of the list of attempts that a host has."""

from collections.abc import Iterable
from itertools import groupby

from bus.messages.host_modes import ATTEMPTS_PER_MESSAGE_MAX, CheckHost, HeldAttempt, HostHolds
from compute_sim.core.attempts import AttemptRecord


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
