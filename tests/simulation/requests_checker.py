"""Follows the rows of the API level: each request ends once, its refusals are true, and its order to the cell is valid."""

from collections.abc import Iterable

from bus.messages.build import InstanceId, RequestId
from bus.messages.cell import PlaceInCell
from bus.topology import CELL0
from scheduler_worker.core.instances.rows import NO_REQUEST, InstanceRow
from scheduler_worker.requests.burying import BURIED
from tests.simulation.findings import Findings
from tests.simulation.groups_checker import GroupsChecker
from tests.simulation.host_history import HostHistories, short_id
from tests.simulation.nodes_checker import name_of
from tests.simulation.plan import GOLD, Boot, Plan

# The states that an instance may have next at API level, after one commit. Several reports of a cell may be applied at
# once; only the last one shows.
NEXT = {
    "": {"accepted", "placed", "error", "deleted"},
    "accepted": {"placed", "error", "deleted"},
    "placed": {"building", "active", "error", "deleting", "deleted"},
    "building": {"active", "error", "deleting", "deleted"},
    "active": {"rebuilding", "deleting", "deleted"},
    "rebuilding": {"active", "error", "deleting", "deleted"},
    # After a rebuild that failed or timed out.
    "error": {"rebuilding", "active", "deleting", "deleted"},
    "deleting": {"deleted"},
    "deleted": set(),
}


class RequestsChecker:
    def __init__(
        self, findings: Findings, hosts: HostHistories, groups: GroupsChecker, plan: Plan, down_s: float
    ) -> None:
        self._groups = groups
        self._findings = findings
        self._hosts = hosts
        self._down_s = down_s
        self._boots = {RequestId(boot.id): boot for boot in plan.boots}
        self.rows: dict[InstanceId, InstanceRow] = {}
        self._accepted_s: dict[InstanceId, float] = {}

    def written(self, rows: Iterable[InstanceRow]) -> None:
        for row in rows:
            before = self.rows.get(row.id)
            if before is None or before.told != row.told:
                self._follow(before, row)
            self.rows[row.id] = row

    def _follow(self, before: InstanceRow | None, row: InstanceRow) -> None:
        was, now = "" if before is None else before.told.state, row.told.state
        host = f" on {row.told.host}" if row.told.host else ""
        self._findings.log("requests", "{} of {}: {}{}", row.id, row.told.name, now, host)
        if was == now:
            self._check_same(before, row)
        elif now not in NEXT[was] or (was == "error" and now == "active" and row.told.rebuild is None):
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
            self._check_refusal(row)

    def _check_same(self, before: InstanceRow | None, row: InstanceRow) -> None:
        """An end is not written again with other details. A delete that came before its request learns the project
        later.
        """
        assert before is not None, "a row with an earlier state exists"
        if before.told.request_id == NO_REQUEST or row.told.state not in ("active", "error"):
            return
        if (before.told.host, before.told.reason) != (row.told.host, row.told.reason):
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
        names = [each.name for each in choices]
        if len(set(names)) != len(names):
            self._findings.breaks("alternates are other hosts", f"{short_id(row.id)} has {names}")

    def _check_refusal(self, row: InstanceRow) -> None:
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
        since_s = self._accepted_s.get(row.id, self._findings.now_s)
        excluded = () if boot.group is None else self._groups.excluded(boot.group, since_s)
        if excluded is None:
            return
        fitting = self._hosts.fitting(
            amounts_of(boot),
            frozenset({GOLD}) if boot.needs_gold else frozenset(),
            (boot.host,) if boot.host else (),
            since_s,
            self._down_s,
            excluded=excluded,
        )
        if fitting:
            steps = "; ".join(f"{step.removed} by {step.step} ({step.example})" for step in why.steps)
            self._findings.breaks(
                "never a wrong no",
                f"{told.name} ({short_id(row.id)}) got NoValidHost, although {fitting} had room for it all "
                f"the time; the funnel was: {steps}",
            )

    def _check_reason(self, row: InstanceRow) -> None:
        """The reason names no lack of hosts: then the deadline passed, or claims were refused repeatedly. Only requests
        of intruders are dead-lettered.
        """
        reason = row.told.reason
        if reason == BURIED and row.told.request_id not in self._boots:
            return
        if not reason.startswith("not placed within") and "claims were refused" not in reason:
            self._findings.breaks(
                "every no has its reasons", f"{row.told.name} ({short_id(row.id)}): {reason}"
            )


def amounts_of(boot: Boot) -> dict[str, int]:
    if boot.node_class:
        return {name_of(boot.node_class): 1}
    return {"VCPU": boot.vcpus, "MEMORY_MB": boot.ram_mb, "DISK_GB": 1}
