"""Decides which builds begin now: each host has a limited number at once, and further ones wait for their turn."""

from collections.abc import Iterable, Mapping

from msgspec import structs

from bus.message import ProviderId
from compute_sim.core.attempts import AttemptKey, AttemptRecord, begun
from compute_sim.fleet import Fleet
from compute_sim.store import ComputeTransaction


class BuildSlots:
    """Counts the builds of each host within one transaction, to tell whether the host may begin another one.

    A count is what the store had before the transaction, and the changes that the transaction has made since.
    """

    def __init__(self, tx: ComputeTransaction, fleet: Fleet, most: int) -> None:
        """`most` is how many builds a host has at once; 0 means any number."""
        self._tx = tx
        self._fleet = fleet
        self._most = most
        self._changes: dict[int, int] = {}
        # Hosts on which a build has ended.
        self._freed: dict[ProviderId, None] = {}

    def is_free(self, host: ProviderId) -> bool:
        if not self._most:
            return True
        return self._tx.building(host) + self._changes.get(host.int, 0) < self._most

    def changed(self, before: AttemptRecord | None, after: AttemptRecord) -> None:
        """Count one build more or one fewer if the transaction began or ended a build when it changed an attempt from `before`
        to `after`.
        """
        more = after.state.takes_slot - (before is not None and before.state.takes_slot)
        if more:
            self._changes[after.host.int] = self._changes.get(after.host.int, 0) + more
        if more < 0:
            self._freed[after.host] = None

    def begin_waiting(
        self, known: Mapping[AttemptKey, AttemptRecord], at_s: float
    ) -> Iterable[AttemptRecord]:
        """Begin attempts that wait on hosts where a build has ended, as far as these hosts have free slots.

        `known` has the attempts that this transaction has changed.
        """
        for host in self._freed:
            of_host = {each.key: each for each in self._tx.waiting(host)}
            of_host |= {key: each for key, each in known.items() if each.host == host}
            for attempt in of_host.values():
                if attempt.order is not None and self.is_free(host):
                    work = self._fleet[host].begin(attempt.order, at_s)
                    begun_now = begun(attempt.order, work, at_s, cause=attempt.cause, trace=attempt.trace)
                    after = structs.replace(begun_now, rank=attempt.rank)
                    self.changed(attempt, after)
                    yield after
