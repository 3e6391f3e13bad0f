"""Follows the rows of the API level: each request ends once, its refusals are true, and its order to the cell is valid."""

from collections import Counter
from collections.abc import Iterable

from bus.messages.cell import PlaceInCell
from bus.topology import CELL0
from engine.flavors import InstanceId, RequestId
from scheduler_worker.core.instances.rows import NO_REQUEST, InstanceRow
from scheduler_worker.requests.building import BURIED
from tests.simulation.boots_checkers import WOKEN_WITHIN_S, WaitsChecker, WholeChecker
from tests.simulation.demands_checker import WAYS, DemandsChecker
from tests.simulation.drawing_worlds import LATER
from tests.simulation.findings import Findings
from tests.simulation.host_history import HostHistories, short_id
from tests.simulation.moves_checker import MovesOfRequests
from tests.simulation.nodes_checker import NODE, NodesChecker, name_of
from tests.simulation.plan import GOLD, Boot, Plan
from tests.simulation.shares_checkers import GroupsChecker
from tests.simulation.workers import BUS

# A scheduler learns of each change of a host by an event, or else when it reads all hosts; its database may be away.
DISABLED_LATE_S = 10.0
# The states that an instance may have next at API level, after one commit. Several reports of a cell may be applied at
# once; only the last one shows.
NEXT = {
    "": {"accepted", "placed", "error", "deleted"},
    "accepted": {"waiting", "placed", "error", "deleted"},
    "waiting": {"placed", "error", "deleted"},
    "placed": {"building", "active", "error", "deleting", "deleted"},
    "building": {"active", "error", "deleting", "deleted"},
    "active": {"rebuilding", "moving", "deleting", "deleted"},
    "rebuilding": {"active", "error", "deleting", "deleted"},
    "moving": {"moved", "stopped", "shelved", "offloaded", "active", "error", "deleting", "deleted"},
    "moved": {"moving", "active", "stopped", "error", "deleting", "deleted"},
    "stopped": {"moving", "deleting", "deleted"},
    "shelved": {"moving", "deleting", "deleted"},
    "offloaded": {"moving", "deleting", "deleted"},
    # After a rebuild or a move that failed or timed out.
    "error": {"rebuilding", "moving", "active", "deleting", "deleted"},
    "deleting": {"deleted"},
    "deleted": set(),
}


class RequestsChecker:
    def __init__(
        self,
        findings: Findings,
        hosts: HostHistories,
        groups: GroupsChecker,
        plan: Plan,
        *,
        demands: DemandsChecker,
        whole: WholeChecker,
        nodes: NodesChecker,
    ) -> None:
        self._nodes = nodes
        self._whole = whole
        self._groups = groups
        self._demands = demands
        self._findings = findings
        self._hosts = hosts
        self._moves = MovesOfRequests(findings, hosts, plan.faults_end_s)
        self._waits = WaitsChecker(findings, hosts, plan)
        self._boots = {RequestId(boot.id): boot for boot in plan.boots}
        self.rows: dict[InstanceId, InstanceRow] = {}
        self._accepted_s: dict[InstanceId, float] = {}

    def written(self, rows: Iterable[InstanceRow]) -> None:
        rows = [*rows]
        # Rows that were placed before are written again with other details.
        self._whole.written(
            row for row in rows if (was := self.rows.get(row.id)) is None or was.told.state != row.told.state
        )
        for row in rows:
            before = self.rows.get(row.id)
            if before is None or before.told != row.told:
                self._follow(before, row)
                self._moves.follow(before, row)
                self._waits.follow(row)
            self.rows[row.id] = row

    def _follow(self, before: InstanceRow | None, row: InstanceRow) -> None:
        was, now = "" if before is None else before.told.state, row.told.state
        host = f" on {row.told.host}" if row.told.host else ""
        self._findings.log("requests", "{} of {}: {}{}", row.id, row.told.name, now, host)
        if was == now:
            self._check_same(before, row)
        elif (was, now) == ("active", "error") and self._nodes.is_deleted(row.told.host):
            self._findings.count(NODE, "an instance in error without it")
        elif now not in NEXT[was] or (was == "error" and now == "active" and not _was_built(row)):
            self._findings.breaks(
                "every request ends once",
                f"{row.told.name} ({short_id(row.id)}) went from {was!r} to {now!r}",
            )
        if now == "accepted":
            self._accepted_s[row.id] = self._findings.now_s
        if before is not None and row.told.sequence <= before.told.sequence and was != now:
            self._findings.breaks(
                "sequences of events only grow",
                f"{short_id(row.id)} went back to sequence {row.told.sequence}",
            )
        if now == "placed" and row.order is not None:
            self._check_order(row, row.order)
        if now == "error" and row.told.cell == CELL0:
            self._check_refusal(row, waited=was == "waiting")
        if now == "deleted" and "released before" in row.told.reason and row.told.name.startswith(LATER):
            self._findings.breaks(
                "nobody acts with another's authority",
                f"{short_id(row.id)}, which only another cell released, is deleted: {row.told.reason}",
            )

    def _check_same(self, before: InstanceRow | None, row: InstanceRow) -> None:
        """Check that an end is not written again with other details. Three later changes are right: a delete that came
        before its request learns the project, an instance in error whose host was silent about its rebuild learns
        how that ended, and an active one learns what its node says.
        """
        assert before is not None, "a row with an earlier state exists"
        if before.told.request_id == NO_REQUEST or row.told.state not in ("active", "error"):
            return
        if before.told.rebuild != row.told.rebuild:
            return
        is_told_more = row.told.state == "active" or before.told.reason == row.told.reason
        if before.told.host != row.told.host or not is_told_more:
            self._findings.breaks(
                "every request ends once",
                f"{short_id(row.id)} is {row.told.state} on {row.told.host!r} now, and was on {before.told.host!r}",
            )

    def _check_order(self, row: InstanceRow, order: PlaceInCell) -> None:
        choices = (order.chosen, *order.alternates)
        foreign_hosts = [each.name for each in choices if not self._hosts.was_in(each.share.host, order.cell)]
        if foreign_hosts:
            self._findings.breaks(
                "alternates are of the same cell", f"{short_id(row.id)} in {order.cell} has {foreign_hosts}"
            )
        self._check_ways(row, order)
        boot = self._boots.get(row.told.request_id)
        since_s = 0.0 if boot is None else boot.at_s - DISABLED_LATE_S
        for each in choices if boot is not None else ():
            if self._hosts.was_disabled(each.share.host, since_s):
                self._findings.breaks(
                    "a disabled host gets no new instance",
                    f"{row.told.name} ({short_id(row.id)}) was placed on {order.chosen.name} with {names_of(order)}, and "
                    f"{each.name} was disabled all the time since {since_s:.1f} s",
                )

    def _check_ways(self, row: InstanceRow, order: PlaceInCell) -> None:
        """Check that alternates are other hosts than the chosen one. Only for a request with groups may a host be an
        alternate twice, with two different ways.
        """
        boot = self._boots.get(row.told.request_id)
        has_groups = boot is not None and boot.demand is not None and boot.demand.has_groups
        ways = Counter(each.share.host for each in order.alternates)
        if order.chosen.share.host in ways or max(ways.values(), default=0) > (2 if has_groups else 1):
            self._findings.breaks("alternates are other hosts", f"{short_id(row.id)} has {names_of(order)}")
        if len({frozenset(each.share.amounts) for each in order.alternates}) < len(order.alternates):
            self._findings.breaks(
                "the ways of an alternate differ", f"{short_id(row.id)} has {order.alternates!r}"
            )
        if max(ways.values(), default=0) > 1:
            self._findings.count(WAYS, "an alternate with two")

    def _check_refusal(self, row: InstanceRow, *, waited: bool) -> None:
        told = row.told
        why = told.no_valid_host
        boot = self._boots.get(told.request_id)
        if why is None:
            self._check_reason(row)
            return
        if (removed := sum(step.removed for step in why.steps)) != why.hosts:
            self._findings.breaks(
                "every no has its reasons", f"{told.name}: {removed} of {why.hosts} hosts are explained"
            )
        if boot is None:
            return
        if any(" at c1-" in step.example or " at c2-" in step.example for step in why.steps):
            self._findings.count("pool", "ran out")
        since_s = self._accepted_s.get(row.id, self._findings.now_s)
        if waited:
            # It may have had no room at first; but it is tried soon after a host has room.
            since_s = max(since_s, self._findings.now_s - WOKEN_WITHIN_S)
        excluded = () if boot.group is None else self._groups.excluded(boot.group, since_s)
        if excluded is None:
            return
        amounts = amounts_of(boot) if boot.demand is None else {}
        fitting = self._hosts.fitting(
            amounts,
            frozenset({GOLD}) if boot.needs_gold else frozenset(),
            (boot.host,) if boot.host else (),
            since_s,
            BUS.host_down_s,
            excluded=excluded,
            serves=lambda host: boot.demand is None or self._demands.could_serve(boot, host, since_s),
        )
        # One of many instances may find room where there is none for all.
        if fitting and (not boot.all_or_nothing or len(fitting) >= boot.count):
            steps = "; ".join(f"{step.removed} by {step.step} ({step.example})" for step in why.steps)
            self._findings.breaks(
                "never a wrong no",
                f"{told.name} ({short_id(row.id)}) got NoValidHost, although {fitting} had room for it all "
                f"the time; the funnel was: {steps}",
            )

    def _check_reason(self, row: InstanceRow) -> None:
        """Check an error whose reason names no lack of hosts: then the deadline passed, or claims were refused
        repeatedly. Only requests of intruders are dead-lettered.
        """
        reason = row.told.reason
        if reason == BURIED and row.told.request_id not in self._boots:
            return
        boot = self._boots.get(row.told.request_id)
        if boot is not None and boot.all_or_nothing and reason.startswith("all or nothing"):
            return
        if "for room, until" in reason or reason.startswith("over the quota of project"):
            return
        if not reason.startswith("not placed within") and "claims were refused" not in reason:
            self._findings.breaks(
                "every no has its reasons", f"{row.told.name} ({short_id(row.id)}): {reason}"
            )


def _was_built(row: InstanceRow) -> bool:
    """Whether the instance was built once: only then it is rebuilt or moved, and may be active after an error."""
    return row.told.rebuild is not None or row.told.move is not None


def names_of(order: PlaceInCell) -> list[str]:
    return [each.name for each in (order.chosen, *order.alternates)]


def amounts_of(boot: Boot) -> dict[str, int]:
    if boot.node_class:
        return {name_of(boot.node_class): 1}
    return {"VCPU": boot.vcpus, "MEMORY_MB": boot.ram_mb, "DISK_GB": 1}
