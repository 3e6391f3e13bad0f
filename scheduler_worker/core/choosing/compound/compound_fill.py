"""Puts the instances of one spec on compound hosts, one after another: which providers each of them takes from."""

from collections.abc import Sequence

from scheduler_worker.core.choosing.compound.compounds import Compounds
from scheduler_worker.core.choosing.compound.provider_room import Parts
from scheduler_worker.core.choosing.needs import needs_of
from scheduler_worker.core.requests import InstanceSpec


class CompoundFill:
    """Puts the instances of one spec on compound hosts. A host is searched when an instance takes it. The ways that are
    found are used as long as one of them has room; then the host is searched again.
    """

    def __init__(self, compounds: Compounds, spec: InstanceSpec) -> None:
        needs = needs_of(spec)
        self.flags = compounds.flags(needs)
        self._compounds = compounds
        self._search = compounds.search(needs)
        # By host: its ways, and after how many changes of the room they had room.
        self._found: dict[int, tuple[Sequence[Parts], int]] = {}

    def ways(self, host: int) -> Sequence[Parts]:
        """The ways to take the amounts from the host's providers that have room after all choices, best first."""
        room, known = self._compounds.room, self._found.get(host)
        if known is not None and (not known[0] or known[1] == room.changes):
            return known[0]
        ways = [parts for parts in known[0] if room.has(parts)] if known else ()
        found = ways or self._search(host)
        self._found[host] = found, room.changes
        return found

    def take(self, host: int) -> Parts | None:
        """Take the amounts for one more instance from this host's providers; None if they have no room left."""
        found = self.ways(host)
        if not found:
            return None
        self._compounds.take(found[0])
        return found[0]
