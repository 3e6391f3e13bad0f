"""The state of each host over time, so that a refusal is judged by the whole time during which it was considered."""

from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import TypeVar
from uuid import UUID

from msgspec import Struct

from cell_conductor.core.rows import CellHost
from compute_sim.core.attempts import WELL, AttemptKey, AttemptRecord, AttemptState
from engine.hosts import HostState
from engine.inventories import ProviderId
from laboratory.computes.faults import (
    ComesBackLate,
    Dies,
    FallsSilent,
    Fault,
    FaultScript,
    condition_of,
    faults_of,
    is_on,
)
from tests.simulation.findings import Findings
from tests.simulation.plan import CELLS

S = TypeVar("S")
# The entry in `free` for the number of further instances that the host may take; only where there is a limit.
INSTANCE_SLOTS = "places"


class HostMoment(Struct, frozen=True):
    """The state of a host from `at_s` on."""

    at_s: float
    free: dict[str, int]
    traits: frozenset[str]
    is_enabled: bool


class HostHistory:
    def __init__(self, name: str, cell: str, faults: tuple[Fault, ...]) -> None:
        self.name = name
        self.cell = cell
        # All cells that it has been in.
        self.cells = {cell}
        self.faults = faults
        self.registered_s: float | None = None
        # In a row, as its row says, and as its compute counts them.
        self.failed_builds = 0
        self.builds_failed = 0
        self.history: list[HostMoment] = []


class HostHistories:
    def __init__(self, findings: Findings, script: FaultScript, failed_builds_max: int = 0) -> None:
        self._findings = findings
        self._failed_builds_max = failed_builds_max
        self._script = script
        self._hosts: dict[ProviderId, HostHistory] = {}
        # Each host as its row says, and as its cell knows it: since when it is set so there.
        self.rows: dict[ProviderId, HostState] = {}
        self.in_cells: dict[ProviderId, CellHost] = {}
        self._set_s: dict[ProviderId, float] = {}
        self._were_dead: set[ProviderId] = set()
        self._building: set[AttemptKey] = set()
        # The times when the computes of a cell were down: from, and until.
        self.away: dict[str, list[tuple[float, float]]] = {cell: [] for cell in CELLS}

    def name(self, host: ProviderId) -> str:
        seen = self._hosts.get(host)
        return str(host)[:8] if seen is None else seen.name

    def cell(self, host: ProviderId) -> str:
        return self._hosts[host].cell

    def was_in(self, host: ProviderId, cell: str) -> bool:
        return cell in self._hosts[host].cells

    def is_dead(self, host: ProviderId) -> bool:
        """Whether the host is dead or silent now, as its faults say."""
        return condition_of(self._hosts[host].faults, self._findings.now_s) != WELL

    def has_died(self, host: ProviderId) -> bool:
        """Is it lost for good, with all that was on it?"""
        now_s = self._findings.now_s
        return any(isinstance(fault, Dies) and is_on(fault, now_s) for fault in self._hosts[host].faults)

    def silent_since_s(self, host: ProviderId) -> float:
        """The time since when the host is dead or silent; infinite if it is neither."""
        now_s = self._findings.now_s
        since = [
            fault.after_s
            for fault in self._hosts[host].faults
            if isinstance(fault, FallsSilent | ComesBackLate | Dies) and is_on(fault, now_s)
        ]
        return min(since, default=inf)

    def tree_written(self, host: ProviderId, name: str, cell: str, traits: frozenset[str]) -> None:
        seen = self._history_of(host, name, cell)
        # A node may have moved to another cell.
        seen.cell = cell
        seen.cells.add(cell)
        self._append(seen, traits=traits)

    def free_changed(self, host: ProviderId, free: dict[str, int]) -> None:
        if (seen := self._hosts.get(host)) is not None:
            self._append(seen, free=free)

    def set_in_cell(self, host: CellHost) -> None:
        """A cell has written the row of one of its hosts: the mode that it was told, and whether the host has cleaned up."""
        id_ = host.word.host
        before = self.in_cells.get(id_)
        self.in_cells[id_] = host
        if before is None or before.mode != host.mode:
            self._set_s[id_] = self._findings.now_s
            self._findings.log("cell", "{} is {}", host.word.name, host.mode)
        if host.mode == "dead":
            self._were_dead.add(id_)
        if host.cleaned:
            self._findings.count("host mode", "cleaned")

    def was_dead(self, host: ProviderId) -> bool:
        """Whether the host's cell has known it as set dead at any time: then nobody waits for what the host had."""
        return host in self._were_dead

    def is_set(self, host: ProviderId, *modes: str, for_s: float = 0.0) -> bool:
        """Whether the host's cell knows it in one of these modes, and has done so for at least `for_s`."""
        known = self.in_cells.get(host)
        return known is not None and known.mode in modes and self._findings.now_s - self._set_s[host] >= for_s

    def registered(self, host: HostState) -> None:
        self.rows[host.id] = host
        seen = self._history_of(host.id, host.name, host.cell)
        if seen.registered_s is None:
            seen.registered_s = self._findings.now_s
        if 0 < self._failed_builds_max <= host.failed_builds:
            self._check_disabled(seen, host)
        seen.failed_builds = host.failed_builds
        self._append(seen, is_enabled=host.setting.mode == "up" and not host.must_clean)

    def attempts_changed(self, attempts: Sequence[AttemptRecord]) -> None:
        for each in attempts:
            if each.state is AttemptState.BUILDING:
                self._building.add(each.key)
            elif each.key in self._building:
                self._building.discard(each.key)
                if each.host in self._hosts and each.state in (AttemptState.BUILT, AttemptState.FAILED):
                    seen = self._hosts[each.host]
                    seen.builds_failed = 0 if each.state is AttemptState.BUILT else seen.builds_failed + 1

    def computes_started(self, cell: str) -> None:
        """They begin to count anew."""
        for seen in self._hosts.values():
            if seen.cell == cell:
                seen.builds_failed = 0

    def _is_about_to_drain(self, seen: HostHistory) -> bool:
        """Whether so many builds have failed on the host that a scheduler which has heard of the last one sets it draining, and no
        row says so yet.
        """
        return 0 < self._failed_builds_max <= seen.builds_failed > seen.failed_builds

    def fitting(
        self,
        amounts: dict[str, int],
        required: frozenset[str],
        names: tuple[str, ...],
        since_s: float,
        down_s: float,
        *,
        excluded: Collection[ProviderId] = (),
        serves: Callable[[ProviderId], bool] = lambda _: True,
    ) -> list[str]:
        """The names of the hosts that were registered, up and enabled, and had room for these amounts, during the
        whole time since `since_s`. `serves` is asked last.
        """
        return [
            seen.name
            for host, seen in self._hosts.items()
            if (not names or seen.name in names)
            and host not in excluded
            and seen.registered_s is not None
            and seen.registered_s < since_s
            and not self._is_about_to_drain(seen)
            and self._was_up(seen, since_s - down_s)
            and all(_fits(was, amounts, required) for was in _during(seen.history, since_s))
            # The scheduler also counts the host's own report, which is as old as a heartbeat may be.
            and all(was.free.get(INSTANCE_SLOTS, 1) > 0 for was in _during(seen.history, since_s - down_s))
            and serves(host)
        ]

    def was_up(self, name: str, cell: str, since_s: float) -> bool:
        """Whether the host answered and was enabled during the whole time since `since_s`."""
        return any(
            (seen.name, seen.cell) == (name, cell)
            and self._was_up(seen, since_s)
            and all(was.is_enabled for was in _during(seen.history, since_s))
            for seen in self._hosts.values()
        )

    def _check_disabled(self, seen: HostHistory, host: HostState) -> None:
        """Check that a host is disabled when one more failed build is reported of it. An operator may enable it again
        after that.
        """
        if host.failed_builds > seen.failed_builds:
            self._findings.count("host", "builds failed in a row")
            if host.setting.mode == "up":
                self._findings.breaks(
                    "a host on which builds fail is disabled",
                    f"{host.name} has {host.failed_builds} failed builds",
                )

    def was_disabled(self, host: ProviderId, since_s: float) -> bool:
        """Whether the host was disabled during the whole time since `since_s`."""
        seen = self._hosts.get(host)
        return (
            seen is not None
            and since_s > 0
            and not any(was.is_enabled for was in _during(seen.history, since_s))
        )

    def _history_of(self, host: ProviderId, name: str, cell: str) -> HostHistory:
        if host not in self._hosts:
            self._hosts[host] = HostHistory(name, cell, faults_of(self._script, name))
        return self._hosts[host]

    def _append(
        self,
        seen: HostHistory,
        *,
        free: dict[str, int] | None = None,
        traits: frozenset[str] | None = None,
        is_enabled: bool | None = None,
    ) -> None:
        last = seen.history[-1] if seen.history else HostMoment(0.0, {}, frozenset(), is_enabled=True)
        seen.history.append(
            HostMoment(
                self._findings.now_s,
                last.free if free is None else free,
                last.traits if traits is None else traits,
                last.is_enabled if is_enabled is None else is_enabled,
            )
        )

    def _was_up(self, seen: HostHistory, since_s: float) -> bool:
        """True if the host's script had no fault since then, and its cell's computes were up."""
        now_s = self._findings.now_s
        if any(until_s >= since_s for _, until_s in self.away[seen.cell]):
            return False
        turns = [since_s, now_s]
        for fault in seen.faults:
            turns += [turn for turn in (fault.after_s, fault.after_s + fault.for_s) if since_s < turn < now_s]
        return all(
            condition_of(seen.faults, at_s) == WELL for turn in turns for at_s in (turn - 1e-6, turn + 1e-6)
        )


def _fits(was: HostMoment, amounts: dict[str, int], required: frozenset[str]) -> bool:
    return (
        was.is_enabled
        and required <= was.traits
        and all(was.free.get(resource, 0) >= amount for resource, amount in amounts.items())
    )


def _during(history: list[HostMoment], since_s: float) -> Sequence[HostMoment]:
    return states_since(history, since_s, lambda moment: moment.at_s)


def states_since(states: Sequence[S], since_s: float, at_s: Callable[[S], float]) -> Sequence[S]:
    """Of states in the order of their times: the one that was there at `since_s`, and all later ones."""
    later = len(states)
    while later and at_s(states[later - 1]) >= since_s:
        later -= 1
    return states[max(later - 1, 0) :]


def short_id(id_: UUID) -> str:
    return str(id_)[:8]
